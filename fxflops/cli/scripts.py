"""``fxflops profile``: show what a script computes and where its time goes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError
from .options import examples
from .shown import write

if TYPE_CHECKING:
    from ..profiled_script import ScriptProfile

EXAMPLES = examples(
    "fxflops profile train.py",
    "fxflops profile train.py --epochs 1 --batch-size 8",
    "fxflops profile --lines --save train.html train.py",
)
RUN = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
"""Settings for typer that pass the arguments after the script's name on to the script."""


def profile(
    context: typer.Context,
    script: Annotated[
        Path, typer.Argument(metavar="SCRIPT", help="A Python file. Arguments after it are passed to the script.")
    ],
    *,
    lines: Annotated[
        bool, typer.Option("--lines", help="Also show how much time each line of the script takes. Needs pyinstrument.")
    ] = False,
    save: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Write the report to FILE, in the format of its suffix: .html, .json, .csv ..."
        ),
    ] = None,
) -> None:
    """Run a script as python would, and show the FLOPs, time and memory of its models.

    The script needs no changes. Profiling starts when the script first calls a model.
    """
    if not script.is_file():
        if str(script).startswith("-"):
            raise InputError(f"no such option: {script}; fxflops profile --help lists them")
        raise InputError(f"file not found: {os.fspath(script)!r}; fxflops run MODEL counts and times a model")
    from ..profiled_script import ScriptProfile

    with ScriptProfile(lines) as run:
        code = _exit_code(script, context.args)
    _show(run, lines, save or [])
    if code:
        if own := [each for each in context.args if each.partition("=")[0] in ("--lines", "--save")]:
            typer.echo(
                f"fxflops: {own[0]} was passed to the script, since it comes after {script}; put fxflops's options before {script}",
                err=True,
            )
        raise typer.Exit(code)


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


@contextmanager
def _as_main(script: Path, arguments: list[str]) -> Iterator[None]:
    """Set ``sys.argv`` to the script's arguments, and put the script's folder first on ``sys.path``, as python does."""
    given, path = sys.argv, [*sys.path]
    sys.argv = [os.fspath(script), *arguments]
    sys.path.insert(0, os.fspath(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = given, path


def _show(run: ScriptProfile, lines: bool, save: list[Path]) -> None:
    report: Any = run.report
    typer.echo(str(report))
    if lines and (table := report.by_line()).rows:
        typer.echo(f"\n{table}")
    for path in save:
        write(report, path)
