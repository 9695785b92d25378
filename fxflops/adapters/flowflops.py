"""flowflops's name over fxflops: OneFlow's counter, for models of torch.

The counts are those of ``convention="flowflops_eager"`` and ``"flowflops_graph"``. As in the original, mode "eager" counts
for one sample, and a module with two parents under each. The documentation of flowflops does not show its text for each
layer: here it is that of ptflops, from which flowflops comes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, TextIO

from torch import nn

from ..api import count
from ..conventions import flowflops_eager
from ..errors import InputError, of_kind
from ..model.inputs import checked_model
from .ptflops import Tree, flops_to_string, inputs_of, params_to_string, samples, trainable

MODES = ("eager", "graph")


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
    mode: str = "eager",
    flops_units: str | None = None,
    param_units: str | None = None,
    output_precision: int = 2,
) -> tuple[str | int, str | int]:
    """Return the FLOPs of a forward in eval mode and the number of trainable parameters: ``(flops, params)``.

    Args:
        input_res: the shape of the input with its batch dimension: ``(1, 3, 224, 224)``.
        print_per_layer_stat: print the model to ``ost`` with the charge of each module, in mode "eager".
        as_strings: ``("4.12 GMac", "25.56 M")`` rather than ``(4121925096, 25557032)``.
        input_constructor: a function from ``input_res`` to the only input, or to a dict of keyword inputs.
        verbose: print the classes of modules without a charge of their own to ``ost``, in mode "eager".
        ignore_modules: classes of modules that are not counted, in mode "eager".
        custom_modules_hooks: for each class of modules, a forward hook that adds to ``module.__flops__``, in mode "eager";
            it is called with meta tensors.
        mode: "eager" counts modules, "graph" operators.
        flops_units: "GMac", "MMac", "KMac" or "Mac"; default: the one that suits the number.
        param_units: "B", "M" or "K"; default: the one that suits the number.
        output_precision: decimals.

    Raises:
        InputError: the model or the arguments do not fit.
        RunError: the model raised.
    """
    checked_model(model, AssertionError)
    if not isinstance(input_res, tuple) or not input_res:
        wrong = f"input_res must be a tuple, the input's shape such as (1, 3, 224, 224), not {input_res!r}"
        raise of_kind(InputError(wrong), AssertionError)
    if mode not in MODES:
        raise of_kind(InputError(f"unknown mode {mode!r}: one of {', '.join(map(repr, MODES))}"), ValueError)
    args, kwargs = inputs_of(model, input_res, input_constructor, input_res)
    report = count(model, args, kwargs, convention=f"flowflops_{mode}")
    flops, params = report.total_flops, trainable(model)
    if mode == "eager":
        tree = Tree(model, ignore_modules, custom_modules_hooks, flowflops_eager.HOOKS.get)
        tree.read(report.scopes, samples(args))
        flops = int(tree.flops(model))
        if verbose:
            tree.warn(ost)
        if print_per_layer_stat:
            print(tree.annotated(flops, params, flops_units, param_units, output_precision), file=ost)
    if not as_strings:
        return flops, params
    return flops_to_string(flops, flops_units, output_precision), params_to_string(
        params, param_units, output_precision
    )
