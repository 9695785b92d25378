"""The errors fxflops raises: each says what failed, where, with which shapes, and what to do next."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches


class FxflopsError(Exception):
    """Base of every error that fxflops raises on purpose."""


class TraceError(FxflopsError):
    """The model cannot be turned into a graph by the tracer that was asked for."""


class InputError(FxflopsError):
    """The arguments given to fxflops, or to the model through it, do not fit."""


HINTS = {
    "<ndarray>": "a numpy array is no tensor: give torch.from_numpy(array)",
    r"\bnot list\b|'list' object": "a list is one input: give a tuple of inputs, (a, b), or the one alone",
    r"\bdevice meta\b|\bmeta and\b|\band meta\b": "count(model, args) takes a model on meta, whatever its inputs are on",
}
"""What to do, by a sign of it in what a model raised."""


class RunError(InputError):
    """The model raised while it ran on these inputs; the original exception is the ``__cause__``.

    ``node`` is the name of the graph's node that raised, "" where the model ran without a graph.
    """

    def __init__(self, message: str, node: str = "") -> None:
        hints = [f"\n  {hint}" for sign, hint in HINTS.items() if re.search(sign, message)]
        super().__init__("".join([message, *hints]))
        self.node = node


class FormulaError(FxflopsError):
    """A formula cannot be registered, or raised when it was applied to a call."""


class MissingFormulaError(FxflopsError):
    """``strict=True`` and the run made calls that no formula knows."""


def near(name: str, known: Iterable[str]) -> str:
    """``; near: a, b`` for the known names like this one, or else those that it is a part of; "" where none is."""
    names = list(known)
    found = get_close_matches(name, names, n=4) or [each for each in names if name.lower() in each.lower()][:4]
    return f"; near: {', '.join(found)}" if name and found else ""


def not_installed(package: str) -> InputError:
    """The error for a package that is needed, with the line that installs it."""
    return InputError(f"{package} is not installed: pip install {package}")
