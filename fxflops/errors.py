"""The errors of fxflops. Each message says what failed, where, with which shapes, and what to do next."""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from .advice import WORDS, for_argument


class FxflopsError(Exception):
    """The base class of every error that fxflops raises on purpose.

    Its text is the problem, then what to do: the ``words`` of each key in ``advice``, and a ``note``.
    """

    words: Mapping[str, str] = WORDS
    note = ""

    def __init__(self, problem: str = "", *, advice: str = "") -> None:
        super().__init__(problem)
        self.advice = [advice] if advice else []

    @property
    def problem(self) -> str:
        return Exception.__str__(self)  # a subclass may also be a KeyError, whose __str__ would quote it

    def __str__(self) -> str:
        return "".join([self.problem, *(self.words[key] for key in self.advice), self.note])

    def add(self, text: str) -> None:
        """Append text to the problem, before the advice."""
        self.args = (f"{self.problem}{text}", *self.args[1:])


@contextmanager
def worded(words: Mapping[str, str], note: str = "") -> Iterator[None]:
    """Give fxflops errors from this block the words of an interface, and a note at their end."""
    try:
        yield
    except FxflopsError as error:
        error.words, error.note = words, note
        raise


class TraceError(FxflopsError):
    """The requested tracer cannot turn the model into a graph."""


class InputError(FxflopsError):
    """The arguments given to fxflops, or to the model through it, do not fit."""


GOT = r"\b(?:not |got \()"
SEVERAL = r"dict_\w+|set|frozenset|(?:collections\.)?deque|range"
HINTS = {
    "'indices' to have one of the following scalar types": "token ids",
    "<ndarray>": "ndarray",
    rf"{GOT}DataLoader\b|'DataLoader' object": "dataloader",
    rf"{GOT}\w*Dataset\b|'\w*Dataset' object": "dataset",
    rf"{GOT}\w*Image\w*\b|'\w*Image\w*' object": "image",
    rf"{GOT}({SEVERAL})\b|'({SEVERAL})' object": "several",
    rf"{GOT}dict\b|'dict' object": "mapping",
    r"\bgiven \(+-?\d": "numbers",
    r"\bnot list\b|\bgot \(list\b|'list' object": "list",
    r"the same dtype|\btype\b.* should be the same|mixed dtype|expected scalar type": "cast",
    r"\bdevice meta\b|\bmeta and\b|\band meta\b": "meta",
}
"""Advice keys by patterns in the message of the model's own error."""


class RunError(InputError):
    """The model raised an error while it ran on these inputs.

    The original error is the ``__cause__``. The RunError also has its type: ``except ValueError`` catches it if the model
    raised a ValueError. ``node`` is the name of the graph node that raised; "" if the model ran without a graph.
    """

    def __init__(self, message: str, node: str = "") -> None:
        super().__init__(message)
        self.advice = [key for sign, key in HINTS.items() if re.search(sign, message)]
        self.node = node


