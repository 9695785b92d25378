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

    The message is the problem, followed by advice and a ``note``. ``advice`` lists keys, and ``words`` has the text for each key.
    """

    words: Mapping[str, str] = WORDS
    note = ""

    def __init__(self, problem: str = "", *, advice: str = "") -> None:
        super().__init__(problem)
        self.advice = [advice] if advice else []

    @property
    def problem(self) -> str:
        return Exception.__str__(self)  # an error that is also a KeyError would otherwise print its message in quotes

    def __str__(self) -> str:
        return "".join([self.problem, *(self.words[key] for key in self.advice), self.note])

    def add(self, text: str) -> None:
        """Append text to the problem; the advice comes after this text."""
        self.args = (f"{self.problem}{text}", *self.args[1:])


@contextmanager
def worded(words: Mapping[str, str], note: str = "") -> Iterator[None]:
    """In this block, let fxflops errors print their advice in the words of one interface, followed by the note. Each interface has its own words."""
    try:
        yield
    except FxflopsError as error:
        error.words, error.note = words, note
        raise


class TraceError(FxflopsError):
    """The requested tracer cannot turn the model into a graph."""


class NeedsRealTensors(NotImplementedError):
    """A run on meta tensors needs the values of real tensors. A count then runs the model on its real tensors, also if the model catches this error.

    It is no FxflopsError: the model gets it where torch would raise NotImplementedError.
    """


class InputError(FxflopsError):
    """An argument of fxflops, or an input for the model, is invalid."""


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
"""The key of the advice to give, for each pattern that may occur in the message of the model's error."""


class RunError(InputError):
    """The model raised an error while it ran on these inputs.

    The model's error is the ``__cause__``. The RunError also has the type of the model's error: ``except ValueError`` catches the RunError
    if the model raised a ValueError. ``node`` is the name of the graph node in which the error was raised; "" if the model ran without a graph.
    """

    def __init__(self, message: str, node: str = "") -> None:
        super().__init__(message)
        self.advice = [key for sign, key in HINTS.items() if re.search(sign, message)]
        self.node = node


