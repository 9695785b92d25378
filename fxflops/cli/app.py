"""The command line: ``fxflops run``, ``predict``, ``summary``, ``explain``, ``diff``, ``check``, ``closed-form``, ``roofline``, ``serving``,
``training-run``, ``estimate``, ``mesh``, ``ops``, ``conventions``.

Results are printed to stdout; notes and errors are printed to stderr. The exit code is 0 for success, 1 if a budget is
exceeded or ``--strict`` finds an operation without a formula, and 2 for wrong arguments. Commands import torch only to count
or run a model, since importing torch takes seconds.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..advice import COMMAND
from ..conventions import BASE_CONVENTION, check_convention, list_conventions
from ..errors import FxflopsError, InputError, MissingFormulaError
from ..render.exports import as_json
from ..report.comparison import compare
from ..report.report import Report
from . import answers, closed_forms, comparisons, meshes, scripts, summaries
from . import options as option
from .libraries import model_named
from .options import Asked, Limits, examples, spread
from .reports import baseline_for, both, gathered, is_saved, report_of
from .shown import (
    IN_HALF,
    WHAT_FITS,
    Shown,
    check_suffix,
    colored,
    fits_text,
    incomplete_lines,
    listed,
    ops_text,
    packages_text,
    subject_line,
    write,
)

UsageError: Any = typer.BadParameter.__mro__[1]
"""The class of usage errors, from click or from the copy of click in typer."""
OVER, USAGE = 1, 2
UNIT = re.compile(r"(?i)[kmgtp]?(i?b|flops?|macs?|params?|s)?")
PREDICTED_BY = ("operator", "module", "phase", "kind", "call")
RESERVED = ("allocated", "reserved", "total", "memory", "fits", "workspaces", "context", "nccl", "fragmentation")
"""The attributes of a memory prediction that ``--json`` prints."""
TRACERS = ("auto", "symbolic", "record")
python_format = warnings.formatwarning


class Commands(TyperGroup):
    """The group of commands. The group prints an FxflopsError as a message and exits with a code."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            name = args[0] if args else ""
            if name in ("count", "analyze"):
                error.message += f" fxflops run MODEL counts and times a model{'; with --counts-only it only counts' * (name == 'count')}."
            elif (model := model_named(name)) is not None:
                error.message += f" To count a model: fxflops run {' '.join([model, *args[1:]])}"
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as error:
            word = error.message.rpartition("(")[2].rstrip(")")
            if "unexpected extra argument" in error.message and UNIT.fullmatch(word):
                error.message += (
                    f". Write a number and its unit as one word, 4{word[0].upper()}, or in quotes, '4 {word}'"
                )
            raise
        except FxflopsError as error:
            error.words = COMMAND
            typer.echo(f"fxflops: {error}", err=True)
            raise typer.Exit(OVER if isinstance(error, MissingFormulaError) else USAGE) from None


