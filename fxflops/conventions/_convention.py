"""The Convention: a table of the rules by which a tool counts, over the base formulas; and the list of ours.

Torch is not imported for it: a saved report names its convention, and the list is shown without one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..records import Cost, FormulaFunction, Operation, Scope

ModuleRule = Callable[[Scope], "int | None"]
"""A function that returns the charge of one call of a module; None if the tool ignores the module."""


ALL, CALLED, NONE = "all", "called", "none"
"""The operators that a tool sees: those dispatched, those called by the model's own code, or none."""


@dataclass(frozen=True, slots=True)
class Convention:
    """The rules of a tool: a name, a line on what it counts, and its differences from the base, "fxflops".

    ``rows`` are the tool's own formulas, by exact spelling (a module class, a function, an operator such as
    ``operator.add``) or by op. They are called as formulas in ``formulas=`` are: for a module class with the module, then
    the arguments of its forward; otherwise with the op's parameters by name. A call that no base formula counts stays
    uncounted, with a row too.

    ``of`` gives the cost of an operation without a row, from its base cost (in real operations, of complex numbers too) and
    the operation. The default is the base cost; :func:`nothing` is for tools that count only what they name.

    ``modules`` is for tools that hook modules: it returns the rule of a class, None for a class that the tool does not know.
    The charge of a rule is added to the row's cost of a leaf's call, and stands for all modules inside the charged one.

    ``registered`` returns the formula that the tool's own users registered for an operation. It precedes everything but
    formulas of fxflops's users, and counts operations without a base formula too. MACs are those of the base formulas under
    every convention. A user's formula stands for rows, rules and charges; in conventions of :data:`IN_MACS` by the macs of its
    Cost, if it states any. Four flags say what the tool sees:

    - ``operators``: "all" that are dispatched; "called" are those that the model's code calls by itself, as programs of
      torch.export do; "none" is for tools that hook modules or replace functions. What a tool does not see is missing;
    - ``integers``: it counts operations on integers like those on real numbers;
    - ``childless``: rows hold only for calls made in a module without children;
    - ``by_name``: it replaces functions by name, and misses those that a module keeps (``self.act = F.gelu``).

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
"""Our conventions, each with a line on what it counts. The rules are in the file of that name, read at its first use."""
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
    """Return the title of a column of what a convention counts: "FLOPs", or "thop MACs" beside the MACs of the report."""
    return f"{convention} {OF_MACS[convention]}" if convention in OF_MACS else "FLOPs"


BASE_MACS = Convention("fxflops MACs", "1 per multiply-accumulate", of=macs_alone, integers=True)
"""The MACs of a report, for comparison with these."""
IN_MACS = {*OF_MACS, BASE_MACS.name}
"""All that count 1 per multiply-accumulate."""
