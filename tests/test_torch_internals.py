"""Private names of torch appear in one file only, and ``import fxflops`` works without the optional ones."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import fxflops
from fxflops import torch_internals
from tests.fresh import Fresh

PACKAGE = Path(fxflops.__file__).parent
FILES = [path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob("*.py"))]
DOOR = "torch_internals.py"
NOT_YET = ()  # fmt: skip
"""Files that still contain some."""
OTHERS = {"_asdict", "_fields", "_make", "_replace", "_getframe", "_current_frames", "_exit"}
"""Names with an underscore that belong to Python: from NamedTuples, sys and os."""


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


@cache
def tree_of(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text(encoding="utf8"))


def defined() -> Iterator[str]:
    """The private names that our own classes and functions have."""
    for file in FILES:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield node.name
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield node.attr
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id


@cache
def ours() -> set[str]:
    return {name for name in defined() if is_private(name)}


ATTRIBUTES = {name for names in torch_internals.ATTRIBUTES.values() for name in names}


def torchs_of(tree: ast.Module) -> set[str]:
    """The names in a file that were imported from torch, or that are torch's own modules."""
    found = {"torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.asname for alias in node.names if alias.asname and alias.name.startswith("torch.")}
    return found


def insides_in(tree: ast.Module) -> Iterator[str]:
    """The private names of torch in a file: imports, names under torch modules, attributes of its objects, module names in strings.

    Operators (``torch.ops.aten._softmax``) are not private: graphs and files refer to them by these names.
    """
    torchs = torchs_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("torch.") and is_private(a.name))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            yield from (name for a in node.names if is_private(name := f"{node.module}.{a.name}"))
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            path = ast.unparse(node)
            of_torch = path.partition(".")[0] in torchs
            known = OTHERS | ours() | ATTRIBUTES if not of_torch else ATTRIBUTES - set(dir(nn.Module))
            if node.attr not in known and not path.startswith("torch.ops."):
                yield path
        elif isinstance(node, ast.Constant) and re.match(r"torch(\.\w+)*\._[a-zA-Z]\S*$", str(node.value)):
            yield node.value


def test_no_other_file_names_torchs_insides() -> None:
    others = [file for file in FILES if file not in (DOOR, *NOT_YET)]
    assert len(others) > 100
    assert {file: names for file in others if (names := [*insides_in(tree_of(file))])} == {}


def test_files_that_still_do_are_listed() -> None:
    assert [file for file in NOT_YET if not [*insides_in(tree_of(file))]] == []
    assert [*insides_in(tree_of(DOOR))]


def test_each_way_to_name_them_is_found() -> None:
    ways = [
        "import torch._dynamo",
        "from torch._ops import OpOverload",
        "from torch.overrides import _get_current_function_mode_stack",
        "torch._C.DisableTorchFunction()",
        "from torch import nn\nnn.Module._call_impl",
        "from torch.nn.modules import module as nn_module\nnn_module._global_forward_hooks",
        "import torch.nn.functional as F\nF._pad",
        "parameter._grad_fn_of",
        "'torch._inductor' in sys.modules",
    ]
    assert [way for way in ways if not [*insides_in(ast.parse(way))]] == []


SAMPLES = {
    nn.Module: nn.Module(),
    torch.Tensor: torch.ones(1),
    torch.UntypedStorage: torch.ones(1).untyped_storage(),
    torch.optim.Optimizer: torch.optim.SGD([torch.ones(1)]),
    torch_internals.OpOverload: torch.ops.aten.add.Tensor,
    torch_internals.OpOverloadPacket: torch.ops.aten.add,
    torch_internals.CustomOpDef: torch.library.custom_op(
        "fxflops_tests::sample", lambda x: x.clone(), mutates_args=(), schema="(Tensor x) -> Tensor"
    ),
}


def test_torchs_objects_have_these_attributes() -> None:
    assert [
        f"{owner.__name__}.{name}"
        for owner, names in torch_internals.ATTRIBUTES.items()
        for name in names
        if not hasattr(SAMPLES[owner], name)
    ] == []


def test_optional_ones_are_there() -> None:
    if absent := sorted({*torch_internals.OPTIONAL} & {*torch_internals.absent()}):
        pytest.skip(f"torch {torch.__version__} has no {', '.join(absent)}: stand-ins are used")


def test_what_is_imported_when_needed_is_there() -> None:
    assert [each.__name__ for each in torch_internals.fake_tensors()] == ["FakeTensor", "FakeTensorMode"]


WITHOUT = """
import operator
import sys
import torch
from torch import nn

for name in [name for name in sys.modules if name.partition(".")[0] == "fxflops"]:
    del sys.modules[name]  # it is imported again, without these names
taken = []
for path in sys.argv[1:]:
    owner, _, name = path.removeprefix("torch.").rpartition(".")
    owner = operator.attrgetter(owner)(torch) if owner else torch
    taken.append((owner, name, getattr(owner, name)))
    delattr(owner, name)
from fxflops.torch_internals import absent
for each in taken:
    setattr(*each)  # torch itself goes on with them
assert {*sys.argv[1:]} <= {*absent()}, absent()

import fxflops
model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(16, 5)), torch.ones(2, 3, 4, 4)
for report in (fxflops.count(model, x), fxflops.count(model, x, backward=True), fxflops.analyze(model, x, repeats=1)):
    print(report.total_macs, report.complete)
"""


def test_the_optional_ones_may_be_absent(fresh: Fresh) -> None:
    there = [name for name in torch_internals.OPTIONAL if name not in torch_internals.absent()]
    ran = fresh.run("-c", WITHOUT, *there)
    n, i, o, positions, kernel, features, classes = 2, 3, 4, 2 * 2, 3 * 3, 16, 5
    macs = n * o * positions * i * kernel + n * features * classes
    assert ran.stdout == f"{macs} True\n" * 3, ran.stderr
