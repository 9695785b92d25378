"""flowflops's API based on fxflops. flowflops is OneFlow's counter; this adapter counts torch models.

The counts follow ``convention="flowflops_eager"`` and ``"flowflops_graph"``. As in the original, mode "eager" counts one sample. If a
module has two parents, mode "eager" counts it once under each parent. flowflops's documentation does not show which text flowflops prints
for each layer. This adapter prints ptflops's text, because flowflops is based on ptflops.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TextIO

from torch import nn

from ..api import count
from ..conventions import flowflops_eager
from ..model.inputs import checked_model
from ._arguments import checked_shape, inputs_of, one_of
from ._module_text import trainable
from .ptflops import Tree, flops_to_string, params_to_string, samples

FUNCTIONS = replace(flowflops_eager.CONVENTION, modules=None)


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

    All arguments except these two mean the same as in :func:`.ptflops.get_model_complexity_info`:

        input_res: the shape of the input, including the batch dimension: ``(1, 3, 224, 224)``.
        mode: "eager" counts modules, "graph" counts operators. ``print_per_layer_stat``, ``verbose``, ``ignore_modules``
            and ``custom_modules_hooks`` only affect mode "eager".

    Raises:
        InputError: the model or the arguments do not fit.
        RunError: the model raised.
    """
    model = checked_model(model, AssertionError)
    checked_shape(input_res, "input_res must be a tuple with the shape of the input, such as (1, 3, 224, 224)")
    one_of("mode", mode, ("eager", "graph"))
    args, kwargs = inputs_of(model, input_res, input_constructor, input_res)
    report = count(model, args, kwargs, convention=FUNCTIONS if mode == "eager" else "flowflops_graph")
    flops, params = report.total_flops, trainable(model)
    if mode == "eager":
        tree = Tree(model, ignore_modules, custom_modules_hooks or {}, flowflops_eager.HOOKS.get)
        tree.read(report.scopes, taken := samples(args))
        flops = int(flops / taken + tree.flops(model))
        if verbose:
            tree.warn(ost)
        if print_per_layer_stat:
            print(tree.annotated(flops, params, flops_units, param_units, output_precision), file=ost)
    if not as_strings:
        return flops, params
    return flops_to_string(flops, flops_units, output_precision), params_to_string(
        params, param_units, output_precision
    )
