"""Write the catalogue of all formulas: ``python -m fxflops.counting.catalogue`` writes ``fxflops/ops/README.md``."""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import nn

from .. import conventions
from ..conventions import CONVENTIONS, find_convention
from ..ops._registry import BASE, is_method
from .catalogue_page import FORMULAS, README, REASONS, ZEROS, Row, bare, place_of

FAMILIES = "fxflops.ops."
HEADER = ("op", "counted", "why")
OBJECTS: dict[str, Any] = {
    "F": nn.functional, "torch": torch, "torch.special": torch.special, "torch.linalg": torch.linalg,
    "torch.fft": torch.fft, "operator": operator, "Tensor": torch.Tensor,
}  # fmt: skip
"""Maps each name in :data:`NAMESPACES`, except nn, to its object."""


def registered() -> list[Row]:
    """Return a row for each op of each fxflops formula, by family. Within a family, the rows have the order of the source file.

    The last rows are the ops that are declared to compute nothing, sorted by reason and name.
    """
    names = _names()
    groups: dict[tuple[str, int, str, str], list[str]] = {}
    places: dict[Any, int] = {}  # maps a function to its place in the order of registration
    for key, formula in BASE.items():
        if formula.is_ours:
            family = formula.function.__module__.removeprefix(FAMILIES) if formula.function is not None else ""
            place = places.setdefault(formula.function, len(places))
            groups.setdefault((family, place, formula.op, formula.doc), []).extend(_spellings(key, names))

    def order(item: tuple[tuple[str, int, str, str], list[str]]) -> tuple[Any, ...]:
        family, place, op, doc = item[0]
        return not family, family, place, doc, op

    ordered = sorted(groups.items(), key=order)
    return [
        Row(op, family, doc, _shown(spellings)) for (family, _, op, doc), spellings in ordered if family or spellings
    ]


def markdown() -> str:
    """Return the catalogue as a page of Markdown."""
    rows = registered()
    formulas = [row for row in rows if row.family]
    zeros = [row for row in rows if not row.family]
    version = ".".join(torch.__version__.split(".")[:2])
    parts = [
        INTRODUCTION.format(ops=len({row.op for row in formulas}), version=version),
        f"## {FORMULAS}",
        *(_family(name, family_rows) for name, family_rows in groupby(formulas, operator.attrgetter("family"))),
        f"## {ZEROS}",
        *(_reason(reason, reason_rows) for reason, reason_rows in groupby(zeros, operator.attrgetter("doc"))),
        _conventions(),
        EXCEPTIONS,
        TORCH_FLOPS,
    ]
    return "\n\n".join(parts) + "\n"


# Names of targets


def _names() -> dict[Any, list[str]]:
    """Map each of torch's functions, methods and module classes to its names."""
    names: dict[Any, list[str]] = {}
    for prefix, namespace in OBJECTS.items():
        for name in dir(namespace):
            value = getattr(namespace, name, None)
            special = name.startswith("__") and namespace is not torch.Tensor
            if callable(value) and isinstance(value, Hashable) and not special:
                names.setdefault(value, []).append(f"{prefix}.{name}")
    return names


def _spellings(key: Any, names: dict[Any, list[str]]) -> list[str]:
    """Return the names by which a program calls a registry key, e.g. ``F.relu``."""
    if isinstance(key, str):
        return [key] if _exists(key) else []
    if isinstance(key, type):
        place = "nn" if vars(nn).get(key.__name__) == key else key.__module__
        return [f"{place}.{key.__name__}"]
    if key in names:
        return names[key]
    name = getattr(key, "__name__", str(key))
    if name.startswith("__") and not is_method(key):  # a special function of a Python module, e.g. torch.__dir__
        return []
    return [f"Tensor.{name}" if is_method(key) else f"{getattr(key, '__module__', None) or 'torch'}.{name}"]


def _exists(overload: str) -> bool:
    """Return whether torch has an operator with this name. True for operators of other libraries, because these may not be loaded."""
    namespace, _, name = overload.partition("::")
    return namespace != "aten" or hasattr(torch.ops.aten, name.partition(".")[0])


def _shown(spellings: Iterable[str]) -> tuple[str, ...]:
    """Return the names to show, modules first. In-place, reflected and private forms of other names are left out."""
    all_names = sorted(set(spellings), key=lambda name: (place_of(name), name))
    plain_names = {bare(name) for name in all_names if not _is_private(name)}
    return tuple(
        name
        for name in all_names
        if not (_is_variant(name, all_names) or (_is_private(name) and bare(name) in plain_names))
    )


