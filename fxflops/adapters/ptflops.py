"""ptflops's names over fxflops: multiply-adds and parameters of a model, printed module by module.

The counts are of ``convention="ptflops"``, and of a module that stands under two others, as there, once for each. Unlike
the original it leaves training flags, attributes and hooks as they were, and replaces no functions of torch.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, TextIO

import torch
from torch import nn

from ..api import count
from ..conventions import ModuleRule
from ..conventions import ptflops as convention
from ..errors import InputError, of_kind
from ..model.inputs import checked_model
from ..records import Scope, Spec
from ..torch_internals import tree_map
from ._ptflops_aten import Dispatched

Hook = Callable[[Any, Any, Any], Any]
"""As a forward hook: called with a module, its inputs and its output it adds to ``module.__flops__``."""

FUNCTIONS = replace(convention.CONVENTION, modules=None)
FLOPS_UNITS = {"GMac": 10**9, "MMac": 10**6, "KMac": 10**3}
PARAM_UNITS = {"B": 10**9, "M": 10**6, "K": 10**3}


class FLOPS_BACKEND(Enum):
    PYTORCH = "pytorch"
    ATEN = "aten"


def get_model_complexity_info(
    model: nn.Module,
    input_res: tuple[int, ...],
    print_per_layer_stat: bool = True,
    as_strings: bool = True,
    input_constructor: Callable[[tuple[int, ...]], Any] | None = None,
    ost: TextIO = sys.stdout,
    verbose: bool = False,
    ignore_modules: Collection[Any] = [],
    custom_modules_hooks: Mapping[Any, Any] = {},
    backend: str | FLOPS_BACKEND = FLOPS_BACKEND.PYTORCH,
    flops_units: str | None = None,
    param_units: str | None = None,
    output_precision: int = 2,
    backend_specific_config: Mapping[str, Any] = {},
) -> tuple[str | int | None, str | int | None]:
    """Multiply-adds of a forward in eval mode, for one sample, and trainable parameters: ``(macs, params)``.

    Where the model raises, what it raised is printed and ``(None, None)`` returned.

    Args:
        input_res: the shape of one input without its batch dimension, or what ``input_constructor`` is given.
        print_per_layer_stat: print the model to ``ost`` with what each module is charged.
        as_strings: ``("4.13 GMac", "25.56 M")`` rather than numbers.
        input_constructor: makes from ``input_res`` the one input, or a dict of keyword inputs.
        verbose: print to ``ost`` which classes of modules (operators) have no charge of their own.
        ignore_modules: classes of modules that are not counted; of backend "aten" operators such as torch.ops.aten.mm.
        custom_modules_hooks: for classes of modules, a forward hook that adds to ``module.__flops__``; its tensors have
            shapes, but no values. Of backend "aten": for operators, what counts a call from its inputs and its outputs.
        backend: "pytorch" counts modules and functions, "aten" what they dispatch, by a run on the real tensors.
        flops_units: "GMac", "MMac", "KMac" or "Mac"; default: the one that fits.
        param_units: "B", "M" or "K"; default: the one that fits.
        output_precision: digits after the point.
        backend_specific_config: ``{"count_functional": False}`` counts modules alone.
    """
    checked_model(model, AssertionError)
    if not isinstance(input_res, tuple) or not input_res:
        wrong = f"input_res must be a tuple, the shape of one input such as (3, 224, 224), not {input_res!r}"
        raise of_kind(InputError(wrong), AssertionError)
    known = next((each for each in FLOPS_BACKEND if backend in (each, each.value)), None)
    if known is None:
        one_of = ", ".join(repr(each.value) for each in FLOPS_BACKEND)
        raise of_kind(InputError(f"unknown backend {backend!r}: one of {one_of}"), ValueError)
    args, kwargs = inputs_of(model, (1, *input_res), input_constructor, input_res)
    params = trainable(model)
    try:
        if known is FLOPS_BACKEND.ATEN:
            dispatched = Dispatched(ignore_modules, custom_modules_hooks, ost, verbose)
            macs: float = dispatched.run(model, args, kwargs)
            if print_per_layer_stat:
                print(dispatched.text(lambda number: flops_to_string(number, flops_units, output_precision)), file=ost)
        else:
            tree = Tree(model, ignore_modules, custom_modules_hooks)
            if verbose:
                tree.warn(ost)
            report = count(model, args, kwargs, convention=FUNCTIONS)
            tree.read(report.scopes, samples(args))
            macs = tree.flops(model)
            if backend_specific_config.get("count_functional", True):
                macs += report.total_flops
            if print_per_layer_stat:
                print(tree.annotated(macs, params, flops_units, param_units, output_precision), file=ost)
    except Exception as error:
        cause = error.__cause__ or error
        print(
            "Flops estimation was not finished successfully because of the following exception: \n"
            f"{type(cause)}: {cause}"
        )
        traceback.print_exception(error)
        return None, None
    if not as_strings:
        return int(macs), params
    return (
        flops_to_string(int(macs), flops_units, output_precision),
        params_to_string(params, param_units, output_precision),
    )


def inputs_of(
    model: nn.Module,
    shape: tuple[int, ...],
    constructor: Callable[[tuple[int, ...]], Any] | None,
    given: tuple[int, ...],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the model is run with: a tensor of its first parameter's dtype and device, or what a constructor makes."""
    made = filled(model, shape, 0) if constructor is None else constructor(given)
    return ((), made) if isinstance(made, dict) else ((made,), {})


