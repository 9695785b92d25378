"""ptflops's API based on fxflops: multiply-adds and parameters of a model, printed module by module.

The counts follow ``convention="ptflops"``. As in the original, a module with two parents is counted once under each
parent. Unlike the original, this adapter leaves training flags, attributes and hooks as they were, and replaces no
torch function.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TextIO

from torch import nn

from ..api import count
from ..conventions import ModuleRule
from ..conventions import ptflops as convention
from ..counting.counts import is_by_user_formula
from ..model.inputs import checked_model
from ..model.modules import children_of, named_modules
from ..ops import BASE
from ..ops._apply import tensors
from ..records import Scope
from ._arguments import checked_shape, inputs_of, one_of, refuse_scripts, warn_of_uncounted
from ._module_text import annotated_copy, innermost_first, scaled, trainable
from ._ptflops_aten import Dispatched

Hook = Callable[[Any, Any, Any], Any]
"""A user's hook. It takes a module, the inputs and the output, like a forward hook, and adds the count to ``module.__flops__``."""

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
    """Return two numbers: the multiply-adds of a forward in eval mode, for one sample, and the number of trainable parameters.

    If the model raises an error, print the error and return ``(None, None)``. Like the original, the backend "pytorch" refuses a
    TorchScript model, and skips scripted submodules and direct calls of operators (torch.ops.aten). Unlike the original, it
    warns about the skipped calls.

    Args:
        input_res: the shape of one input without its batch dimension, or the argument of ``input_constructor``.
        print_per_layer_stat: print the model to ``ost`` with the count of each module.
        as_strings: return ``("4.13 GMac", "25.56 M")`` rather than numbers.
        input_constructor: a function that takes ``input_res`` and returns a single input, or a dict of keyword inputs.
        verbose: print to ``ost`` the module classes that have no rule (with backend "aten", the operators without a formula).
        ignore_modules: module classes to skip; with backend "aten", operators to skip (torch.ops.aten.mm).
        custom_modules_hooks: a dict from module classes to forward hooks. A hook is called with meta tensors and adds the count
            to ``module.__flops__``. With backend "aten", a dict from operators to functions, which take the inputs and outputs
            and return the count.
        backend: "pytorch" counts modules and functions; "aten" counts the operators dispatched in a run on the real tensors.
        flops_units: "GMac", "MMac", "KMac" or "Mac"; the default is a suitable unit.
        param_units: "B", "M" or "K"; the default is a suitable unit.
        output_precision: the number of decimals.
        backend_specific_config: ``{"count_functional": False}`` counts modules only.
    """
    model = checked_model(model, AssertionError)
    checked_shape(input_res, "input_res must be a tuple with the shape of one input, such as (3, 224, 224)")
    name = backend.value if isinstance(backend, FLOPS_BACKEND) else backend
    one_of("backend", name, [known.value for known in FLOPS_BACKEND])
    if name == FLOPS_BACKEND.PYTORCH.value:
        refuse_scripts("ptflops", [model], RuntimeError, AttributeError)  # ptflops only skips scripted parts
    args, kwargs = inputs_of(model, (1, *input_res), input_constructor, input_res)
    params, report = trainable(model), None
    try:
        if name == FLOPS_BACKEND.ATEN.value:
            dispatched = Dispatched(ignore_modules, custom_modules_hooks, ost, verbose)
            macs: float = dispatched.run(model, args, kwargs)
            if print_per_layer_stat:
                print(dispatched.text(lambda number: flops_to_string(number, flops_units, output_precision)), file=ost)
        else:
            tree = Tree(model, ignore_modules, custom_modules_hooks or {})
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
    if report is not None:
        warn_of_uncounted(report)
    if not as_strings:
        return int(macs), params
    return (
        flops_to_string(int(macs), flops_units, output_precision),
        params_to_string(params, param_units, output_precision),
    )


def samples(args: tuple[Any, ...]) -> int:
    """Return the number of samples in the first positional input. If there is no positional input, print a warning and return 1."""
    if args:
        return len(args[0])
    print("Warning! No positional inputs found for a module, assuming batch size is 1.")
    return 1