def _is_variant(name: str, all_names: Sequence[str]) -> bool:
    """Return whether a name is the in-place, reflected or augmented form of another name (``add_``, ``__radd__``, ``iadd``)."""
    prefix, _, last = name.rpartition(".")
    stem = last.strip("_")
    if last.startswith("__"):
        return stem[:1] in "ri" and f"{prefix}.__{stem[1:]}__" in all_names
    plain_forms = [last[:-1]] if last.endswith("_") else []
    plain_forms += [f"{stem[1:]}", f"{stem[1:]}_"] if prefix == "operator" and stem[:1] == "i" else []
    return any(f"{prefix}.{other}" in all_names for other in plain_forms)


def _is_private(name: str) -> bool:
    parts = name.replace("::", ".").split(".")
    return "::" not in name and any(part.startswith("_") and not part.startswith("__") for part in parts)


# The page


def _family(name: str, rows: Iterable[Row]) -> str:
    return f"### {name}\n\n{_about(FAMILIES + name)}\n\n" + _table(
        ("op", "counted", "reached by"), ((row.op, _formula(row.doc), _code(row.targets)) for row in rows)
    )


def _reason(reason: str, rows: Iterable[Row]) -> str:
    about = f"\n\n{REASONS[reason]}" if reason in REASONS else ""
    return f"### {reason}{about}\n\n" + _table(("op", "reached by"), ((row.op, _code(row.targets)) for row in rows))


def _conventions() -> str:
    parts = ["## Conventions", CONVENTIONS_INTRODUCTION]
    for convention in map(find_convention, CONVENTIONS):
        spelled: dict[Any, list[str]] = {}
        for key, function in convention.rows.items():
            spelled.setdefault(function, []).append(str(getattr(key, "__name__", key)))
        rows = [(", ".join(dict.fromkeys(names)), *_counted(function)) for function, names in spelled.items()]
        about = _text(_about(f"{conventions.__name__}.{convention.name}"))
        parts += [f"### {convention.name}", about, *([_table(HEADER, rows)] if rows else [])]
    return "\n\n".join(parts)


def _counted(function: Any) -> tuple[str, str]:
    """Return the cells of a convention's row. The cells are the first line of the function's docstring, and the docstring's other lines."""
    first, _, rest = (inspect.getdoc(function) or "").partition("\n")
    return _formula(first), _text(" ".join(rest.split()))


def _about(module: str) -> str:
    """Return the docstring of a module, with each paragraph on one line."""
    return "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(sys.modules[module]) or "").split("\n\n"))


def _formula(doc: str) -> str:
    """Return a formula's docstring, ``input[m, k] -> out[m]: k per output``, with the part before the colon as code."""
    signature, colon, counted = doc.partition(": ")
    if not colon or "->" not in signature:
        return _text(doc)
    return f"`{_cell(signature)}`: {_text(counted)}"


def _text(text: str) -> str:
    return _cell(text.replace("*", r"\*").replace("``", "`"))


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(header: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows))


INTRODUCTION = """\
# What is counted

`python -m fxflops.counting.catalogue` writes this page from the formulas in this folder: {ops} ops, with their names in torch {version}.

Every op has one formula for all its spellings. A formula reads only shapes. Letters in a formula are sizes:
`x[*, k] -> out[*]: k-1 adds per output` means k-1 additions per element of the result. In-place (`add_`), `out=`,
reflected (`__radd__`) and augmented (`iadd`) forms are counted like the plain form. A complex multiplication is counted as 6
operations, a complex addition as 2 operations, and a complex multiply-accumulate as 4 MACs. A backward operator is counted by
the textbook formula of its gradient, which uses the tensors that the forward saved. Values that a kernel recomputes to save
memory are not counted. An op that is in none of these tables is not counted as zero: the report lists the op as missing, and the
report's total is a lower bound."""

CONVENTIONS_INTRODUCTION = """\
A convention overrides the formulas above for some ops. The table of a convention has only the rows that differ.
MACs are the same under every convention. The default convention is fxflops; the default of `TorchFLOPsByFX` is torch_flops."""

