"""``fxflops profile``: show what a script computes and where its time goes."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError
from .interrupts import end
from .options import examples
from .shown import note, write

if TYPE_CHECKING:
    from ..profiled_script import ScriptProfile

EXAMPLES = examples(
    "fxflops profile train.py",
    "fxflops profile --detail steps train.py",
    "fxflops profile --detail steps --lines --save train.html train.py --epochs 1 --batch-size 8",
)
RUN = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
"""Settings for typer that pass the arguments after the script's name on to the script."""
INTERRUPTED = 130
"""The exit code of a process that Ctrl-C has ended, as in a shell."""
PACKAGE = str(Path(__file__).resolve().parents[1])


def profile(
    context: typer.Context,
    script: Annotated[
        Path,
        typer.Argument(
            metavar="SCRIPT",
            help="A Python file. Arguments after the file name go to the script, so the options below must come before it.",
        ),
    ],
    *,
    lines: Annotated[
        bool,
        typer.Option(
            "--lines",
            help="Also show how much time each line of the script takes. This option needs the package pyinstrument.",
        ),
    ] = False,
    detail: Annotated[
        str,
        typer.Option(
            metavar="operations|modules|steps",
            autocompletion=lambda: ["operations", "modules", "steps"],
            help="What to measure: counts, times and memory of all operations, or only the times of modules or of steps. With modules or steps, the script runs almost at full speed.",
        ),
    ] = "operations",
    save: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Write the report to FILE, in the format of its suffix: .html, .json, .csv ..."
        ),
    ] = None,
) -> None:
    """Run a script as python would, and show the FLOPs, time and memory of its models.

    The script needs no changes. Profiling starts when the script first calls a model. If the script raises an error, or is stopped
    by Ctrl-C, the report covers what ran until then.
    """
    if not script.is_file():
        if str(script).startswith("-"):
            raise InputError(f"no such option: {script}; fxflops profile --help lists the options")
        raise InputError(f"file not found: {os.fspath(script)!r}; fxflops run MODEL counts and times a model")
    # Few scripts have options of these names, many have an option --save.
    _note_passed_on(script, context.args, ("--lines", "--detail"))
    from ..profiled_script import ScriptProfile

    run = ScriptProfile(lines, detail)
    try:
        with run:
            code = _exit_code(script, context.args)
    except BaseException as error:
        traceback_of_script = _from_script(error.__traceback__, script)
        if traceback_of_script is None:  # fxflops itself raised the error
            raise
        typer.echo(_as_python_prints(error, traceback_of_script), err=True, nl=False)
        code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    _show(run, lines, save or [])
    if code:
        _note_passed_on(script, context.args, ("--save",))
        raise typer.Exit(code)


def _note_passed_on(script: Path, arguments: list[str], names: tuple[str, ...]) -> None:
    """If one of these options was passed on to the script, print a note: the user may have meant the option of fxflops."""
    for each in [each for each in arguments if each.partition("=")[0] in names][:1]:
        note(f"{each} was passed to the script, since it comes after {script}; put fxflops's options before {script}")


def _exit_code(script: Path, arguments: list[str]) -> int:
    """Run a script and return its exit code."""
    from runpy import run_path

    with _as_main(script, arguments):
        try:
            run_path(os.fspath(script), run_name="__main__")
        except SystemExit as left:
            if left.code is None or isinstance(left.code, int):
                return left.code or 0
            typer.echo(left.code, err=True)
            return 1
    return 0


def _from_script(frames: TracebackType | None, script: Path) -> TracebackType | None:
    """Return the part of a traceback that begins in the script; None if the script was not running."""
    while frames is not None and frames.tb_frame.f_code.co_filename != os.fspath(script):
        frames = frames.tb_next
    return frames


def _as_python_prints(error: BaseException, frames: TracebackType) -> str:
    """Return the text that python prints for an error, without the frames of fxflops between those of the script and of torch."""
    printed = traceback.TracebackException(type(error), error, frames)
    kept = [frame for frame in printed.stack if not frame.filename.startswith(PACKAGE)]
    printed.stack = traceback.StackSummary.from_list(kept)
    return "".join(printed.format())


@contextmanager
def _as_main(script: Path, arguments: list[str]) -> Iterator[None]:
    """Set ``sys.argv``, ``sys.path`` and the handler of Ctrl-C as python does when it runs a script."""
    given, path = sys.argv, [*sys.path]
    sys.argv = [os.fspath(script), *arguments]
    sys.path.insert(0, os.fspath(script.resolve().parent))
    before = signal.getsignal(signal.SIGINT)
    takes_interrupts = before is end
    if takes_interrupts:  # else the command's handler would end the process without a report
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if takes_interrupts and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, before)
        sys.argv, sys.path[:] = given, path


def _show(run: ScriptProfile, lines: bool, save: list[Path]) -> None:
    report: Any = run.report
    typer.echo(str(report))
    if lines and (table := report.by_line()).rows:
        typer.echo(f"\n{table}")
    for path in save:
        write(report, path)