class OutOfMemoryError(FxflopsError):
    """The device has too little memory to run the model on these inputs.

    ``except torch.OutOfMemoryError`` also catches this error. ``node`` is the name of the graph node that raised the error, as in
    :class:`RunError`. ``live`` lists the live tensors, largest first, as in ``report.live_at_peak``. If the run was not observed, as in a
    run for timing, ``live`` lists only parameters, buffers, inputs and gradients.
    """

    def __init__(self, message: str, node: str = "", live: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.node = node
        self.live = tuple(live)


class ClosedFormError(InputError):
    """The model has no closed form, or its closed form was evaluated for sizes for which it does not hold."""


class FormulaError(FxflopsError):
    """A formula cannot be registered, or the formula raised an error when it was applied to a call."""


class MissingFormulaError(FxflopsError):
    """Some operations that the model called have no formula, and ``strict=True`` was given."""


class DistributedError(FxflopsError):
    """A process of a distributed job did not call ``report.gather()`` in time. The message names the rank of this process."""


E = TypeVar("E", bound=FxflopsError)


def of_kind(error: E, *kinds: type[BaseException]) -> E:
    """Add these types to the class of the error, so that ``except`` clauses for these types catch the error; return the error.

    The error is returned unchanged if Python cannot create a class with these bases.
    """
    more = [kind for kind in kinds if not isinstance(error, kind) and not issubclass(kind, NOT_TO_RAISE)]
    try:
        cls = type(type(error).__name__, (type(error), *more), {"__module__": type(error).__module__})
        builtin = next(base for base in cls.__mro__ if base.__module__ == "builtins")
        made: E = builtin.__new__(cls, *error.args)
    except TypeError:
        return error
    made.args = error.args  # OSError does not set args if a subclass has its own __init__
    vars(made).update(vars(error))
    return made


NOT_TO_RAISE = StopIteration, StopAsyncIteration
"""Types that are not added to an error: if a generator raises such an error, Python replaces it by a RuntimeError."""


@contextmanager
def errors_of_kind(*kinds: type[BaseException]) -> Iterator[None]:
    """Add these types to the class of every fxflops error that the block raises.

    If ``kinds`` is empty, add the type and the attributes of the error that caused the fxflops error. The traceback of the fxflops error
    starts in this function. The traceback of its cause keeps the frames of the model and of torch.
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
            # The error's traceback references this frame. If the frame also referenced the error, this would be a reference cycle.
            # The cycle would keep all tensors in the model's frames alive until the garbage collector runs.
            del made, cause


def without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of this package. The last frame, which raised the error, is always kept."""
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
    """Issue a warning that shows the line of the user's code that called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and Path(frame.f_code.co_filename).is_relative_to(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(said, category, stacklevel=level)


def renamed(old: str, new: str) -> None:
    """Warn that a name is deprecated. The warning shows the line of the user's code that used the name."""
    warn(f"{old} is deprecated: {new}", DeprecationWarning)


def did_you_mean(name: str, known: Iterable[str], most: int = 4) -> str:
    """Return `` (did you mean a or b?)`` with the known names that are most similar, at most ``most`` of them; "" if no known name is similar.

    Names that begin with ``name`` come first, the shortest first, then names that resemble ``name``. Only if there are neither, names that
    contain ``name`` are suggested.
    """
    names = list(known)
    longer = sorted((each for each in names if each.lower().startswith(name.lower())), key=len)
    similar = [*longer[:most], *get_close_matches(name, names, most)]
    meant = [*dict.fromkeys(similar)][:most] or [each for each in names if name.lower() in each.lower()][:most]
    if not name or not meant:
        return ""
    *others, last = meant
    return f" (did you mean {', '.join(others)} or {last}?)" if others else f" (did you mean {last}?)"


def not_installed(package: str, extra: str = "") -> InputError:
    """Return the error for a missing package, with the command that installs the package. ``extra`` is the extra of fxflops that includes
    the package."""
    of_ours = f", or in a clone of fxflops  pip install -e '.[{extra}]'" if extra else ""
    return InputError(f"{package} is not installed: pip install {package}{of_ours}")


def check_flags(**flags: object) -> None:
    """Raise InputError for an argument that is not a bool. Without this check any string, even "no", would be taken as True."""
    for name, value in flags.items():
        if not isinstance(value, (bool, int)):
            raise of_kind(InputError(f"{name} must be True or False, not {value!r:.80}"), TypeError)


def no_calls(phase: str) -> InputError:
    """Return the error to raise if the run made no calls in a phase."""
    return InputError(f"the run made no calls in its {phase}", advice=phase if phase in WORDS else "")


def unknown_arguments(
    function: str, names: Collection[str], known: Iterable[str], instead: str, *last: str
) -> InputError:
    """Return the error for arguments that a function does not take.

    The message has the advice on each argument, followed by ``last``. Without advice it suggests similar ``known`` names. Without similar
    names it ends with ``instead``.
    """
    said = dict.fromkeys(filter(None, (for_argument(function, name) for name in names)))
    meant = "" if said else "".join(did_you_mean(name, known, most=1) for name in names)
    meant = meant or f": {'; '.join([*said, *last]) if said else instead}"
    return of_kind(InputError(f"{function}() takes no {', '.join(names) or 'inputs'}{meant}"), TypeError)


def name_arguments(cls: type) -> None:
    """Wrap the public methods of a class. If a method is called with an unknown argument, the error then lists the arguments of the method."""
    methods = {name: each for name, each in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_")}
    for name, method in methods.items():
        if not hasattr(method, "__wrapped__"):
            setattr(cls, name, _naming_arguments(method, methods))


def _naming_arguments(method: Callable[..., Any], methods: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Wrap a method of a class. If the method is called with an unknown argument, the TypeError then lists the method's arguments.

    ``methods`` has all methods of the class, by name. The error uses it to name the methods that do take the unknown argument.
    """

    @wraps(method)
    def named(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except TypeError as error:
            taken = _arguments_of(method)
            unknown = [name for name in kwargs if name not in taken]
            # Raise the error again if all arguments are known, or if the error comes from code inside the method.
            if not unknown or error.__traceback__ is None or error.__traceback__.tb_next:
                raise
            owner = type(self).__name__
            others = [f"{owner}.{name}()" for name, each in methods.items() if unknown[0] in _arguments_of(each)]
            advice = [f"it takes {', '.join(taken) or 'none'}"]
            advice += [f"{', '.join(others)} {'take' if len(others) > 1 else 'takes'} {unknown[0]}"] if others else []
            raise unknown_arguments(f"{owner}.{method.__name__}", unknown, taken, "; ".join(advice)) from None

    return named


def _arguments_of(method: Callable[..., Any]) -> list[str]:
    return [*inspect.signature(method).parameters][1:]
