"""Conventions: what counts how much, as tables over the base formulas: one file each, with what differs."""

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
    "CONVENTIONS",
    "MAIN",
    "Convention",
    "ModuleRule",
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
MAIN = ("fxflops", "torch_flops", "torch", "fvcore", "thop", "deepspeed")


class Conventions(dict[str, str]):
    """Conventions' names, each with a line that says what it counts; shown as two lists, the main ones first."""

    def __repr__(self) -> str:
        width = max(map(len, self))
        lines = [f"{name:<{width}}  {self[name]}" for name in sorted(self, key=lambda name: name not in MAIN)]
        mains = sum(name in MAIN for name in self)
        return "\n".join([*lines[:mains], "", *lines[mains:]]).strip()


def find_convention(name: str | Convention) -> Convention:
    """The convention of this name (or the one given); InputError names those there are."""
    if isinstance(name, Convention):
        return name
    if name not in CONVENTIONS:
        raise InputError(
            f"unknown convention {name!r}{near(str(name), CONVENTIONS)}; one of {', '.join(map(repr, CONVENTIONS))}"
        )
    return CONVENTIONS[name]


def list_conventions() -> Conventions:
    """Each convention's name with a line that says what it counts; the base and the five most used come first.

    >>> list_conventions()["thop"]
    'thop: the modules it knows, 1 per multiply-accumulate without biases; norms 2 or 4 per element'
    """
    return Conventions({name: convention.summary for name, convention in CONVENTIONS.items()})
