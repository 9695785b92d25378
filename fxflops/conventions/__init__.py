"""Conventions: the rules by which other tools count. One file for each tool; it holds what differs from the base formulas."""

from __future__ import annotations

from ..errors import InputError, near
from . import (
    calflops,
    deepspeed,
    deepspeed_macs,
    flops_profiler,
    flops_profiler_macs,
    flowflops_eager,
    flowflops_graph,
    fvcore,
    fxflops,
    ptflops,
    ptflops_aten,
    pytorch_profiler,
    thop,
    torch,
    torch_flops,
    torchinfo,
)
from ._convention import Convention, ModuleRule, macs_alone, nothing

__all__ = [
    "ATTENTIONS",
    "CONVENTIONS",
    "MAIN",
    "Convention",
    "ModuleRule",
    "check_attention",
    "find_convention",
    "list_conventions",
    "macs_alone",
    "nothing",
]

CONVENTIONS: dict[str, Convention] = {
    file.CONVENTION.name: file.CONVENTION
    for file in (
        fxflops,
        torch_flops,
        torch,
        fvcore,
        thop,
        deepspeed,
        deepspeed_macs,
        flops_profiler,
        flops_profiler_macs,
        pytorch_profiler,
        ptflops,
        ptflops_aten,
        torchinfo,
        calflops,
        flowflops_eager,
        flowflops_graph,
    )
}
ATTENTIONS = ("dense", "exact")
MAIN = ("fxflops", "torch_flops", "torch", "fvcore", "thop", "deepspeed")


class Conventions(dict[str, str]):
    """The conventions by name, each with a line on what it counts; printed as two lists, the main ones first."""

    def __repr__(self) -> str:
        width = max(map(len, self))
        lines = [f"{name:<{width}}  {self[name]}" for name in sorted(self, key=lambda name: name not in MAIN)]
        mains = sum(name in MAIN for name in self)
        return "\n".join([*lines[:mains], "", *lines[mains:]]).strip()


def check_attention(attention: str) -> str:
    """Return ``attention``. Raises InputError if it is not one of :data:`ATTENTIONS`."""
    if attention not in ATTENTIONS:
        raise InputError(f"unknown attention {attention!r}: one of {', '.join(map(repr, ATTENTIONS))}")
    return attention


def find_convention(name: str | Convention) -> Convention:
    """Return the convention of this name; InputError for an unknown one lists them all. A Convention is returned as it is."""
    if isinstance(name, Convention):
        return name
    if name not in CONVENTIONS:
        raise InputError(
            f"unknown convention {name!r}{near(str(name), CONVENTIONS)}; one of {', '.join(map(repr, CONVENTIONS))}"
        )
    return CONVENTIONS[name]


def list_conventions() -> Conventions:
    """Return the conventions by name, each with a line on what it counts; the base and the five most used come first.

    >>> list_conventions()["thop"]
    'thop: the modules it knows, 1 per multiply-accumulate without biases; norms 2 or 4 per element'
    """
    return Conventions({name: convention.summary for name, convention in CONVENTIONS.items()})
