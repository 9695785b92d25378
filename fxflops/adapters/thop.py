"""thop's API based on fxflops: ``profile``, ``profile_origin`` and ``clever_format``.

The counts follow ``convention="thop"``. This is thop 0.1.1, not ultralytics-thop, although both are imported as
``thop``. Unlike the original, these functions leave buffers, hooks and training flags as they were. If a module has several parents, these
functions count it once, under the first parent. The original hooks and counts the module once for each parent. The model runs on real
tensors only if ``custom_ops`` has handlers. Like the original, these functions raise an error for TorchScript modules. These functions warn
about operators that thop does not see, e.g. all operators of a torch.export program. For such operators, the original returns 0 or raises
an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..advice import WORDS
from ..api import count
from ..conventions import thop as rules
from ..errors import worded
from ..model.inputs import checked_model
from ..model.locks import locked_in_mode
from ..model.modules import ByIdentity, all_modules, children_of, modules_of, named_children, unique
from ..model.snapshot import Snapshot
from ..ops import BASE
from ._arguments import refuse_scripts, warn_of_uncounted
from ._module_text import innermost_first, params_of

__all__ = ["clever_format", "default_dtype", "profile", "profile_origin"]

default_dtype = torch.float64
"""The dtype of the buffer ``total_ops``, to which handlers add their counts."""

Handlers = Mapping[type[nn.Module], Callable[[nn.Module, tuple[Any, ...], Any], None]]
Layers = dict[str, tuple[float, float, "Layers"]]
"""A dict from the names of children to their MACs, parameters and own children; empty if a child is charged as a whole."""

PRINTED = {
    rules.zero: "zero_ops",
    rules.convolution: "count_convNd",
    rules.normalization: "count_normalization",
    rules.softmax: "count_softmax",
    rules.adaptive_avg_pool: "count_adap_avgpool",
    rules.linear: "count_linear",
    rules.upsample: "count_upsample",
}
NAMES: dict[type[nn.Module], str] = {
    **{cls: PRINTED[rule] for cls, rule in rules.RULES.items() if rule in PRINTED},
    nn.Sequential: "zero_ops",
    nn.LeakyReLU: "count_relu",
    nn.PReLU: "count_prelu",
    **dict.fromkeys((nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), "count_avgpool"),
    nn.RNNCell: "count_rnn_cell",
    nn.GRUCell: "count_gru_cell",
    nn.LSTMCell: "count_lstm_cell",
    nn.RNN: "count_rnn",
    nn.GRU: "count_gru",
    nn.LSTM: "count_lstm",
}
"""Maps each module class to the name of its rule, as the original prints the name."""


def rule_of(cls: type[nn.Module]) -> str:
    """Return the name of the rule for a class, or of the user's formula for the class; "" if the class has neither."""
    formula = BASE.find_class(cls)[1]
    return NAMES.get(cls) or (
        "" if formula is None or formula.is_ours else str(getattr(formula.function, "__name__", formula.op))
    )


def profile(
    model: nn.Module,
    inputs: Sequence[Any],
    custom_ops: Handlers | None = None,
    verbose: bool = True,
    ret_layer_info: bool = False,
    report_missing: bool = False,
) -> tuple[float, float] | tuple[float, float, Layers]:
    """Return ``(MACs, params)`` of a run in eval mode. Parameters count only if their module is called and its class has a rule.

    Args:
        inputs: the positional inputs.
        custom_ops: a dict from exact classes to functions ``handler(module, inputs, output)``. A handler is called after each call of a
            module of its class, and adds the count to ``module.total_ops``. The children of a module with a handler are not counted.
        verbose: print the rule of each class.
        ret_layer_info: also return the sums of each module: ``{name: (MACs, params, {...})}``.
        report_missing: also print classes without a rule.
    """
    model, handlers = checked_model(model, AttributeError), custom_ops or {}
    if verbose or report_missing:
        _print_rules(innermost_first(model), handlers, report_missing)
    ops, params, layers = _sums(
        model, _charges(model, inputs, handlers, all_modules(model)), ByIdentity([(model, True)])
    )
    return (ops, params, layers) if ret_layer_info else (ops, params)