class OutOfMemoryError(FxflopsError):
    """The device has too little memory to run the model on these inputs.

    It is also a ``torch.OutOfMemoryError``. ``node`` is as in :class:`RunError`. ``live`` are the live tensors, largest
    first, as in ``report.live_at_peak``. In a run that is not observed, such as a timed one, they are only parameters,
    buffers, inputs and gradients.
    """

    def __init__(self, message: str, node: str = "", live: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.node = node
        self.live = tuple(live)


class ClosedFormError(InputError):
    """A model has no closed form, or its closed form is used outside the domain on which it holds."""


class FormulaError(FxflopsError):
    """A formula cannot be registered, or raised when it was applied to a call."""


class MissingFormulaError(FxflopsError):
    """The run made calls that have no formula, and ``strict=True`` was given."""


class DistributedError(FxflopsError):
    """A process of the job did not do its part in time; the message names its rank."""


E = TypeVar("E", bound=FxflopsError)


def of_kind(error: E, *kinds: type[BaseException]) -> E:
    """Return the error with these types added to its class, so that ``except`` clauses for them catch it.

    It is returned unchanged if Python cannot make a class with these bases.
    """
    more = [kind for kind in kinds if not isinstance(error, kind) and not issubclass(kind, NOT_TO_RAISE)]
    try:
        cls = type(type(error).__name__, (type(error), *more), {"__module__": type(error).__module__})
        builtin = next(base for base in cls.__mro__ if base.__module__ == "builtins")
        made: E = builtin.__new__(cls, *error.args)
    except TypeError:
        return error
    made.args = error.args  # OSError does not set them for a class with its own __init__
    vars(made).update(vars(error))
    return made


NOT_TO_RAISE = StopIteration, StopAsyncIteration
"""Errors that Python turns into a RuntimeError when they leave a generator."""


@contextmanager
def errors_of_kind(*kinds: type[BaseException]) -> Iterator[None]:
    """Add these types to the class of fxflops errors that are raised in this block.

    Without ``kinds``, add the type of the error that caused them, with its attributes. Their traceback begins here; their
    cause's traceback keeps the frames of the model and of torch.
    """
    try:
        yield
    except FxflopsError as error:
        cause = error.__cause__
        while isinstance(cause, FxflopsError):
            cause = cause.__cause__
        made = of_kind(error, *(kinds or (type(cause or error),)))
        vars(made).update({**({} if kinds or cause is None else vars(cause)), **vars(made)})
        if cause is not None:
            cause.__traceback__ = without_ours(cause.__traceback__)
        try:
            raise made.with_traceback(None) from error.__cause__
        finally:
            # The error's traceback references this frame. If the frame also referenced the error, the cycle would keep all
            # tensors in the model's frames alive until the garbage collector runs.
            del made, cause


def without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of this package, except for one that raised."""
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    for each in reversed(frames):
        if traceback is None or not Path(each.tb_frame.f_code.co_filename).is_relative_to(PACKAGE):
            traceback = TracebackType(traceback, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return traceback


PACKAGE = Path(__file__).parent


def warn(said: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's code that called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and Path(frame.f_code.co_filename).is_relative_to(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(said, category, stacklevel=level)


def renamed(old: str, new: str) -> None:
    """Warn that a name is deprecated, at the line of the user's code that used it."""
    warn(f"{old} is deprecated: {new}", DeprecationWarning)


def did_you_mean(name: str, known: Iterable[str], most: int = 4) -> str:
    """Return `` (did you mean a or b?)`` with the known names that begin with this one, the shortest first, or resemble it, or contain
    it; "" if there are none."""
    names = list(known)
    longer = sorted((each for each in names if each.lower().startswith(name.lower())), key=len)
    similar = [*longer[:most], *get_close_matches(name, names, most)]
    meant = [*dict.fromkeys(similar)][:most] or [each for each in names if name.lower() in each.lower()][:most]
    if not name or not meant:
        return ""
    *others, last = meant
    return f" (did you mean {', '.join(others)} or {last}?)" if others else f" (did you mean {last}?)"


def not_installed(package: str, extra: str = "") -> InputError:
    """Return the error for a missing package, with the line that installs it; ``extra`` is the extra of fxflops that includes it."""
    of_ours = f", or in a clone of fxflops  pip install -e '.[{extra}]'" if extra else ""
    return InputError(f"{package} is not installed: pip install {package}{of_ours}")


def check_flags(**flags: object) -> None:
    """Raise InputError for an argument that is not a bool: any string, even "no", would count as True."""
    for name, value in flags.items():
        if not isinstance(value, (bool, int)):
            raise of_kind(InputError(f"{name} must be True or False, not {value!r:.80}"), TypeError)


def no_calls(phase: str) -> InputError:
    """Return the error for a phase in which the run made no calls."""
    return InputError(f"the run made no calls in its {phase}", advice=phase if phase in WORDS else "")


def unknown_arguments(
    function: str, names: Collection[str], known: Iterable[str], instead: str, *last: str
) -> InputError:
    """Return the error for arguments that a function does not take.

    It has the advice on each of them, and ``last``; else the ``known`` names that may be meant; else ``instead``.
    """
    said = dict.fromkeys(filter(None, (for_argument(function, name) for name in names)))
    meant = "" if said else "".join(did_you_mean(name, known, most=1) for name in names)
    meant = meant or f": {'; '.join([*said, *last]) if said else instead}"
    return of_kind(InputError(f"{function}() takes no {', '.join(names) or 'inputs'}{meant}"), TypeError)


def name_arguments(cls: type) -> None:
    """Make the public methods of a class answer an unknown argument with the list of those that they take."""
    methods = {name: each for name, each in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_")}
    for name, method in methods.items():
        if not hasattr(method, "__wrapped__"):
            setattr(cls, name, _naming_arguments(method, methods))


def _naming_arguments(method: Callable[..., Any], methods: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Return the method of a class with a better TypeError; ``methods`` are all methods of the class, by name."""

    @wraps(method)
    def named(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except TypeError as error:
            taken = _arguments_of(method)
            unknown = [name for name in kwargs if name not in taken]
            if not unknown or error.__traceback__ is None or error.__traceback__.tb_next:  # the method itself raised it
                raise
            owner = type(self).__name__
            others = [f"{owner}.{name}()" for name, each in methods.items() if unknown[0] in _arguments_of(each)]
            advice = [f"it takes {', '.join(taken) or 'none'}"]
            advice += [f"{', '.join(others)} {'take' if len(others) > 1 else 'takes'} {unknown[0]}"] if others else []
            raise unknown_arguments(f"{owner}.{method.__name__}", unknown, taken, "; ".join(advice)) from None

    return named


def _arguments_of(method: Callable[..., Any]) -> list[str]:
    return [*inspect.signature(method).parameters][1:]
