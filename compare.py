"""Run every installed FLOP counter on one model, each in its own process, and compare their numbers with fxflops's.

Next to each tool's number stands fxflops's number under that tool's convention, and why the convention differs from fxflops's
default. Where the platform allows, the processes are forked from one that has imported torch. They import their tools in
parallel. The tools then run, and are timed, one at a time.

python compare.py [--add_one] [--linear_no_bias]            the five-to-four linear layer of torch_flops' README
python compare.py --model resnet50 [--input 1,3,224,224]    any timm or torchvision model, with random weights
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn

from benchmarks.peers import PEERS
from fxflops.cli.libraries import check_model
from fxflops.errors import InputError

TIMEOUT = 900
SIMPLE, OURS, CONVENTIONS = "SimpleModel", "fxflops", "conventions"
WHYS = 3
ABSENT = "not installed"
NEAREST = "~"
"""Prefix of a convention's name: fxflops has no convention for the tool, and this is the nearest one."""
MOST_SAID = 300
"""The maximum length of an error message, in characters."""
RULE, WIDTH = 80, 120
NUMBERS = {
    "tool": "tool",
    "number": "number",
    "unit": "unit",
    "fxflops": "fxflops",
    "convention": "convention",
    "seconds": "seconds",
    "mebibytes": "MiB",
}
REASONS = {
    "tool": "tool",
    "why": "why it differs from fxflops (MACs from MACs)",
    "not_counted": "not counted",
    "changed": "changed",
}
NUMERIC = ("number", "fxflops", "seconds", "mebibytes")
SAID = re.compile(
    r"Cannot find rule for <class '(?:[^']*\.)?([^']+)'>|module (\w+) is treated as a zero-op|No handlers found: \"([^\"]+)\""
)


class SimpleModel(nn.Module):
    def __init__(self, bias: bool = True, add_one: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4, bias=bias)
        self.add_one = add_one

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        if self.add_one:
            x += 1.0
        return x


# Code that runs in a tool's own process.


@dataclass(frozen=True)
class Subject:
    """The model to count and the shape of its input, as given on the command line."""

    model: str
    shape: str
    bias: bool
    add_one: bool

    def build(self) -> tuple[nn.Module, torch.Tensor]:
        """Return the model in eval mode, and its input. Weights and input are the same on every call."""
        torch.manual_seed(0)
        model, shape = (SimpleModel(self.bias, self.add_one), (1, 5)) if self.model == SIMPLE else named(self.model)
        return model.eval(), torch.randn(tuple(map(int, self.shape.split(","))) if self.shape else shape)