def profile_origin(
    model: nn.Module,
    inputs: Sequence[Any],
    custom_ops: Handlers | None = None,
    verbose: bool = True,
    report_missing: bool = False,
) -> tuple[float, float]:
    """Return ``(MACs, params)`` like :func:`profile`, but count only modules without children. The number of parameters includes all
    parameters of these modules."""
    model, handlers = checked_model(model, AttributeError), custom_ops or {}
    childless = [module for module in innermost_first(model) if not any(True for _ in children_of(module))]
    if verbose or report_missing:
        _print_rules(childless, handlers, report_missing)
    modules = unique(childless)
    charges = _charges(model, inputs, handlers, modules)
    return float(sum(ops for ops, _ in charges.values())), float(sum(map(params_of, modules)))


def clever_format(nums: float | Iterable[float], format: str = "%.2f") -> str | tuple[str, ...]:
    """Return numbers as text with a unit: ``[4089184256, 25557032] -> ('4.09G', '25.56M')``.

    The units are T, G, M, K, and B for numbers that are not scaled. For a single number, return a single string.
    """
    texts = tuple(_scaled(number, format) for number in (nums if isinstance(nums, Iterable) else (nums,)))
    return texts[0] if len(texts) == 1 else texts


def _scaled(number: float, format: str) -> str:
    sizes = {"T": 1e12, "G": 1e9, "M": 1e6, "K": 1e3}
    unit = next((unit for unit, size in sizes.items() if number > size), "B")
    return format % (number / sizes.get(unit, 1)) + unit


def _charges(
    model: nn.Module, inputs: Sequence[Any], handlers: Handlers, modules: Sequence[nn.Module]
) -> ByIdentity[tuple[float, float | None]]:
    """Return the MACs and parameters of each module. If a module's class has neither a handler nor a rule, the parameters are None."""
    refuse_scripts("thop", model.modules(), RuntimeError, AttributeError)
    with worded({**WORDS, "inputs": "; give several inputs as a tuple, inputs=(a, b)"}):
        report = count(model, tuple(inputs), convention=rules.CONVENTION)
    rows = report.by_module()
    handled = _handled(model, inputs, handlers, [module for module in modules if type(module) in handlers])
    paths, _ = modules_of(model)
    warn_of_uncounted(report, {paths[module] for module in modules if type(module) in handlers})
    charges = ByIdentity[tuple[float, float | None]]()
    for module in modules:
        row, has_rule = rows[paths[module]], type(module) in handlers or rule_of(type(module))
        params = float(params_of(module) if row.calls else 0) if has_rule else None
        charges[module] = handled.get(module, float(row.own.flops)), params
    return charges


def _handled(
    model: nn.Module, inputs: Sequence[Any], handlers: Handlers, modules: Sequence[nn.Module]
) -> ByIdentity[float]:
    """Run the model with handlers on these modules, restore the model's state, and return the counts that the handlers added."""
    if not modules:
        return ByIdentity()
    with torch.no_grad(), locked_in_mode(all_modules(model), "eval"):
        snapshot = Snapshot(all_modules(model), inputs)
        try:
            for module in modules:
                for name in ("total_ops", "total_params"):
                    module._buffers[name] = torch.zeros(1, dtype=default_dtype)
                module.register_forward_hook(handlers[type(module)])
            model(*inputs)
            return ByIdentity((module, float(vars(module)["_buffers"]["total_ops"].item())) for module in modules)
        finally:
            snapshot.rewind()


def _sums(
    module: nn.Module, charges: Mapping[nn.Module, tuple[float, float | None]], met: ByIdentity[bool]
) -> tuple[float, float, Layers]:
    """Return the sums over a module and its children. Like the original, leave out parameters that belong to the module itself."""
    ops, _ = charges[module]
    params: float = 0
    layers: Layers = {}
    for name, child in named_children(module):
        if child in met:
            continue
        met[child] = True
        charge, own = charges[child]
        if own is not None and not isinstance(child, (nn.Sequential, nn.ModuleList)):
            layers[name] = charge, own, {}
        else:
            layers[name] = _sums(child, charges, met)
        ops += layers[name][0]
        params += layers[name][1]
    return ops, params, layers


def _print_rules(modules: Iterable[nn.Module], handlers: Handlers, report_missing: bool) -> None:
    """Print a line for each class: the name of the class's rule, or in red that the class has no rule."""
    for cls in dict.fromkeys(type(module) for module in modules):
        if cls in handlers:
            print(f"[INFO] Customize rule {handlers[cls].__qualname__}() {cls}.")
        elif rule_of(cls):
            print(f"[INFO] Register {rule_of(cls)}() for {cls}.")
        elif report_missing:
            print(
                f"\033[91m[WARN] Cannot find rule for {cls}. Treat it as zero Macs and zero Params.\n\033[00m", end=""
            )