@dataclass(eq=False)
class Tree:
    """The counts of a model's modules, summed as ptflops does.

    The count of a module with a rule or hook is the module's own charge. The count of any other module is the sum over its
    children. A module with two parents counts once under each parent.
    """

    model: nn.Module
    ignored: Collection[Any]
    hooks: Mapping[Any, Hook]
    known: Callable[[type], ModuleRule | None] = convention.hook_of

    def read(self, scopes: Iterable[Scope], samples: int) -> None:
        """Compute the charge of each module from the module calls in a run; ``samples`` is the batch size of the run."""
        modules = dict(named_modules(self.model))
        self._flops = dict.fromkeys(modules.values(), 0)
        for scope in scopes:
            module, hook = modules[scope.path], self.hooks.get(scope.cls)
            if scope.cls not in self.ignored and not is_by_user_formula(scope, BASE):
                rule = self.known(scope.cls)
                charge = charged_by(hook, module, scope) if hook else rule(scope) if rule else None
                self._flops[module] += charge or 0
        self._samples = samples

    def warn(self, file: TextIO) -> None:
        """Print the module classes that have no rule and no hook, except plain containers; inner modules come first."""
        plain = (nn.Sequential, nn.ModuleList, *self.ignored)
        for cls in dict.fromkeys(map(type, innermost_first(self.model))):
            if cls not in plain and not self._is_charged(cls):
                print(f"Warning: module {cls.__name__} is treated as a zero-op.", file=file)

    def flops(self, module: nn.Module) -> float:
        """Return the count of this module for one sample."""
        return self._sum(module, self._flops.__getitem__) / self._samples

    def params(self, module: nn.Module) -> int:
        """Return the number of trainable parameters in this module. Only parameters of modules with a rule or hook are included."""
        return self._sum(module, lambda charged: 0 if type(charged) in self.ignored else trainable(charged))

    def annotated(
        self, flops: float, params: int, flops_units: str | None, param_units: str | None, precision: int
    ) -> str:
        """Return the model's repr, with the counts of each module and their shares of ``flops`` and ``params``."""

        def line(module: nn.Module) -> str:
            own_params, own_flops = self.params(module), self.flops(module)
            if own_params > max(params, 1):
                print(TWICE)
            return (
                f"{params_to_string(own_params, param_units, precision)}, {own_params / max(params, 1):.3%} Params, "
                f"{flops_to_string(own_flops, flops_units, precision)}, {own_flops / max(flops, 1):.3%} MACs, "
                f"{module.extra_repr()}"
            )

        return repr(annotated_copy(self.model, line))

    def _sum(self, module: nn.Module, value: Callable[[nn.Module], int]) -> int:
        if self._is_charged(type(module)):
            return value(module)
        return sum(self._sum(child, value) for child in children_of(module))

    def _is_charged(self, cls: type) -> bool:
        return cls in self.hooks or self.known(cls) is not None


TWICE = (
    "Warning: parameters of some of the modules were counted twice because of multiple links to the same modules."
    " Extended per layer parameters num statistic could be unreliable."
)


def charged_by(hook: Hook, module: nn.Module, scope: Scope) -> int:
    """Return the amount that a user's hook adds to ``__flops__`` for one call. The hook is called with a copy of the module and with
    meta tensors, which have no data."""
    shallow = annotated_copy(module, nn.Module.extra_repr)
    vars(shallow)["__flops__"] = 0
    hook(shallow, tensors(scope.args), tensors(scope.out))
    return int(vars(shallow)["__flops__"])


def flops_to_string(flops: float, units: str | None = None, precision: int = 2) -> str:
    """Return multiply-adds in "GMac", "MMac", "KMac" or "Mac", by default in a suitable unit: ``429248 -> '429.25 KMac'``."""
    return scaled(flops, FLOPS_UNITS, units, precision, " Mac")


def params_to_string(params_num: int, units: str | None = None, precision: int = 2) -> str:
    """Return a number of parameters in ``units``, "B", "M" or "K". Without ``units``, return it in M or k: ``61706 -> '61.71 k'``."""
    return scaled(params_num, PARAM_UNITS if units else {"M": 10**6, "k": 10**3}, units, precision, "")