app = typer.Typer(
    name="fxflops",
    cls=Commands,
    help="FLOPs, time and memory of any PyTorch model, operation by operation.",
    epilog=examples(
        "fxflops run timm:resnet50",
        "fxflops run hf:bert --input-ids 8,512 --counts-only --tree --depth 3",
        "fxflops predict timm:resnet50 --device L4 --batch 64 --train --backward --optimizer AdamW",
        "fxflops explain timm:resnet50 fvcore thop",
        "fxflops check timm:resnet50 --max-flops 9G --max-params 30M",
    ),
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _as_note(message: Any, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    """Return the text of a warning. fxflops's own warnings are printed like the command's other notes, without the file and line in typer's code."""
    if Path(filename).parent.name == "typer":
        return f"fxflops: {message}\n"
    return python_format(message, category, filename, lineno, line)


def main() -> None:
    """Run the ``fxflops`` command. ``python -m fxflops`` calls this function too."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # some terminals cannot encode the summary's bars
    warnings.formatwarning = _as_note
    app(prog_name="fxflops")


def print_version(asked: bool) -> None:
    """Print the versions of fxflops and torch, and exit."""
    if asked:
        try:
            torch_version = version("torch")
        except PackageNotFoundError:
            torch_version = "not installed"
        typer.echo(f"fxflops {import_module('fxflops').__version__} (torch {torch_version})")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=print_version, help="Show the versions and exit.")
    ] = False,
) -> None:
    """FLOPs, time and memory of any PyTorch model, operation by operation."""


@app.command(
    short_help="Count and time a model.",
    epilog=examples(
        "fxflops run timm:resnet50",
        "fxflops run torchvision:swin_t --batch 8 --counts-only --tree --depth 2",
        "fxflops run model.py:make_model --input 1,3,64,64 --table --sort-by time",
        "fxflops run model.pt2 --input x=2,3,224,224 --counts-only",
        "fxflops run hf:bert --input-ids 1,512 --counts-only --attention exact",
        "fxflops run hf:LlamaForCausalLM --dtype bf16 --counts-only --convention torch",
        "fxflops run timm:resnet50 --counts-only --train --backward --optimizer AdamW --device H100",
        "fxflops run timm:vit_tiny_patch16_224 --counts-only --json > vit.json",
        "fxflops run timm:vit_tiny_patch16_224 --save vit.html --save vit.json",
        "fxflops run vit.json --table --sort-by time --top 5",
        "fxflops run timm:resnet50 timm:convnext_tiny --counts-only --columns model,params,macs --save table.tex",
    ),
)
@spread()
def run(
    models: option.Models,
    *,
    asked: Asked,
    trace: Annotated[
        str,
        typer.Option(
            metavar="|".join(TRACERS),
            help="How to build the graph: 'symbolic' (trace with torch.fx), 'record' (record a run) or 'auto' (try both in this order).",
            autocompletion=lambda: list(TRACERS),
        ),
    ] = "auto",
    repeats: Annotated[
        str,
        typer.Option(
            metavar="auto|N",
            help="Number of timed runs. 'auto': repeat the run until the times are stable, for at most 2 s. 0: measure no times.",
        ),
    ] = "auto",
    compiled: Annotated[
        bool,
        typer.Option("--compile", help="Also time the model under torch.compile, and compare it with eager mode."),
    ] = False,
    counts_only: Annotated[
        bool,
        typer.Option(
            "--counts-only", help="Only count, on the meta device: allocate no weights and do not measure time."
        ),
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 1 if an operation has no formula.")] = False,
    shown: Shown,
    save: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Write the report to FILE, in the format of its suffix: .html, .json, .csv, .md ... To write more than one file, repeat the option.",
        ),
    ] = None,
) -> None:
    """Run a model on random inputs and show its FLOPs, time and memory, module by module.

    If MODEL is a report saved as JSON, show that report. With several models, or with --columns but neither --tree nor --table, show one
    table, with one row per model. If --device names a card, the model is counted for the card but not run. The last line then says whether
    the model fits in the card's memory. Under torchrun, FILE.py:FUNCTION may parallelize the model: rank 0 then shows its own report and a report of all
    ranks.
    """
    is_compared = len(models) > 1 or (shown.columns is not None and not (shown.tree or shown.table))
    if is_compared:
        comparisons.check(shown, save or ())
        rows = comparisons.by_name(models, shown.names)
    else:
        shown.check()
    for path in save or ():
        check_suffix(path)
    card = asked.card
    saved = [model for model in models if is_saved(model)]
    if (counts_only or card or saved) and ((trace, repeats) != ("auto", "auto") or compiled):
        reason = f"{saved[0]} is a saved report" if saved else ""
        if counts_only or card:
            reason = f"{'--counts-only' if counts_only else f'--device {asked.device}'} does not run the model"
        raise InputError(f"--trace, --repeats and --compile only work when the model runs: {reason}")
    counts_only = counts_only or card is not None
    if asked.optimizer and not (saved or (counts_only and asked.backward)):
        raise InputError(
            f"--optimizer {asked.optimizer}: an optimizer's step can be counted but not timed; leave out --optimizer, or give --backward --counts-only"
        )
    if trace not in TRACERS:
        raise InputError(f"--trace {trace!r}: expected one of {', '.join(TRACERS)}")
    if repeats != "auto" and not repeats.isdecimal():
        raise InputError(f"--repeats {repeats!r}: expected auto or an integer of at least 0")
    timed = {"trace": trace, "repeats": repeats if repeats == "auto" else int(repeats), "compiled": compiled}
    if is_compared:
        reports = comparisons.reports_of(rows, asked, None if counts_only else timed)
        comparison = compare(reports, shown.columns, units=shown.units or "auto")
        typer.echo(comparisons.text(comparison, shown))
        for path in save or ():
            write(comparison, path)
        for report in reports.values():
            report.checked(strict)
        return
    report = report_of(models[0], asked, None if counts_only else timed)
    whole = [] if saved else gathered(report)
    if whole is None:
        return  # rank 0 prints the report
    typer.echo("\n\n".join([shown.text(report, colored()), *map(str, [] if shown.json else whole)]))
    if card is not None:
        typer.echo(fits_text(report, card), err=shown.json)
    for path in save or ():
        write(report, path)
    try:
        report.checked(strict)
    except MissingFormulaError as error:
        if shown.json:
            raise
        raise MissingFormulaError(
            str(error).partition("\n")[0]
        ) from None  # the printed report already lists the calls without a formula


@app.command(
    short_help="Predict how long a model takes on a card, and whether it fits.",
    epilog=examples(
        "fxflops predict timm:resnet50 --device H100 --batch 64",
        "fxflops predict hf:LlamaForCausalLM --dtype bf16 --input-ids 1,2048 --device L40S",
        "fxflops predict hf:bert --input-ids 8,512 --train --backward --optimizer AdamW --device 4090",
        "fxflops predict hf:bert --input-ids 8,512 --device L4 --autocast bf16",
        "fxflops predict timm:resnet50 --device T4 --what-fits",
        "fxflops predict report.json --device A100 --by module",
    ),
)
@spread("convention", "attention", device="The card, such as H100, 'A100 40GB' or 4090. Required.")
def predict(
    model: option.Model,
    *,
    asked: Asked,
    by: Annotated[
        str, typer.Option(metavar="|".join(PREDICTED_BY), help="Group the rows of the table by this property.")
    ] = PREDICTED_BY[0],
    top: Annotated[int, typer.Option(min=1, metavar="N", help="Number of rows in the table.")] = 12,
    gpus: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Number of GPUs in the job. It determines the size of NCCL's buffers."),
    ] = 1,
    launch: Annotated[
        str,
        typer.Option(
            metavar="graph|eager",
            help="'graph': predict device time only. 'eager': also include the host's time to launch each kernel.",
        ),
    ] = "graph",
    what_fits: Annotated[
        bool,
        typer.Option(
            "--what-fits",
            help="Also find the largest batch that fits into memory. If training does not fit into memory, also find modules to checkpoint so that training fits. The search takes 5 seconds to 2 minutes.",
        ),
    ] = False,
    json: option.TableAsJson = False,
) -> None:
    """Predict how much time and memory a model takes on a card. The model is only counted for the card, not run.

    The predicted time is the time that the device works, as in a CUDA graph. The typical error of such predictions is printed with the
    time. The memory is the amount that CUDA's allocator reserves in two steps, plus CUDA's context and NCCL's buffers. Memory cannot be
    predicted from a saved report, because a saved report does not contain individual allocations.
    """
    if by not in PREDICTED_BY:
        raise InputError(f"--by {by!r}: expected one of {', '.join(PREDICTED_BY)}")
    if what_fits and is_saved(model):
        raise InputError(
            f"--what-fits counts the model with other batch sizes, but {model} is a saved report: give the model instead"
        )
    if asked.optimizer and not (asked.backward or is_saved(model)):
        raise InputError(f"--optimizer {asked.optimizer}: the step follows a backward pass, so also give --backward")
    if asked.device is None:
        raise InputError(option.NO_CARD)
    card = asked.card
    # Imported here because only an unlisted device needs torch, and importing torch takes seconds.
    from ..prediction.memory import NO_BUFFERS, advice, no_batch_fits, text
    from ..prediction.result import duration, notes, summary
    from ..render.text import terminal_width, wrapped
    from .tensors import card_of

    card = card or card_of(asked.device)
    saved = is_saved(model)
    report = report_of(model, replace(asked, device=None) if saved else replace(asked, device=card.name))
    found = report.predict(card, launch=launch)
    memory = None if saved else report.reserved(card, gpus=gpus)
    if not json:  # printed first, since the search below may take minutes
        typer.echo(f"{subject_line(report, asked)}\n")
        above, below = (
            [wrapped(line, terminal_width(), 4) for line in lines] for lines in (summary(found), notes(found))
        )
        typer.echo("\n".join([*above, found.table(by, top=top), *below]))
        if memory is not None:
            advised = no_batch_fits(memory) if what_fits else advice(memory, *WHAT_FITS)
            params = report.params
            if memory.fits is False and asked.autocast is None and params and params.bytes >= 4 * params.total:
                advised = [*advised, IN_HALF]
            typer.echo(f"\n{text(memory, advised)}")
    fitting: dict[str, Any] = {"largest_batch": None, "checkpoints": None} if what_fits else {}
    if what_fits and memory is not None:
        from .runs import LargestBatch
        from .runs import what_fits as find

        is_too_large = memory.memory is not None and memory.total > memory.memory
        answers: Iterable[Any] = [LargestBatch(0, None)]
        if not no_batch_fits(memory) and memory.memory is not None:
            # NCCL's buffers have the same size for every batch.
            room = replace(card, memory=memory.memory - memory.nccl)
            answers = find(model, replace(asked, device=card.name), room, is_too_large)
        for answer in answers:
            if isinstance(answer, LargestBatch):
                fitting["largest_batch"] = answer.size
                fitting["largest_batch_seconds"] = answer.prediction and answer.prediction.seconds
                each = f"each of {gpus} {card.name}, each with the whole model" if gpus > 1 else card.name
                said = f"largest batch that fits on {each}: {answer.size:,}"
                if answer.prediction is not None:
                    said += f", which takes {duration(answer.prediction)}"
                if answer.size and memory.convolutions:
                    said += f"; {NO_BUFFERS}"
            else:
                fitting["checkpoints"] = getattr(answer, "modules", None)
                fitting["checkpointed_seconds"] = getattr(answer, "seconds", None)
                said = str(answer)
            if not json:
                typer.echo(f"\n{said}")
        if not json and model.startswith("hf:") and (gpus > 1 or (asked.backward and is_too_large)):
            typer.echo(f"\nto spread the model over several cards: fxflops mesh {model} ...")
    if json:
        seconds = {"seconds": found.seconds, "bound_seconds": found.bound_seconds, "error": found.error}
        held = None if memory is None else {key: getattr(memory, key) for key in RESERVED}
        rows = [row._asdict() for row in found._rows_by(by)]
        told = {"device": card.name, **seconds, "memory": held, **fitting, by: rows, "provenance": found.provenance}
        typer.echo(as_json(told))


@app.command(
    short_help="Explain why two counters give different numbers.",
    epilog=examples(
        "fxflops explain timm:resnet50 torch_flops fvcore",
        "fxflops explain torchvision:swin_t 4.5G",
        "fxflops explain torchvision:swin_t deepspeed ptflops",
        "fxflops explain model.py:make_model thop torch --input 1,3,64,64",
    ),
)
@spread("backward", "optimizer", "convention", "autocast")
def explain(
    model: option.Model,
    a: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONVENTION|NUMBER]",
            help="A counter, such as fvcore, or a published number of FLOPs or MACs, such as 4.5G. The command 'fxflops conventions' lists all counters.",
            autocompletion=option.conventions,
            show_default=False,
        ),
    ] = None,
    b: Annotated[
        str,
        typer.Argument(
            metavar="[OTHER]", help="Another counter, to compare with the first.", autocompletion=option.conventions
        ),
    ] = BASE_CONVENTION,
    *,
    asked: Asked,
) -> None:
    """Explain why two counters (conventions) give different totals for a model, or find the counter of a published number.

    The table lists the operations that the two counters count differently, and what each of the two counts for an operation. With a
    number, the table lists the total of every counter, the closest one first; with only a model, all totals.
    """
    if a is None or a[:1].isdigit():
        near = None if a is None else option.COUNT(a)
        if a is not None and near is not None and near < 1000 and "." in a:
            raise InputError(f"{a} FLOPs or MACs are no total of a model: write the unit, such as {a}G or {a}M")
        typer.echo(str(report_of(model, asked).by_convention(near)))
        return
    for each in (a, b):
        check_convention(each)
    typer.echo(str(report_of(model, asked).explain(a, b)))


TABLES = ".html", ".csv", ".json", ".md", ".tex"
"""The suffixes of files to which a comparison of two models can be written."""


@app.command(
    short_help="Compare two models.",
    epilog=examples(
        "fxflops diff timm:resnet50 timm:resnet101",
        "fxflops diff model.py:before model.py:after --input 1,3,64,64",
        "fxflops diff main.json branch.json",
    ),
)
@spread("backward", "optimizer", "autocast")
def diff(
    a: option.Model,
    b: Annotated[
        str,
        typer.Argument(
            metavar="OTHER",
            help="The model or saved report to compare with MODEL. OTHER can have the same forms as MODEL.",
            show_default=False,
            callback=option.check_model,
        ),
    ],
    *,
    asked: Asked,
    json: option.TableAsJson = False,
    save: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Write the comparison to FILE: .html, .csv, .json, .md or .tex."),
    ] = None,
) -> None:
    """Compare two models or saved reports: show how the totals differ, and in which modules."""
    for path in save or ():
        if not path.name.endswith(TABLES):
            raise InputError(f"--save {path}: a comparison of two models can be saved as one of {', '.join(TABLES)}")
    one, other = both(a, b, asked)
    found = one.diff(other)
    found = replace(found, a=_labelled(a, one, found.a), b=_labelled(b, other, found.b))
    for path in save or ():
        write(found, path)
    if json:
        totals = {name: change._asdict() for name, change in found.totals.items()}
        compared = {"a": found.a, "b": found.b, "totals": totals, "modules": found.to_dicts()}
        typer.echo(as_json({**compared, "provenance": found.provenance}))
    else:
        typer.echo(str(found))


def _labelled(name: str, report: Report, text: str) -> str:
    """Put the name before the text. If the report was requested by this name, the text already contains the name, so return the text unchanged."""
    return text if report.environment.asked == name else f"{name}   {text}"


@app.command(
    short_help="Check a model against budgets, as in CI.",
    epilog=examples(
        "fxflops check timm:resnet50 --max-flops 9G --max-memory 200MiB",
        "fxflops check model.py:make_model --input 1,3,64,64 --max-macs 50M",
        "fxflops check model.py:make_model --input 1,3,64,64 --max-time 2s",
        "fxflops check report.json --max-flops 4.2G",
        "fxflops check model.py:make_model --input 1,3,64,64 --baseline main.json --tolerance 1%",
        "fxflops check timm:resnet50 --batch 64 --train --backward --optimizer AdamW --device L4",
    ),
)
@spread()
def check(
    model: option.Model,
    *,
    limits: Limits,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="REPORT",
            help="A saved report. The report's FLOPs, MACs, parameters and predicted memory become the limits.",
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT",
            parser=option.PERCENT,
            help="How far the model may exceed the limits from --baseline, e.g. 1%.",
        ),
    ] = None,
    allow_incomplete: Annotated[
        bool,
        typer.Option(
            "--allow-incomplete",
            help="Let the check pass even if some operations have no formula and are missing from the counts.",
        ),
    ] = False,
    asked: Asked,
    json: option.TableAsJson = False,
) -> None:
    """Check a model or a saved report against budgets. The exit code is 0 if the model is within all budgets, else 1.

    With --max-time the model runs, and its memory is measured; otherwise its memory is predicted. If --device names a card, the model must
    also fit in the card's memory. The check fails if an operation has no formula, unless --allow-incomplete is given.
    """
    card = asked.card
    if limits == Limits() and card is None and baseline is None:
        names = ", ".join(f"--{field.name.replace('_', '-')}" for field in fields(Limits))
        raise InputError(
            f"no budget to check: give a limit ({names}), a saved report (--baseline main.json), or a card whose memory is the limit (--device H100)"
        )
    if tolerance is not None and baseline is None:
        raise InputError(f"--tolerance {tolerance:g}% needs a --baseline")
    from ..report.budget import above, budgets_of

    if card and limits.max_time is not None:
        raise InputError(
            f"--max-time cannot be used with --device {asked.device}: --max-time runs the model, but for a card fxflops only counts the model; leave out one of the two options"
        )
    if card and is_saved(model):
        raise InputError(
            f"--device {asked.device}: cannot predict whether the model fits into memory, because a saved report does not contain individual allocations; give the model instead"
        )
    if asked.optimizer and not (asked.backward and limits.max_time is None) and not is_saved(model):
        raise InputError(
            f"--optimizer {asked.optimizer}: the step follows a backward pass and is only counted, so give --backward and leave out --max-time"
        )
    report = report_of(model, asked, None if limits.max_time is None else {})
    given = asdict(limits)
    if baseline is not None:
        allowed = above(baseline_for(report, baseline), tolerance or 0.0)
        given = {name: allowed.get(name) if value is None else value for name, value in given.items()}
    budgets = budgets_of(report, **given)
    memory = None if card is None else report.reserved(card)
    if memory is not None and memory.fits is None:
        raise InputError(f"the memory size of {memory.device.name} is unknown: give --max-memory")
    if json:
        kept = [{"name": b.name, "value": b.value, "limit": b.limit, "kept": b.kept} for b in budgets]
        held = (
            None
            if memory is None
            else {"device": memory.device.name, **{key: getattr(memory, key) for key in RESERVED}}
        )
        checked = {"complete": report.complete, "budgets": kept, "memory": held}
        typer.echo(as_json({**checked, "provenance": report.provenance}))
    else:
        fits = (
            []
            if memory is None or card is None
            else [f"{'ok  ' if memory.fits else 'OVER'}  {fits_text(report, card)}"]
        )
        typer.echo("\n".join([*map(str, budgets), *fits, *incomplete_lines(report, allow_incomplete)]))
    within = all(budget.kept for budget in budgets) and (memory is None or memory.fits)
    if not within or not (report.complete or allow_incomplete):
        raise typer.Exit(OVER)


for command, short_help, epilog in (
    (summaries.summary, "Show a model's modules with their shapes, as torchinfo does.", summaries.EXAMPLES),
    (closed_forms.closed_form, "Print a model's costs as formulas in the sizes of its inputs.", closed_forms.EXAMPLES),
    (
        answers.roofline,
        "Show the least time of each call of a model on a card, and what limits it.",
        answers.ROOFLINE_EXAMPLES,
    ),
    (answers.serving, "Show the cost of serving a language model.", answers.SERVING_EXAMPLES),
    (answers.training_run, "Show how many GPU-hours a training run takes.", answers.TRAINING_EXAMPLES),
    (answers.estimate, "Show the FLOPs that a trainer estimates for a batch.", answers.ESTIMATE_EXAMPLES),
    (meshes.mesh, "Rank ways to split training over a cluster by tokens per second.", meshes.EXAMPLES),
):
    app.command(short_help=short_help, epilog=epilog)(command)
app.command(
    short_help="Run a script, and show what it computes and where its time goes.",
    epilog=scripts.EXAMPLES,
    context_settings=scripts.RUN,
)(scripts.profile)


@app.command(
    short_help="List the operations that are counted.",
    epilog=examples(
        "fxflops ops softmax",
        "fxflops ops conv2d",
        "fxflops ops scaled_dot_product_attention",
        "fxflops ops",
        "fxflops ops --packages",
    ),
)
def ops(
    search: Annotated[
        str,
        typer.Argument(
            metavar="[SEARCH]",
            help="Text to search for in the names of operations, and of the functions and modules that are counted as an operation.",
        ),
    ] = "",
    packages: Annotated[
        bool,
        typer.Option(
            "--packages", help="Instead of the operations, list the installed libraries that add their own formulas."
        ),
    ] = False,
) -> None:
    """List the operations that fxflops counts, and what is counted for each operation.

    With SEARCH, also list the functions and modules that are counted as each operation.
    """
    if packages:
        if search:
            raise InputError("--packages lists all libraries: leave out SEARCH")
        from ..ops.packages import GROUP, load_packages

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the printed list shows libraries that failed to load
            typer.echo(packages_text(load_packages(), GROUP))
        return
    from ..counting import catalogue_page

    typer.echo(ops_text(catalogue_page.search(search) if search else catalogue_page.catalogue(), brief=not search))


@app.command(short_help="List the counters whose numbers fxflops reproduces.", epilog=examples("fxflops conventions"))
def conventions() -> None:
    """List the conventions and what each convention counts. A convention reproduces the numbers of one counter that papers quote, such as fvcore."""
    typer.echo(listed(repr(list_conventions()).splitlines()))