def filled(model: nn.Module, shape: tuple[int, ...], value: float) -> torch.Tensor:
    """A tensor of the dtype and on the device of the model's first parameter."""
    like = next(model.parameters(), torch.empty(0))
    return torch.full(shape, value, dtype=like.dtype, device=like.device)


def samples(args: tuple[Any, ...]) -> int:
    """How many samples the first positional input holds; without one it is said that 1 is assumed."""
    if args:
        return len(args[0])
    print("Warning! No positional inputs found for a module, assuming batch size is 1.")
    return 1


def trainable(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


class Tree:
    """The modules of a model as ptflops sums them: a charged one stands for all in it, others for their children.

    A module that stands under two others is summed twice.
    """

    def __init__(
        self,
        model: nn.Module,
        ignored: Collection[Any] = (),
        hooks: Mapping[Any, Hook] | None = None,
        known: Callable[[type], ModuleRule | None] = convention.hook_of,
    ) -> None:
        self._model = model
        self._ignored = ignored
        self._hooks = hooks or {}
        self._known = known

    def read(self, scopes: Iterable[Scope], samples: int) -> None:
        """Take over what each module is charged in a run of so many samples."""
        modules = dict(self._model.named_modules())
        self._flops = dict.fromkeys(modules.values(), 0)
        for scope in scopes:
            module, hook = modules[scope.path], self._hooks.get(scope.cls)
            if scope.cls not in self._ignored:
                rule = self._known(scope.cls)
                charge = charged_by(hook, module, scope) if hook else rule(scope) if rule else None
                self._flops[module] += charge or 0
        self._samples = samples

    def warn(self, file: TextIO) -> None:
        """Print which classes have no charge, innermost first, but for plain containers."""
        plain = (nn.Sequential, nn.ModuleList, *self._ignored)
        for cls in dict.fromkeys(map(type, innermost_first(self._model))):
            if cls not in plain and not self._is_charged(cls):
                print(f"Warning: module {cls.__name__} is treated as a zero-op.", file=file)

    def flops(self, module: nn.Module) -> float:
        """What the charged modules in this one cost for one sample."""
        return self._sum(module, self._flops.__getitem__) / self._samples

    def params(self, module: nn.Module) -> int:
        """Trainable parameters of the charged modules in this one."""
        return self._sum(module, lambda charged: 0 if type(charged) in self._ignored else trainable(charged))

    def annotated(
        self, flops: float, params: int, flops_units: str | None, param_units: str | None, precision: int
    ) -> str:
        """The model printed as PyTorch does, each module with its part of all ``flops`` and ``params``."""

        def line(module: nn.Module) -> str:
            own_params, own_flops = self.params(module), self.flops(module)
            if own_params > max(params, 1):
                print(TWICE)
            return (
                f"{params_to_string(own_params, param_units, precision)}, {own_params / max(params, 1):.3%} Params, "
                f"{flops_to_string(own_flops, flops_units, precision)}, {own_flops / max(flops, 1):.3%} MACs, "
                f"{module.extra_repr()}"
            )

        return repr(twin(self._model, line))

    def _sum(self, module: nn.Module, value: Callable[[nn.Module], int]) -> int:
        if self._is_charged(type(module)):
            return value(module)
        return sum(self._sum(child, value) for child in module.children())

    def _is_charged(self, cls: type) -> bool:
        return cls in self._hooks or self._known(cls) is not None


TWICE = (
    "Warning: parameters of some of the modules were counted twice because of multiple links to the same modules."
    " Extended per layer parameters num statistic could be unreliable."
)


def innermost_first(module: nn.Module) -> Iterator[nn.Module]:
    """Every module, after its children, at each place where it stands."""
    for child in module.children():
        yield from innermost_first(child)
    yield module


def charged_by(hook: Hook, module: nn.Module, scope: Scope) -> int:
    """What a hook of the user's adds to ``__flops__`` for one call; it is given a twin of the module to write to."""
    shadow = twin(module, nn.Module.extra_repr)
    vars(shadow)["__flops__"] = 0
    hook(shadow, meta(scope.args), meta(scope.out))
    return int(vars(shadow)["__flops__"])


def meta(value: Any) -> Any:
    """Empty meta tensors in place of specs."""
    return tree_map(
        lambda leaf: torch.empty(tuple(leaf), dtype=leaf.dtype, device="meta") if isinstance(leaf, Spec) else leaf,
        value,
        is_leaf=lambda leaf: isinstance(leaf, Spec),
    )


def twin(module: nn.Module, line: Callable[[nn.Module], str]) -> nn.Module:
    """A module that shares all with the given one, but for its settings' line, and so all in it."""
    other = type(module).__new__(type(module))
    parts = {name: None if child is None else twin(child, line) for name, child in module._modules.items()}
    vars(other).update(vars(module), _modules=parts, extra_repr=lambda: line(module))
    return other


def largest_sums(modules: Iterable[nn.Module], value: Callable[[nn.Module], float], most: int) -> dict[str, Any]:
    """The classes of the modules with the largest sums of a value, and these."""
    sums: dict[str, Any] = {}
    for module in modules:
        sums[type(module).__name__] = sums.get(type(module).__name__, 0) + value(module)
    return dict(sorted(sums.items(), key=lambda item: -item[1])[:most])


def printed(module: nn.Module, lines_of: Callable[[nn.Module, str], list[str]], path: str = "") -> str:
    """The module as PyTorch prints it, each at its path with these lines before its children."""
    children = [
        f"({name}): " + printed(child, lines_of, f"{path}.{name}" if path else name).replace("\n", "\n  ")
        for name, child in module._modules.items()
        if child is not None
    ]
    lines = [*lines_of(module, path), *children]
    if len(lines) > 1 or children:
        return "\n  ".join([f"{module._get_name()}(", *lines]) + "\n)"
    return f"{module._get_name()}({''.join(lines)})"


def flops_to_string(flops: float, units: str | None = None, precision: int = 2) -> str:
    """A number of multiply-adds in "GMac", "MMac", "KMac" or "Mac", or in the one that fits: ``429248 -> '429.25 KMac'``."""
    return scaled(flops, FLOPS_UNITS, units, precision, " Mac")


def params_to_string(params_num: int, units: str | None = None, precision: int = 2) -> str:
    """A number of parameters in "B", "M" or "K", or in the one that fits, M or k: ``61706 -> '61.71 k'``."""
    return scaled(params_num, PARAM_UNITS if units else {"M": 10**6, "k": 10**3}, units, precision, "")


def scaled(number: float, sizes: Mapping[str, int], unit: str | None, precision: int, plain: str) -> str:
    """A number in a unit, or in the first that it fills; where that is none of these, as it is with ``plain`` behind it."""
    if unit is None:
        unit = next((name for name, size in sizes.items() if number >= size), "")
    return f"{round(number / sizes[unit], precision)} {unit}" if unit in sizes else f"{number}{plain}"
