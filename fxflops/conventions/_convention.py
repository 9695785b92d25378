"""The Convention: a tool's counting rules, on top of the base formulas; and the list of our conventions.

Importing it does not import torch, so saved reports and the list are shown without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..records import Cost, FormulaFunction, Operation, Scope

ModuleRule = Callable[[Scope], "int | None"]
"""A function that returns the charge of one call of a module; None if the tool ignores the module."""


ALL, CALLED, NONE = "all", "called", "none"
"""The operators that a tool sees: all dispatched ones, those called by the model's own code, or none."""


@dataclass(frozen=True, slots=True)
class Convention:
    """The rules of a tool: a name, a one-line summary, and its differences from the base, "fxflops".

    ``rows`` are the tool's own formulas, by exact spelling (a module class, a function, an operator such as
    ``operator.add``) or by op. They are called like formulas in ``formulas=``: for a module class with the module, then
    the arguments of its forward; otherwise with the op's parameters by name. A call that no base formula counts stays
    uncounted, even if it has a row.

    ``of`` returns the cost of an operation without a row, from its base cost (in real operations, even for complex numbers)
    and the operation. The default is the base cost; :func:`nothing` is for tools that count only operations they list.

    ``modules`` is for tools that hook modules: it returns the rule of a class, None for a class that the tool ignores.
    A rule's charge is added to the row's cost of a leaf's call, and covers all modules inside the charged one.

    ``registered`` returns the formula that the tool's own users registered for an operation. It overrides everything but
    formulas of fxflops's users, and also counts operations without a base formula. Under every convention, MACs come from
    the base formulas. A user's formula replaces rows, rules and charges; conventions in :data:`IN_MACS` use the macs of its
    Cost, if it has any. Four flags describe what the tool sees:

    - ``operators``: "all" dispatched ones; "called": those that the model's code calls directly, as torch.export programs
      do; "none": for tools that hook modules or replace functions. Operators that a tool does not see are listed as missing;
    - ``integers``: it counts integer operations like real ones;
    - ``childless``: rows apply only to calls made in a module without children;
    - ``by_name``: it replaces functions by name, and misses those stored in a module (``self.act = F.gelu``).

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
    """Count nothing; keep the MACs."""
    return Cost(macs=cost.macs)


def macs_alone(cost: Cost, ran: Operation) -> Cost:
    """1 per multiply-accumulate, nothing for anything else."""
    return Cost(macs=cost.macs, others=cost.macs)


CONVENTIONS = {
    "fxflops": "every arithmetic operation of the forward, however it is written; a normalization's mean and variance are not counted",
    "torch_flops": "the totals torch_flops publishes: like fxflops, except for int kernel sizes of max pools and torch._assert",
    "torch": "torch.utils.flop_counter.FlopCounterMode: 2 per multiply-accumulate of products, convolutions, attention (also on a CPU)",
    "fvcore": "fvcore's FlopCountAnalysis: 1 per multiply-accumulate, plus normalizations, adaptive pooling and upsampling",
    "thop": "thop 0.1.1 (not ultralytics-thop): the modules it knows, 1 per multiply-accumulate without biases; norms 2 or 4 per element",
    "deepspeed": "DeepSpeed's flops profiler: 2 per multiply-accumulate, plus its own charges for torch functions",
    "deepspeed_macs": "DeepSpeed's flops profiler: the MACs it prints beside its flops",
    "ptflops": 'ptflops\'s "pytorch" backend: hooked modules, and all functions called',
    "ptflops_aten": 'ptflops\'s "aten" backend: multiply-accumulates of mm, addmm, bmm and convolution, and their biases',
    "torchinfo": "torchinfo's mult-adds: parameters of each leaf module times the batch size (RNNs: batch x time; convolutions: every output size but the channels)",
    "calflops": "calflops: like flops_profiler, except that mm and bmm are free and RNN steps differ",
    "flops_profiler": "flops-profiler: DeepSpeed's profiler of 2023, where operators (x @ y) and attention are free",
    "flops_profiler_macs": "flops-profiler: the MACs it prints beside its flops",
    "pytorch_profiler": "pytorch-profiler: multiply-adds and some pointwise operations of modules without children",
    "flowflops_eager": 'OneFlow\'s flowflops, mode "eager": multiply-accumulates and elementwise operations of hooked modules',
    "flowflops_graph": "OneFlow's flowflops, mode \"graph\": multiply-accumulates and elementwise operations of its graph's operators",
}
"""Our conventions, with one-line summaries. The rules are in the file of that name, imported at first use."""
OF_MACS = {
    "fvcore": "FLOPs",
    **dict.fromkeys(
        ("thop", "deepspeed_macs", "flops_profiler_macs", "pytorch_profiler", "ptflops", "ptflops_aten"), "MACs"
    ),
    "torchinfo": "mult-adds",
    **dict.fromkeys(("flowflops_eager", "flowflops_graph"), "FLOPs"),
}
"""The conventions that count 1 per multiply-accumulate, each with the tool's word for its number."""


def title_of(convention: str) -> str:
    """Return the column title for a convention's count: "FLOPs", or e.g. "thop MACs", beside the report's own MACs."""
    return f"{convention} {OF_MACS[convention]}" if convention in OF_MACS else "FLOPs"


BASE_MACS = Convention("fxflops MACs", "1 per multiply-accumulate", of=macs_alone, integers=True)
"""The report's own MACs as a convention, to compare those in :data:`OF_MACS` with."""
IN_MACS = {*OF_MACS, BASE_MACS.name}
"""All conventions that count 1 per multiply-accumulate."""
