"""The command line: ``fxflops run``, ``explain``, ``diff``, ``check``, ``ops``, ``conventions``.

On stdout is the result and nothing else; notes and errors go to stderr. The exit code is 0 where all is well, 1 where a
budget is passed or ``--strict`` finds something uncounted, 2 where the question makes no sense. What needs torch is
imported within the commands, so that help and completion come at once.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ..errors import FxflopsError, InputError, MissingFormulaError
from . import options as option
from .options import examples

if TYPE_CHECKING:
    from pathlib import Path

    from ..report.report import Report

OVER, USAGE = 1, 2
OPTIONS = {
    'fxflops.analyze(model, args, trace="record")': "--trace record",
    "count(model, args) takes": "--counts-only takes",
    "analyze(model, args), which": "fxflops run without --counts-only, which",
    "give recount(convention)": "give --convention",
    "backward=True": "--backward",
    "give integers, of dtype torch.long": "give integers: --input-ids 1,128 or --input 1,128:i64",
}
"""How errors of the library name what to give, and what that is here."""


class Commands(TyperGroup):
    """The commands; errors that fxflops raises on purpose are a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FxflopsError as error:
            typer.echo(f"fxflops: {in_options(str(error))}", err=True)
            raise typer.Exit(OVER if isinstance(error, MissingFormulaError) else USAGE) from None


