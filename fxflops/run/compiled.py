"""Run a model compiled by ``torch.compile``, and record its compilation time, graph breaks and recompilations."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from types import CodeType, FrameType
from typing import Any

import torch

from ..torch_internals import COMPILED_CODE, RESUMED_CODE, compilations, compilations_begun
from ..trace.source import is_library
from .compiled_kernels import words_of
from .graph_run import Times
from .outcome import Break, Compiled, Recompilation
from .uncompiled import ran_compiled

OTHER_THREAD = "a run in another thread meanwhile made torch run compiled code eagerly"
SETTLING = 2
"""The number of runs before the observed run of a compiled model: the first may compile, and on CUDA the second records CUDA graphs."""


Functions = dict[CodeType, dict[str, Any]]
"""Functions that ran in Python, as a dict from their code to their globals. Torch may have rewritten the code."""


def first_runs(prepared: Callable[[], Callable[[], Any]]) -> Compiled:
    """Run the compiled model until it is compiled and warm, then once more to record which functions run in Python.

    ``prepared()`` returns a function that runs the compiled model once. A compiler error is returned in ``missing`` instead of raised,
    since the analysis itself runs the model uncompiled.
    """
    compiling, stayed_compiled = 0.0, True
    try:
        for _ in range(SETTLING):
            call, begun, start = prepared(), compilations_begun(), time.perf_counter()
            stayed_compiled &= ran_compiled(call)[1]
            if compilations_begun() != begun:
                compiling += time.perf_counter() - start
        functions, last_was_compiled = ran_compiled(partial(_frames_of, prepared()))
    except Exception as error:
        return Compiled(missing=f"the compiled model raised {words_of(error)}")
    if not (stayed_compiled and last_was_compiled):
        return Compiled(missing=OTHER_THREAD)
    graphs = sum(name.startswith(COMPILED_CODE) for code in functions for name in code.co_names)
    return Compiled(None, None, compiling or None, graphs, _breaks_in(functions), _recompilations_of(functions))


def with_times(compiled: Compiled, times: Times) -> Compiled:
    """Return the record with the compiled model's times, or with the reason why the times are missing."""
    if compiled.missing:
        return compiled
    if times.compiled_latency is None:
        return replace(compiled, missing=OTHER_THREAD)
    return replace(compiled, latency=times.compiled_latency, backward_latency=times.compiled_backward_latency)


def _frames_of(call: Callable[[], Any]) -> Functions:
    """Return the functions that run in Python during a call. Functions inside compiled graphs are not included."""
    functions: Functions = {}

    def on_event(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            functions.setdefault(frame.f_code, frame.f_globals)

    profiler_before = sys.getprofile()
    sys.setprofile(torch.compiler.disable(on_event))  # otherwise torch would compile on_event
    try:
        call()
    finally:
        sys.setprofile(profiler_before)
    return functions


def _breaks_in(functions: Functions) -> tuple[Break, ...]:
    """Return the graph breaks in these functions.

    Code that the compiler rewrote names the functions that resume after a break. A function that the compiler gave up on, e.g.
    because of a break in a loop, runs as written. Torch's records of breaks have the reasons. These records cover all models, so
    records at other places are skipped.
    """
    resumptions: set[tuple[str, int]] = set()
    given_up: list[tuple[str, range]] = []
    for code, variables in functions.items():
        resuming = [variables[name].__code__ for name in code.co_names if name.startswith(RESUMED_CODE)]
        resumptions.update((resumed.co_filename, resumed.co_firstlineno) for resumed in resuming)
        if not resuming and not any(name.startswith(COMPILED_CODE) for name in code.co_names):
            last = max([line for *_, line in code.co_lines() if line], default=0)
            given_up.append((code.co_filename, range(code.co_firstlineno, last + 1)))
    breaks: dict[str, Break] = {}
    explained: set[tuple[str, int]] = set()
    for record in compilations()[0]:
        places = [(frame.filename, frame.lineno) for frame in record.user_stack]
        if not places or not (places[-1] in resumptions or _is_in(places[-1], given_up)):
            continue
        explained.update(places)
        own_places = [place for place in places if not is_library(place[0])] or places
        where = "{}:{}".format(*own_places[-1])
        breaks.setdefault(where, Break(record.reason.partition("\n")[0], where))
    for record in compilations()[1]:  # the only record of a function that the compiler gave up on completely
        failed = record.fail_user_frame_filename, record.fail_user_frame_lineno
        if record.fail_reason and failed[1] is not None and _is_in(failed, given_up):
            where = "{}:{}".format(*failed)
            breaks.setdefault(where, Break(record.fail_reason.partition("\n")[0], where))
    return *breaks.values(), *(Break("", "{}:{}".format(*place)) for place in sorted(resumptions - explained))


def _is_in(place: tuple[str, int], functions: Iterable[tuple[str, range]]) -> bool:
    return any(place[0] == file and place[1] in lines for file, lines in functions)


def _recompilations_of(functions: Functions) -> tuple[Recompilation, ...]:
    """Return the recompilations of these functions so far, including those for other models that use the same functions."""
    begins = {(code.co_filename, code.co_firstlineno) for code in functions}
    recompilations = []
    for record in compilations()[1]:
        begin = record.co_filename, record.co_firstlineno
        if begin in begins and not str(record.compile_id).endswith("/0"):
            reason_text = getattr(record, "recompile_reason", None) or ""  # torch 2.6 lacks it
            guard = reason_text.partition(": ")[2].partition("\n")[0].partition("  #")[0]
            place = re.search(r'File "(.+)", line (\d+)', reason_text)
            recompilations.append(Recompilation(guard.strip(), "{}:{}".format(*(place.groups() if place else begin))))
    return tuple(recompilations)
