"""Define the class Convention, which describes a tool's counting rules, and list all conventions of fxflops.

This module does not import torch. So saved reports and the list of conventions can be shown in an environment without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..records import Cost, FormulaFunction, Operation, Scope

ModuleRule = Callable[[Scope], "int | None"]
"""A function that returns the charge of one call of a module; None if the tool ignores the module."""


ALL, CALLED, NONE = "all", "called", "none"
"""Which operators a tool sees: all dispatched operators, only operators called by the model's own code, or no operators."""


@dataclass(frozen=True, slots=True)
class Convention:
    """The rules of a tool: a name, a one-line summary, and its differences from the base convention, "fxflops".

    ``rows`` are the tool's own formulas. A key is an op, or exactly one module class, function or operator (such as
    ``operator.add``). The formulas are called like formulas in ``formulas=``. The formula for a module class is called with the module and
    then the arguments of its forward. Any other formula is called with the op's parameters by name. A call without a base formula stays
    uncounted, even if ``rows`` has a formula for the call.

    ``of`` returns the cost of an operation that has no formula in ``rows``. ``of`` is called with the base cost and the operation. For
    complex numbers, the base cost is in real operations. By default, the operation has its base cost. Tools that count only the operations
    they list use :func:`nothing`.

    ``modules`` is for tools that hook modules. ``modules`` returns the rule of a module class; None if the tool ignores the class. The
    charge of a rule covers all modules inside the charged module. If a module without children also has a formula in ``rows``, the charge
    is added to the cost from that formula.

    ``registered`` returns the formula that a user registered with the tool itself for an operation. The formula registered with the tool
    overrides everything except formulas that users register with fxflops. The formula registered with the tool also counts operations
    without a base formula.

    Under every convention, MACs come from the base formulas. A formula that a user registers with fxflops replaces the
    convention's formulas, rules and charges. If a user's formula returns a Cost with MACs, the conventions in :data:`IN_MACS` use these
    MACs. Four flags describe what the tool sees:

    - ``operators``: "all": all dispatched operators; "called": operators that the model's code calls directly, as
      torch.export programs do; "none": no operators, for tools that hook modules or replace functions. Operators that a tool
      does not see are listed as missing;
    - ``integers``: the tool counts integer operations like floating-point operations;
    - ``childless``: ``rows`` apply only to calls made in a module without children;
    - ``by_name``: the tool replaces functions by name, and misses functions stored in a module (``self.act = F.gelu``).

    >>> Convention("products", "2 per multiply-accumulate", of=lambda cost, ran: Cost(others=2 * cost.macs)).name
    'products'
    """

    name: str
    summary: str
    rows: Mapping[Any, FormulaFunction] = field(default_factory=dict)
    of: Callable[[Cost, Operation], Cost] | None = None
    modules: Callable[[type], ModuleRule | None] | None = None
    registered: Callable[[Operation], FormulaFunction | None] | None = None
    operators: str = ALL
    integers: bool = False
    childless: bool = False
    by_name: bool = False


def nothing(cost: Cost, ran: Operation) -> Cost:
    """Count 0 FLOPs, but keep the MACs."""
    return Cost(macs=cost.macs)


def macs_alone(cost: Cost, ran: Operation) -> Cost:
    """1 per multiply-accumulate, nothing for anything else."""
    return Cost(macs=cost.macs, others=cost.macs)


CONVENTIONS = {
    "fxflops": "every arithmetic operation of the forward, however it is written; a normalization's mean and variance are not counted",
    "torch_flops": "the totals torch_flops publishes: like fxflops, except for torch._assert and max pools whose kernel size is an int",
    "torch": "torch.utils.flop_counter.FlopCounterMode: 2 per multiply-accumulate of products, convolutions, attention (also on a CPU)",
    "fvcore": "fvcore's FlopCountAnalysis: 1 per multiply-accumulate, plus normalizations, adaptive pooling and upsampling",
    "thop": "thop 0.1.1 (not ultralytics-thop): 1 per multiply-accumulate in modules of known classes, without biases; norms 2 or 4 per element",
    "deepspeed": "DeepSpeed's flops profiler: 2 per multiply-accumulate, plus its own charges for torch functions",
    "deepspeed_macs": "DeepSpeed's flops profiler: the MACs it prints beside its flops",
    "ptflops": 'ptflops\'s "pytorch" backend: multiply-accumulates and elementwise operations of known modules and functions',
    "ptflops_aten": 'ptflops\'s "aten" backend: multiply-accumulates of mm, addmm, bmm and convolution, and their biases',
    "torchinfo": "torchinfo's mult-adds: parameters of each leaf module times the batch size (RNNs: batch x time; convolutions: all output sizes except the channels)",
    "calflops": "calflops: like flops_profiler, except that mm and bmm are free and RNN steps differ",
    "flops_profiler": "flops-profiler: DeepSpeed's profiler of 2023, where operators (x @ y) and attention are free",
    "flops_profiler_macs": "flops-profiler: the MACs it prints beside its flops",
    "pytorch_profiler": "pytorch-profiler: multiply-adds and some pointwise operations of modules without children",
    "flowflops_eager": 'OneFlow\'s flowflops, mode "eager": multiply-accumulates and elementwise operations of hooked modules',
    "flowflops_graph": "OneFlow's flowflops, mode \"graph\": multiply-accumulates and elementwise operations of its graph's operators",
}
"""The name of each convention with its one-line summary. The rules are in the file with the convention's name."""
OF_MACS = {
    "fvcore": "FLOPs",
    **dict.fromkeys(
        ("thop", "deepspeed_macs", "flops_profiler_macs", "pytorch_profiler", "ptflops", "ptflops_aten"), "MACs"
    ),
    "torchinfo": "mult-adds",
    **dict.fromkeys(("flowflops_eager", "flowflops_graph"), "FLOPs"),
}
"""The conventions that count 1 per multiply-accumulate, and the word by which each tool calls its number."""

SEES_BACKWARD = frozenset(["fxflops", "torch_flops", "torch", "ptflops_aten", "flowflops_graph"])
"""The conventions whose tools see all dispatched operators, also those of a backward pass. If such a convention counts 0 FLOPs for a
backward pass, this is its count; for other conventions, the count is unknown."""


def title_of(convention: str) -> str:
    """Return the column title for a convention's count. The title is "FLOPs" or, to distinguish it from the report's own MACs, e.g. "thop MACs"."""
    return f"{convention} {OF_MACS[convention]}" if convention in OF_MACS else "FLOPs"


BASE_MACS = Convention("fxflops MACs", "1 per multiply-accumulate", of=macs_alone, integers=True)
"""The report's own MACs as a convention, for comparison with the conventions in :data:`OF_MACS`."""
IN_MACS = {*OF_MACS, BASE_MACS.name}
"""The names of all conventions that count 1 per multiply-accumulate, including :data:`BASE_MACS`."""