app = typer.Typer(
    name="fxflops",
    cls=Commands,
    help="FLOPs, time and memory of any PyTorch model, operation by operation.",
    epilog=examples(
        "fxflops run timm:resnet50",
        "fxflops run hf:bert --input-ids 8,512 --counts-only --tree --depth 3",
        "fxflops explain timm:resnet50 fvcore thop",
        "fxflops check timm:resnet50 --max-flops 9G --max-params 30M",
    ),
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def main() -> None:
    """The entry point of the ``fxflops`` command and of ``python -m fxflops``."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that has no letter for a bar of the summary
    app(prog_name="fxflops")


def print_version(asked: bool) -> None:
    """The versions that numbers depend on."""
    if asked:
        try:
            torchs = version("torch")
        except PackageNotFoundError:
            torchs = "not installed"
        typer.echo(f"fxflops {import_module('fxflops').__version__} (torch {torchs})")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=print_version, help="Show the versions and exit.")
    ] = False,
) -> None:
    """FLOPs, time and memory of any PyTorch model, operation by operation."""


@app.command(
    short_help="What a model computes, and what that takes.",
    epilog=examples(
        "fxflops run timm:resnet50",
        "fxflops run torchvision:swin_t --batch 8 --counts-only --tree --depth 2",
        "fxflops run model.py:make_model --input 1,3,64,64 --table --sort-by time",
        "fxflops run hf:bert --input-ids 1,512 --counts-only --attention exact",
        "fxflops run hf:LlamaForCausalLM --dtype bf16 --counts-only --convention torch",
        "fxflops run timm:vit_tiny_patch16_224 --counts-only --json > vit.json",
        "fxflops run timm:vit_tiny_patch16_224 --save vit.html --save vit.json",
        "fxflops run vit.json --table --sort-by time --top 5",
    ),
)
def run(
    model: option.Model,
    input: option.Input = None,
    input_ids: option.InputIds = None,
    batch: option.Batch = None,
    device: option.Device = None,
    dtype: option.Dtype = None,
    train: option.Train = False,
    backward: option.Backward = False,
    convention: option.Convention = None,
    attention: option.Attention = None,
    trace: option.Trace = "auto",
    repeats: option.Repeats = "auto",
    counts_only: option.CountsOnly = False,
    strict: option.Strict = False,
    tree: option.AsTree = False,
    table: option.AsTable = False,
    depth: option.Depth = None,
    top: option.Top = None,
    sort_by: option.SortBy = None,
    columns: option.Columns = None,
    units: option.Units = None,
    json: option.AsJson = False,
    save: option.Save = None,
) -> None:
    """Run a model on random inputs and show what it computes, where, how long it takes and how much memory.

    Of a report that was saved as JSON, show what it holds.
    """
    from .shown import Shown

    shown = Shown(tree, table, depth, top, sort_by, columns, units, json)
    shown.check()
    from .runs import Asked, analyzed, counted, is_saved, loaded_or

    asked = Asked(tuple(input or ()), input_ids, batch, device, dtype, train, backward, convention, attention)
    for path in save or ():
        check_suffix(path)
    if (counts_only or is_saved(model)) and (trace, repeats) != ("auto", "auto"):
        made = "--counts-only makes none" if counts_only else f"{model} is of a run that was made"
        raise InputError(f"--trace and --repeats are of a run; {made}")
    if repeats != "auto" and not repeats.isdecimal():
        raise InputError(f"--repeats {repeats!r}: auto or a whole number from 0")
    runs = partial(analyzed, trace=trace, repeats=repeats if repeats == "auto" else int(repeats))
    report = loaded_or(counted if counts_only else runs, model, asked)
    typer.echo(shown.text(report, colored()))
    for path in save or ():
        write(report, path)
    try:
        report.checked(strict)
    except MissingFormulaError as error:
        if json:
            raise
        raise MissingFormulaError(str(error).partition("\n")[0]) from None  # the report shows which


@app.command(
    short_help="Why two counters give two numbers.",
    epilog=examples(
        "fxflops explain timm:resnet50 torch_flops fvcore",
        "fxflops explain torchvision:swin_t deepspeed ptflops",
        "fxflops explain model.py:make_model thop torch --input 1,3,64,64",
    ),
)
def explain(
    model: option.Model,
    a: Annotated[
        str,
        typer.Argument(
            metavar="CONVENTION",
            help="What one counter counts, as fvcore; see fxflops conventions.",
            autocompletion=option.conventions,
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="OTHER", help="Another convention.", autocompletion=option.conventions)],
    input: option.Input = None,
    input_ids: option.InputIds = None,
    batch: option.Batch = None,
    device: option.Device = None,
    dtype: option.Dtype = None,
    train: option.Train = False,
    attention: option.Attention = None,
) -> None:
    """Why two conventions give two totals for a model: op by op, with what each counts."""
    from ..conventions import find_convention
    from .runs import Asked, counted, loaded_or

    for each in (a, b):
        find_convention(each)
    asked = Asked(tuple(input or ()), input_ids, batch, device, dtype, train, attention=attention)
    typer.echo(str(loaded_or(counted, model, asked).explain(a, b)))


@app.command(
    short_help="What grew from one model to another.",
    epilog=examples(
        "fxflops diff timm:resnet50 timm:resnet101",
        "fxflops diff model.py:before model.py:after --input 1,3,64,64",
        "fxflops diff main.json branch.json",
    ),
)
def diff(
    a: option.Model,
    b: option.Other,
    input: option.Input = None,
    input_ids: option.InputIds = None,
    batch: option.Batch = None,
    device: option.Device = None,
    dtype: option.Dtype = None,
    train: option.Train = False,
    convention: option.Convention = None,
    attention: option.Attention = None,
    json: option.TableAsJson = False,
) -> None:
    """What grew from one model, or saved report, to another, and where."""
    from ..render.exports import as_json
    from .runs import Asked, both

    asked = Asked(
        tuple(input or ()), input_ids, batch, device, dtype, train, convention=convention, attention=attention
    )
    one, other = both(a, b, asked)
    found = one.diff(other)
    found = replace(found, a=f"{a}   {found.a}", b=f"{b}   {found.b}")
    if json:
        totals = {name: change._asdict() for name, change in found.totals.items()}
        typer.echo(as_json({"a": found.a, "b": found.b, "totals": totals, "modules": found.to_dicts()}))
    else:
        typer.echo(str(found))


@app.command(
    short_help="Hold a model to budgets, as in CI.",
    epilog=examples(
        "fxflops check timm:resnet50 --max-flops 9G --max-memory 200MiB",
        "fxflops check model.py:make_model --input 1,3,64,64 --max-macs 50M",
        "fxflops check model.py:make_model --input 1,3,64,64 --max-time 2s",
        "fxflops check report.json --max-flops 4.2G",
    ),
)
def check(
    model: option.Model,
    max_flops: option.MaxFlops = None,
    max_macs: option.MaxMacs = None,
    max_params: option.MaxParams = None,
    max_memory: option.MaxMemory = None,
    max_time: option.MaxTime = None,
    allow_incomplete: option.AllowIncomplete = False,
    input: option.Input = None,
    input_ids: option.InputIds = None,
    batch: option.Batch = None,
    device: option.Device = None,
    dtype: option.Dtype = None,
    train: option.Train = False,
    convention: option.Convention = None,
    attention: option.Attention = None,
    json: option.TableAsJson = False,
) -> None:
    """Hold a model, or a saved report, to budgets: exit code 0 within all of them, 1 otherwise.

    Memory is predicted, unless --max-time runs the model. What is not fully counted fails.
    """
    limits: dict[str, Any] = {
        "max_flops": max_flops,
        "max_macs": max_macs,
        "max_params": max_params,
        "max_memory": max_memory,
        "max_time": max_time,
    }
    if all(limit is None for limit in limits.values()):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in limits)
        raise InputError(f"no budget is given: one or more of {names}")
    from ..render.exports import as_json
    from ..report.budget import budgets_of
    from .runs import Asked, analyzed, counted, loaded_or

    asked = Asked(
        tuple(input or ()), input_ids, batch, device, dtype, train, convention=convention, attention=attention
    )
    report = loaded_or(counted if max_time is None else analyzed, model, asked)
    budgets = budgets_of(report, **limits)
    if json:
        kept = [{"name": b.name, "value": b.value, "limit": b.limit, "kept": b.kept} for b in budgets]
        typer.echo(as_json({"complete": report.complete, "budgets": kept}))
    else:
        typer.echo("\n".join([*map(str, budgets), *incomplete_lines(report, allow_incomplete)]))
    if not all(budget.kept for budget in budgets) or not (report.complete or allow_incomplete):
        raise typer.Exit(OVER)


@app.command(
    short_help="The operations that are counted.",
    epilog=examples(
        "fxflops ops softmax", "fxflops ops conv2d", "fxflops ops scaled_dot_product_attention", "fxflops ops"
    ),
)
def ops(
    search: Annotated[str, typer.Argument(metavar="[SEARCH]", help="Part of an op's name or spelling.")] = "",
) -> None:
    """The operations that are counted: what each counts, and how it is reached."""
    from ..counting.catalogue import catalogue
    from ..counting.catalogue import search as matching
    from .shown import ops_text

    typer.echo(ops_text(matching(search) if search else catalogue(), brief=not search))


@app.command(short_help="The counters whose numbers can be had.", epilog=examples("fxflops conventions"))
def conventions() -> None:
    """The conventions, one for each counter that papers quote, with what each counts."""
    from ..conventions import list_conventions
    from .shown import listed

    typer.echo(listed(repr(list_conventions()).splitlines()))


def in_options(text: str) -> str:
    """What an error says, with options for arguments of Python."""
    for argument, own in OPTIONS.items():
        text = text.replace(argument, own)
    return text


def incomplete_lines(report: Report, allowed: bool) -> list[str]:
    """What is not in the counts, and whether that is allowed; nothing for a complete report."""
    if report.complete:
        return []
    said = "allowed" if allowed else "--allow-incomplete lets it pass"
    missing = [f"      {each.op} x{each.calls}, first in {each.path or 'the root'}" for each in report.missing]
    return [f"INCOMPLETE  ({said})  FLOPs and MACs are lower bounds; not counted:", *missing]


def check_suffix(path: Path) -> None:
    """InputError for a file that cannot be written, before anything is run."""
    from ..report.html import plotly_script
    from ..report.report import FORMATS

    if not path.name.lower().endswith(tuple(FORMATS)):
        raise InputError(f"--save {path}: the suffix says the format, one of {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise InputError(f"--save {path}: there is no folder {str(path.parent)!r}")
    if path.name.lower().endswith(".html"):
        plotly_script()


def write(report: Report, path: Path) -> None:
    """The report into a file, in the format of its suffix."""
    from .runs import note

    try:
        report.save(path)
    except OSError as error:
        raise InputError(f"--save {path}: {error.strerror or error}") from None
    note(f"wrote {path}")


def colored() -> bool:
    """Whether stdout is a terminal whose user wants colours (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


if __name__ == "__main__":
    main()