EXCEPTIONS = """\
## Where a convention is not the tool's own number

Each convention is tested against its tool on the models of `tests/conventions/pool.py` and on many single ops. All numbers
are equal, except for the exceptions in this table. In the table, `x` is `torch.ones(4, 4)` and `s` is `nn.Linear(4, 4)`. The
second column is the body of a `forward` whose count differs.

| tool | body of `forward` | the tool counts | fxflops counts |
| --- | --- | --- | --- |
| torch | `return F.scaled_dot_product_attention(q, q, q)` on a CPU | 0: the tool has formulas for the kernels of GPUs and the meta device, but not for the CPU's kernel | the two products of attention |
| fvcore | `y = x @ x`<br>`return x + 1` | 0: the tool's trace leaves out operations whose results are not used | 64 |
| fvcore | `class Double(torch.autograd.Function): forward = staticmethod(lambda ctx, x: x @ x)`<br>`return Double.apply(x)` | 0: the function is not traced | 64 |
| fvcore | `f = torch.jit.script_if_tracing(lambda x: x @ x)`<br>`return f(x)` | 0: the function is scripted | 64 |
| fvcore | `return torch.ops.aten.mm(x, x)` | 64 | 0: a direct call of an operator looks the same as an operator that a torch function dispatches |
| deepspeed, flops_profiler, calflops, ptflops | `from torch.nn.functional import relu`<br>`return relu(x)` | 0: the import keeps the original function, and the tool replaces only `F.relu` | 16 |
| deepspeed, flops_profiler, calflops, ptflops | `return torch.prelu(x, w)` | 0: the tool replaces `F.prelu`, but not `torch.prelu`. The same holds for `torch.avg_pool1d`, `torch.adaptive_avg_pool1d` and, except in ptflops, `torch.conv1d` | 16 |
| fvcore, deepspeed, flops_profiler, calflops, ptflops | `return torch.vmap(lambda row: w @ row)(x)`, flex_attention | the functions called inside the transform | 0: inside a functorch transform, fxflops sees only operators, and the tool does not count operators |
| ptflops | `return F.interpolate(y, scale_factor=1.3)` | a fraction; the sum of all calls is rounded down | each call is rounded down |
| deepspeed, flops_profiler, ptflops | `return sum([x, x])` | 0 | the same as `x.add(x)`: an addition called from C looks the same |
| deepspeed, calflops, ptflops | `return F.upsample(y, scale_factor=2)` | twice: as `F.upsample`, and as the `F.interpolate` that it calls | once |
| deepspeed | `return einops.einsum(x, x, "a b, c b -> a c")` | twice: as `einops.einsum`, and as the `torch.einsum` that it calls | once |
| thop, flops_profiler, calflops, ptflops | `m = nn.Sequential(nn.Sequential(s), nn.Sequential(s))`<br>`return m(x)` | all calls once per parent module | each call once |
| torchinfo | `prune.l1_unstructured(s, "weight", 8)`<br>`return s(x)` | the elements that the pruning mask keeps; shapes do not show their number | all elements |
| torchinfo | `s.extra = nn.Sequential()`<br>`return s(x)` | `s` as a module without children | 0 |
| torchinfo | `s.again = s.weight`<br>`return s(x)` | the parameter once | twice |

If a tool raises an error, its convention counts what the tool was meant to count. Examples are thop on `nn.Softmax()` without a
dim, flops-profiler on transposed convolutions, and fvcore on a matmul by a vector. The sections above name these cases. The
convention torch_flops uses the formulas of fxflops, except for the two rows in its own table. The next section lists the ops that the tool
torch_flops does not recognize or counts wrongly."""

TORCH_FLOPS = """\
## Where torch_flops 0.4.1 has a bug

The convention torch_flops gives the totals that torch_flops publishes (ViT-B/16 35,164,979,282, ResNet-50
8,227,340,288). The tool torch_flops counts the following ops wrongly; the convention counts them correctly:

| op | torch_flops 0.4.1 | fxflops |
| --- | --- | --- |
| `nn.AvgPool2d(3)`, `nn.AvgPool3d(3)` | the int 3 is read as a window of 3 elements | windows of 3 x 3 and 3 x 3 x 3 elements |
| `nn.AdaptiveAvgPool*`, `nn.AdaptiveMaxPool*` | the same guessed window size for all outputs | the actual window of each output |
| `F.conv1d`, `F.conv2d`, `F.conv3d` | a bias passed by position is not counted; without a bias, `groups` additions fewer per output | the bias, however it is passed; without a bias, 1 addition fewer per output |
| `F.interpolate` | with `size`, only this size, without batch and channels; otherwise `scale_factor ** batch` | the operations of the mode |
| `Tensor.sum(dim)` | the number of elements is read from the wrong dims | k-1 additions per output |
| `Tensor.pow`, `//` | 0 | 1 per output |
| `F.layer_norm` | not recognized, so the total for timm's ViT is too low | the same as `nn.LayerNorm` |
| `nn.LayerNorm(elementwise_affine=False)`, `bias=False` | weight and bias are counted although they do not exist | only the weight and bias that exist |
| `nn.BatchNorm2d(affine=False)` | raises AttributeError | 2 per output |
| arithmetic of Python numbers (`x.size(1) * 2`) | 1 per operation | 0, except for the comparison in a `torch._assert` |
| `x.matmul(y)`, `x.add(y)`, `F.relu`, most others as method or function | not recognized, so not in the total | the same for every spelling |
| complex numbers | counted as real numbers | 6 per multiplication, 2 per addition |
| a model without parameters | raises StopIteration | the same as with parameters |"""


if __name__ == "__main__":
    README.write_text(markdown(), encoding="utf8")
    print(README)
