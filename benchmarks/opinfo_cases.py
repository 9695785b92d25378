"""Make cases from torch's own databases: each operator with its samples and spellings, each module and each optimizer."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

DTYPES = torch.float32, torch.complex64, torch.int64, torch.bool
"""The dtypes of samples, where an operator supports them. Dtypes after the first get half as many samples."""
Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


class Calls(nn.Module):
    """A model that makes one call. Its inputs are the tensors among the arguments; the other arguments are fixed."""

    def __init__(self, function: Callable[..., Any], leaves: list[Any], structure: Any) -> None:
        super().__init__()
        self.function = function
        self.leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.structure = structure

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = [*self.leaves]
        for i, tensor in zip(self.places, tensors, strict=True):
            leaves[i] = tensor
        args, kwargs = tree_unflatten(leaves, self.structure)
        return self.function(*args, **kwargs)


@dataclass
class Case:
    """A model with its inputs, which ``make`` makes anew each time. ``spellings`` are other ways to write the same call.

    ``learns`` says whether to check the backward pass, ``maps`` whether to check vmap. ``compiles`` is True if torch compiles the
    functions unless a dispatch mode is on.
    """

    name: str
    make: Callable[[], Made]
    spellings: dict[str, Callable[[], Made]] = field(default_factory=dict)
    learns: bool = False
    maps: bool = False
    compiles: bool = False
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None


def entries() -> dict[str, Any]:
    """Return the entries of all databases, by "database/name". Repeated names are numbered."""
    import torch.testing._utils
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db
    from torch.testing._internal.custom_op_db import custom_op_db
    from torch.testing._internal.hop_db import hop_db
    from torch.testing._internal.opinfo import core

    # The wrappers of random operators save the generator's state in a tensor, which would count as the operator's memory.
    torch.testing._utils.freeze_rng_state = contextlib.nullcontext
    # For each sample, this reads the source of all frames on the stack to find a unittest method. No unittest runs here.
    common_utils.extract_test_fn = core.extract_test_fn = lambda: None
    found: dict[str, Any] = {}
    for database, infos in {
        "op": op_db, "custom_op": custom_op_db, "hop": hop_db, "module": module_db, "optim": optim_db
    }.items():  # fmt: skip
        for info in infos:
            name = getattr(info, "full_name", None) or getattr(info, "formatted_name", None) or _class_of(info).__name__
            if database in ("op", "custom_op", "hop"):
                name = f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name
            key = f"{database}/{name}"
            numbers = (key if i == 1 else f"{key} #{i}" for i in itertools.count(1))
            found[next(number for number in numbers if number not in found)] = info
    return found


def _class_of(info: Any) -> Any:
    return getattr(info, "module_cls", None) or info.optim_cls


def cases(key: str, info: Any, most: int) -> Iterator[Case]:
    """Yield the cases of an entry: at most ``most`` per dtype, spread evenly over its samples."""
    database = key.partition("/")[0]
    if database == "optim":
        yield from _optimizers(info)
    elif database == "module":
        for training in (False, True):
            yield from _modules(info, most, training)
    else:
        for dtype in (dtype for dtype in DTYPES if dtype in info.supported_dtypes("cpu")):
            for case in _operators(info, dtype, most if dtype is DTYPES[0] else (most + 1) // 2):
                case.compiles = database == "hop"
                yield case


def chosen(items: list[Any], most: int) -> list[tuple[int, Any]]:
    """Return at most ``most`` of the items with their indices, spread evenly."""
    numbers = dict.fromkeys(i * len(items) // most for i in range(min(most, len(items)))) if most < len(items) else None
    return [(i, items[i]) for i in (numbers or range(len(items)))]


def _operators(info: Any, dtype: torch.dtype, most: int) -> Iterator[Case]:
    torch.manual_seed(0)
    short = str(dtype).removeprefix("torch.")
    try:
        samples = chosen(list(info.sample_inputs("cpu", dtype, requires_grad=False)), most)
    except (RuntimeError, ValueError):  # for some dtypes that the database lists, its own samples do not work
        return
    learns = info.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    for number, sample in samples:
        given = (sample.input, *sample.args), sample.kwargs
        case = Case(f"{short} #{number}", _call(info.op, given), learns=learns, maps=True)
        for spelling, function in _spellings(info, sample).items():
            case.spellings[spelling] = _call(function, given)
        if info.supports_out:
            with contextlib.suppress(Exception):
                out = info.op(*_cloned(given[0]), **_cloned(given[1]))
                out = tree_map_only(torch.Tensor, torch.empty_like, out)
                case.spellings["out="] = _call(info.op, (given[0], {**given[1], "out": out}))
        yield case


def _spellings(info: Any, sample: Any) -> dict[str, Callable[..., Any]]:
    variants = {
        "method": info.method_variant,
        "in place": info.inplace_variant,
        "operator": info.operator_variant,
        "operator in place": info.inplace_operator_variant,
    }
    for alias in info.aliases:
        variants |= {
            alias.name: alias.op,
            f"method {alias.name}": alias.method_variant,
            f"{alias.name} in place": alias.inplace_variant,
        }
    broadcasts = sample.broadcasts_input
    return {name: way for name, way in variants.items() if way is not None and not (broadcasts and "in place" in name)}


def _call(function: Callable[..., Any], given: Any) -> Callable[[], Made]:
    """Return a function that makes a model of the call, with fresh copies of the tensors."""

    def make() -> Made:
        leaves, structure = tree_flatten(_cloned(given))
        tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        return Calls(function, leaves, structure), tensors, {}

    return make


def _cloned(value: Any) -> Any:
    """Return the value with copies of its tensors that keep their strides."""
    return tree_map_only(torch.Tensor, _copy, value)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.is_nested or type(tensor) is not torch.Tensor:
        return tensor.detach().clone()
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor.detach())


def _modules(info: Any, most: int, training: bool) -> Iterator[Case]:
    torch.manual_seed(0)
    func = info.module_inputs_func
    inputs = func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=training)
    for number, module_input in chosen([each for each in inputs if each.forward_input is not None], most):

        def make(given: Any = module_input) -> Made:
            torch.manual_seed(1)
            built = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs).train(training)
            return built, tuple(_cloned(given.forward_input.args)), _cloned(given.forward_input.kwargs)

        yield Case(f"{'train' if training else 'eval'} #{number}", make, learns=training)


def _optimizers(info: Any) -> Iterator[Case]:
    for number, optim_input in enumerate(info.optim_inputs_func("cpu")):

        def make() -> Made:
            torch.manual_seed(1)
            if info.only_supports_sparse_grads:
                return nn.Embedding(5, 4, sparse=True), (torch.tensor([[0, 3], [3, 1]]),), {}
            bias = info.optim_cls is not getattr(torch.optim, "Muon", None)  # Muon takes only matrices
            return nn.Sequential(nn.Linear(3, 4, bias), nn.Tanh(), nn.Linear(4, 2, bias)), (torch.rand(5, 3),), {}

        def optimizer(model: nn.Module, given: Any = optim_input) -> torch.optim.Optimizer:
            built: torch.optim.Optimizer = info.optim_cls(model.parameters(), **given.kwargs)
            return built

        yield Case(f"#{number} {optim_input.desc}", make, learns=True, optimizer=optimizer)
