"""The errors fxflops raises: each says what failed, where, with which shapes, and what to do next."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TypeVar


class FxflopsError(Exception):
    """Base of every error that fxflops raises on purpose."""

    __str__ = Exception.__str__  # of one that is a KeyError too, which would show its message as a key


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
    """The model raised while it ran on these inputs; the original exception is the ``__cause__``, and its kind is the
    error's too: ``except ValueError`` catches it where the model raised a ValueError.

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


E = TypeVar("E", bound=FxflopsError)


def of_kind(error: E, *kinds: type[BaseException]) -> E:
    """The same error, which ``except`` of these kinds catches too; as it is where Python knows no such class."""
    more = [kind for kind in kinds if not isinstance(error, kind) and not issubclass(kind, NOT_TO_RAISE)]
    try:
        cls = type(type(error).__name__, (type(error), *more), {"__module__": type(error).__module__})
        builtin = next(base for base in cls.__mro__ if base.__module__ == "builtins")
        made: E = builtin.__new__(cls, *error.args)
    except TypeError:
        return error
    vars(made).update(vars(error))
    return made.with_traceback(error.__traceback__)


NOT_TO_RAISE = StopIteration, StopAsyncIteration
"""What a generator cannot let through."""


@contextmanager
def errors_of_kind(*kinds: type[BaseException]) -> Iterator[None]:
    """Errors of fxflops that are raised meanwhile are of these kinds too; without any, of that which caused them, with what
    it holds."""
    try:
        yield
    except FxflopsError as error:
        cause = error.__cause__
        while isinstance(cause, FxflopsError):
            cause = cause.__cause__
        made = of_kind(error, *(kinds or (type(cause or error),)))
        vars(made).update({**({} if kinds or cause is None else vars(cause)), **vars(made)})
        raise made from error.__cause__


def near(name: str, known: Iterable[str]) -> str:
    """``; near: a, b`` for the known names like this one, or else those that it is a part of; "" where none is."""
    names = list(known)
    found = get_close_matches(name, names, n=4) or [each for each in names if name.lower() in each.lower()][:4]
    return f"; near: {', '.join(found)}" if name and found else ""


def not_installed(package: str) -> InputError:
    """The error for a package that is needed, with the line that installs it."""
    return InputError(f"{package} is not installed: pip install {package}")
