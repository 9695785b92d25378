"""Conventions: other tools' counting rules. Each tool has a file with its differences from the base formulas.

A convention's file is imported when the convention is first used. Listing the names and summaries needs neither these
files nor torch.
"""

from __future__ import annotations

import re
from importlib import import_module

from ..errors import InputError, did_you_mean
from ._convention import (
    ALL,
    BASE_MACS,
    CALLED,
    CONVENTIONS,
    IN_MACS,
    OF_MACS,
    SEES_BACKWARD,
    Convention,
    ModuleRule,
    macs_alone,
    nothing,
    title_of,
)

__all__ = [
    "ALL",
    "ATTENTIONS",
    "BASE_CONVENTION",
    "BASE_MACS",
    "CALLED",
    "CONVENTIONS",
    "GONE",
    "IN_MACS",
    "OF_MACS",
    "SEES_BACKWARD",
    "Convention",
    "ModuleRule",
    "check_attention",
    "check_convention",
    "find_convention",
    "list_conventions",
    "macs_alone",
    "nothing",
    "title_of",
]

BASE_CONVENTION = "fxflops"
"""The convention that changes no formula."""
ATTENTIONS = ("dense", "exact")
GONE = ("pytorch_profiler", "flowflops_eager", "flowflops_graph")
"""The conventions of tools that can no longer be installed. Lists of conventions show them last."""


TOOLS = {
    "flopcounter": "torch",
    "flopcountermode": "torch",
    "pytorch": "torch",
    "flopcountanalysis": "fvcore",
    "flopsprofiler": "deepspeed",
    "torchflopsbyfx": "torch_flops",
}
"""Maps other names of tools, in lowercase letters, to their conventions."""


class Conventions(dict[str, str]):
    """The name of each convention with its one-line summary. Tools that can no longer be installed are printed last, in a separate group."""

    def __repr__(self) -> str:
        width = max(map(len, self))
        lines = {name: f"{name:<{width}}  {said}" for name, said in self.items()}
        gone = [lines.pop(name) for name in GONE if name in lines]
        return "\n".join([*lines.values(), *(["", "tools that can no longer be installed:", *gone] if gone else [])])


def check_attention(attention: str) -> str:
    """Return ``attention``. Raises InputError if it is not one of :data:`ATTENTIONS`."""
    if attention not in ATTENTIONS:
        raise InputError(f"unknown attention {attention!r}; expected one of {', '.join(map(repr, ATTENTIONS))}")
    return attention


def check_convention(name: str) -> str:
    """Return ``name``. Raises InputError for an unknown convention; the error lists all conventions."""
    if name not in CONVENTIONS:
        raise InputError(
            f"unknown convention {name!r}{_meant(str(name))}; expected one of {', '.join(map(repr, CONVENTIONS))}"
        )
    return name


def _meant(name: str) -> str:
    """Return a hint for an unknown name: the convention of the tool with that name, or conventions with similar names."""
    word = re.sub("[^a-z]", "", name.lower())
    if word in ("torchprofiler", "withflops"):
        return ": there is no convention for torch.profiler's with_flops, which counts only products, convolutions, add and mul of some shapes; use fxflops.read_trace to count a torch.profiler trace"
    convention = TOOLS.get(word)
    return did_you_mean(name, CONVENTIONS) if convention is None else f" (did you mean {convention}?)"


def find_convention(name: str | Convention) -> Convention:
    """Return the convention with this name; return a Convention unchanged. Raises InputError as :func:`check_convention` does."""
    if isinstance(name, Convention):
        return name
    found: Convention = import_module(f".{check_convention(name)}", __name__).CONVENTION
    return found


def list_conventions() -> Conventions:
    """Return the name of each convention with its one-line summary. Tools that can no longer be installed come last.

    >>> list_conventions()["thop"]
    'thop 0.1.1 (not ultralytics-thop): 1 per multiply-accumulate in modules of known classes, without biases; norms 2 or 4 per element'
    """
    return Conventions(CONVENTIONS)