def named(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """Return a timm or torchvision model, and the shape of an image for it."""
    library, _, bare = name.partition(":")
    if library == "timm":
        import timm

        model = timm.create_model(bare)
        return model, (1, *model.pretrained_cfg.get("input_size", (3, 224, 224)))
    import torchvision

    return torchvision.models.get_model(bare, weights=None), (1, 3, 224, 224)


def whole_name(name: str) -> str:
    """Return the name with its library, e.g. "timm:resnet18". Raise typer.BadParameter if no library has the model."""
    library, colon, bare = name.partition(":")
    libraries = [library] if colon else ["timm", "torchvision"]
    said = [f"a model is timm:NAME or torchvision:NAME, not {name!r}"] * (library not in ("timm", "torchvision"))
    for each in () if colon and said else libraries:
        try:
            return check_model(f"{each}:{bare if colon else name}")
        except InputError as error:
            said.append(str(error))
    raise typer.BadParameter("; ".join(said if colon else said[1:]))


def state_of(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return the parts of the model's state that a counter should not change."""
    state: dict[str, dict[str, Any]] = {"state_dict": copy.deepcopy(dict(model.state_dict()))}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name == "training":
                state.setdefault("training flags", {})[path] = value
            elif name.endswith("_hooks"):
                state.setdefault("hooks", {})[f"{path}.{name}".lstrip(".")] = tuple(value.values())
            else:
                state.setdefault("attributes", {})[f"{path}.{name}".lstrip(".")] = None
    return state


def changes(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> list[str]:
    """Return the differences by kind, e.g. ``state_dict: total_ops and 1 more``."""
    found = []
    for kind in before:
        one, other = before[kind], after[kind]
        names = [
            name for name in {**one, **other} if name not in one or name not in other or differ(one[name], other[name])
        ]
        if names:
            found.append(f"{kind}: {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else ""))
    return found


def differ(one: Any, other: Any) -> bool:
    return not torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one != other)


def mebibytes(key: str) -> float | None:
    """Return the memory of this process in MiB, None if unknown.

    "VmRSS" is the memory now, "VmHWM" the peak since the last :func:`forget_peak`.
    """
    with contextlib.suppress(OSError):
        return int(re.findall(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) / 1024
    return None


def forget_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def work(tool: str, subject: Subject, pipe: Connection, log: str) -> None:
    """Import the tool and report that it is ready. Once the main process asks, run the tool and send its answer.

    :data:`CONVENTIONS` is not a tool: its answer is sent at once.
    """
    with open(log, "w", encoding="utf8") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    try:
        if tool == CONVENTIONS:
            pipe.send(conventions(subject))
            return
        package = PEERS[tool][0]
        importlib.import_module(package)
        pipe.send(None)
        pipe.recv()
        pipe.send(answer(tool, subject))
    except ModuleNotFoundError as error:
        pipe.send({"error": ABSENT if tool != CONVENTIONS and error.name == package else short(error)})
    except Exception as error:
        pipe.send({"error": short(error)})


def short(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:MOST_SAID]


def answer(tool: str, subject: Subject) -> dict[str, Any]:
    """Run one tool on the model. Return its numbers, its cost, and the changes it made to the model."""
    run = PEERS[tool][1]
    model, x = subject.build()
    printed, before, result = io.StringIO(), state_of(model), dict[str, Any]()
    forget_peak()
    bytes_before, start = mebibytes("VmRSS"), time.perf_counter()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            numbers, uncounted = run(model, x)
            result.update(numbers=numbers, uncounted=list(uncounted))
        except Exception as error:
            result.update(error=short(error))
    result["seconds"] = time.perf_counter() - start
    if bytes_before is not None:
        result["mebibytes"] = (mebibytes("VmHWM") or bytes_before) - bytes_before
    said = "".join([printed.getvalue(), *(f"{warning.message}\n" for warning in warned)])
    result["uncounted"] = list(dict.fromkeys([*result.get("uncounted", []), *map("".join, SAID.findall(said))]))
    result["changed"] = changes(before, state_of(model))
    result["printed"] = re.sub(r"\x1b\[\d+m", "", printed.getvalue())
    return result


def conventions(subject: Subject) -> dict[str, Any]:
    """Return fxflops's total under each convention, and the ops that differ most from the "fxflops" convention."""
    import fxflops
    from fxflops.adapters.ptflops import get_model_complexity_info

    model, x = subject.build()
    report = fxflops.count(model, x)
    totals, reasons = {}, {}
    for name in fxflops.list_conventions():
        rows = report.explain("fxflops", name).rows[:WHYS]
        totals[name] = report.recount(name).total_flops
        reasons[name] = [(row.op, f"{row.difference:+,}: {row.how_b.partition('; ')[0]}") for row in rows]
    # ptflops divides the charges of module hooks by the batch size, but not the charges of functions. So does its adapter.
    if (batch := len(x)) > 1:
        found, _ = get_model_complexity_info(
            model, tuple(x.shape[1:]), False, False, input_constructor=lambda _: x, verbose=False
        )
        totals["ptflops"] = totals["ptflops"] if found is None else found
        reasons["ptflops"].insert(0, ("modules with hooks", f"divided by the batch of {batch}"))
    return {"totals": totals, "reasons": reasons}


# Code that runs in the main process.


@dataclass
class Worker:
    """A process for one tool. The constructor waits until the process has imported the tool.

    ``said`` is the answer of the process, e.g. an error if the import failed. It is None while the process waits to run the tool.
    """

    context: Any
    tool: str
    subject: Subject
    folder: str
    said: dict[str, Any] | None = field(init=False)

    def __post_init__(self) -> None:
        self.pipe, theirs = self.context.Pipe()
        self.log = Path(self.folder, self.tool)
        self.process = self.context.Process(
            target=work, args=(self.tool, self.subject, theirs, str(self.log)), daemon=True
        )
        self.process.start()
        theirs.close()
        self.said = self._heard()

    def answer(self) -> dict[str, Any]:
        """Run the tool, and return its answer."""
        if self.said is None:
            self.pipe.send(None)
            self.said = self._heard() or {}
        self.process.join(1)
        self.process.kill()
        return self.said

    def _heard(self) -> dict[str, Any] | None:
        try:
            if self.pipe.poll(TIMEOUT):
                return self.pipe.recv()
            return {"error": f"no answer within {TIMEOUT} s"}
        except EOFError:
            self.process.join()
            lines = self.log.read_text(encoding="utf8", errors="replace").strip().splitlines()
            return {"error": (lines or [f"ended with {self.process.exitcode}"])[-1]}


def answers(tools: Sequence[str], subject: Subject, library: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield fxflops's totals under each convention, then the answer of each tool as soon as it has run.

    The processes start in parallel, as many at a time as there are cores. The tools run, and are timed, one at a time.
    """
    can_copy = "forkserver" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if can_copy else "spawn")
    if can_copy:
        context.set_forkserver_preload(["torch", *([library] if library else [])])
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        ready = pool.map(lambda tool: Worker(context, tool, subject, folder), [CONVENTIONS, *tools])
        for worker in list(ready):
            yield worker.tool, worker.answer()


def why(numbers: Sequence[Any], reasons: dict[str, Any]) -> str:
    """Return why a tool's numbers differ from fxflops's: each op once, with its difference in the first unit, then in the others.

    A tool without its own convention may count different ops from the nearest convention, so no reasons are given for it.
    """
    if numbers[0][2].startswith(NEAREST):
        return f"unknown: fxflops has no convention for this tool; the nearest is {numbers[0][2].removeprefix(NEAREST)}"
    by_op: dict[str, list[str]] = {}
    for i, (_, unit, convention) in enumerate(numbers):
        for op, difference in reasons.get(convention.removeprefix(NEAREST), []):
            by_op.setdefault(op, []).append(difference if i == 0 else f"{unit} {difference}")
    return "; ".join(f"{op} {said[0]}" + "".join(f" ({each})" for each in said[1:]) for op, said in by_op.items())


def rows_of(tool: str, said: dict[str, Any], ours: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of the tool, or one row for its error. Only the first row has the notes on the tool."""
    numbers = said.get("numbers") or [(None, "", "")]
    of_all = {
        "why": said.get("error") or why(numbers, ours.get("reasons", {})),
        "not_counted": ", ".join(said.get("uncounted", [])),
        "changed": ", ".join(said.get("changed", [])),
    }
    for i, (value, unit, convention) in enumerate(numbers):
        name = convention.removeprefix(NEAREST)
        yield {
            "tool": tool,
            "number": value,
            "unit": unit,
            "fxflops": ours.get("totals", {}).get(name),
            "convention": convention,
            "seconds": said.get("seconds"),
            "mebibytes": said.get("mebibytes"),
            **(of_all if i == 0 else dict.fromkeys(of_all, "")),
        }


def cell(value: Any) -> str:
    if isinstance(value, float) and abs(value) < 100 and not value.is_integer():
        return f"{value:.2g}"
    return "-" if value is None else f"{value:,.0f}" if isinstance(value, (int, float)) else str(value)


def table(rows: list[dict[str, Any]], columns: dict[str, str]) -> Table:
    result = Table(show_lines=columns is REASONS)
    if columns is REASONS:
        rows = list({row["tool"]: row for row in reversed(rows)}.values())[::-1]
    for name, title in columns.items():
        result.add_column(title, justify="right" if name in NUMERIC else "left", overflow="fold")
    for row in rows:
        result.add_row(*(escape(cell(row[name])) for name in columns))
    return result


def markdown(rows: list[dict[str, Any]]) -> str:
    columns = {**NUMBERS, **REASONS}
    lines = [list(columns.values()), ["--:" if name in NUMERIC else "---" for name in columns]]
    lines += [[cell(row[name]).replace("|", r"\|") for name in columns] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def told(tool: str, said: dict[str, Any]) -> None:
    """Report on stderr, in one line, that the tool has answered."""
    numbers = ", ".join(f"{cell(value)} {unit}" for value, unit, _ in said.get("numbers", []))
    seconds = f" in {said['seconds']:.2f} s" if numbers else ""
    print(f"compare.py: {tool}: {said.get('error') or numbers + seconds}", file=sys.stderr, flush=True)


def say(tool: str, said: dict[str, Any]) -> None:
    """Print the tool's own output and its numbers, under its name."""
    print(f"{'=' * RULE}\n{f' {tool} ':*^{RULE}}")
    print(said.get("printed", ""), end="")
    for value, unit, _ in said.get("numbers", []):
        print(f"{tool}: {cell(value)} {unit}")
    if "error" in said:
        print(f"{tool}: {said['error']}")


def main(
    model: Annotated[
        str, typer.Option(help="A timm or torchvision model, also as timm:NAME or torchvision:NAME.")
    ] = SIMPLE,
    linear_no_bias: Annotated[bool, typer.Option("--linear_no_bias", help="The simple model without a bias.")] = False,
    add_one: Annotated[bool, typer.Option("--add_one", help="The simple model with x += 1 at its end.")] = False,
    input: Annotated[str, typer.Option(help="The shape of the input: 1,3,224,224.")] = "",
    tools: Annotated[str, typer.Option(help=f"Some of {', '.join(PEERS)}; default: all.")] = ",".join(PEERS),
    markdown_file: Annotated[Path | None, typer.Option("--markdown", help="Write the table to this file.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rows to this file.")] = None,
) -> None:
    """Run every installed FLOP counter on one model, each in its own process, and explain why their numbers differ."""
    chosen = [*dict.fromkeys(tool.strip() for tool in tools.split(","))]
    if unknown := [tool for tool in chosen if tool not in PEERS]:
        raise typer.BadParameter(f"unknown tools {', '.join(unknown)}: choose from {', '.join(PEERS)}")
    if input and not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", input):
        raise typer.BadParameter(f"--input {input!r} is no shape such as 1,3,224,224")
    if model != SIMPLE and (linear_no_bias or add_one):
        raise typer.BadParameter(f"--linear_no_bias and --add_one are of the simple model, not of {model}")
    for file in filter(None, (markdown_file, json_file)):
        if not file.parent.is_dir():
            raise typer.BadParameter(f"cannot write {str(file)!r}: there is no folder {str(file.parent)!r}")
    name = SIMPLE if model == SIMPLE else whole_name(model)
    subject = Subject(name, input, not linear_no_bias, add_one)
    if model == SIMPLE:
        built, x = subject.build()
        print(f"{' Model ':*^{RULE}}\n{built}\n{built(x)}", flush=True)
    ours: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for tool, said in answers(chosen, subject, name.partition(":")[0] if model != SIMPLE else ""):
        if tool == CONVENTIONS:
            ours = said
            continue
        told(tool, said)
        rows += rows_of(tool, said, ours)
        if model == SIMPLE:
            say(tool, said)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    there = [row for row in rows if row["why"] != ABSENT]
    console.print(table(there, NUMBERS), table(there, REASONS))
    if any(row["convention"].startswith(NEAREST) for row in there):
        print(f"{NEAREST}: fxflops has no convention for this number; the one beside it is the nearest")
    if absent := [row["tool"] for row in rows if row["why"] == ABSENT]:
        print(f"{ABSENT}: {', '.join(absent)} (pip install {' '.join(PEERS[tool][0] for tool in absent)})")
    if markdown_file is not None:
        markdown_file.write_text(markdown(rows), encoding="utf8")
    if json_file is not None:
        json_file.write_text(json.dumps({"model": model, "rows": rows}, indent=2), encoding="utf8")
    if all(row["number"] is None for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
