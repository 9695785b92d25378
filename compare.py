"""One model, every installed counter run for real, each in a process of its own; beside each number what fxflops gives
under that tool's convention, and why it differs from fxflops's own.

python compare.py [--add_one] [--linear_no_bias]            the five-to-four linear layer of torch_flops' README
python compare.py --model resnet50 [--input 1,3,224,224]    any timm or torchvision model, with random weights
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import json
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn

from benchmarks.peers import PEERS
from fxflops.errors import near

TIMEOUT = 900
SIMPLE, OURS = "SimpleModel", "fxflops"
WHYS = 3
ABSENT = "not installed"
MOST_SAID = 300
"""Characters of an error."""
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
REASONS = {"tool": "tool", "why": "why it differs from fxflops", "not_counted": "not counted", "changed": "changed"}
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


# In a process of its own: one tool on the model.


@dataclass(frozen=True)
class Subject:
    """Which model is counted, on what: as the command line says it."""

    model: str
    shape: str
    bias: bool
    add_one: bool

    def build(self) -> tuple[nn.Module, torch.Tensor]:
        """The model in eval mode and its input; the same each time."""
        torch.manual_seed(0)
        model, shape = (SimpleModel(self.bias, self.add_one), (1, 5)) if self.model == SIMPLE else named(self.model)
        return model.eval(), torch.randn(tuple(map(int, self.shape.split(","))) if self.shape else shape)


def named(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """A timm or torchvision model and the shape of an image for it."""
    library, _, bare = name.rpartition(":")
    known: list[str] = []
    if library in ("", "timm"):
        with contextlib.suppress(ImportError):
            import timm

            if timm.is_model(bare):
                model = timm.create_model(bare)
                return model, (1, *model.pretrained_cfg.get("input_size", (3, 224, 224)))
            known += timm.list_models()
    if library in ("", "torchvision"):
        with contextlib.suppress(ImportError):
            import torchvision

            if bare in torchvision.models.list_models():
                return torchvision.models.get_model(bare, weights=None), (1, 3, 224, 224)
            known += torchvision.models.list_models()
    asked = " nor ".join([library] if library else ["timm", "torchvision"])
    close = near(bare, dict.fromkeys(known)) if known else ": not installed"
    raise typer.BadParameter(f"no model {name!r} in {asked}{close}")


def state_of(model: nn.Module) -> dict[str, dict[str, Any]]:
    """What a counter should leave as it is."""
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
    """What is different, by kind: ``state_dict: total_ops and 1 more``."""
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
    """Memory of this process: "VmRSS" now, "VmHWM" at its peak since the last :func:`forget_peak`."""
    with contextlib.suppress(OSError):
        return int(re.findall(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) / 1024
    return None


def forget_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def answer(tool: str, subject: Subject) -> dict[str, Any]:
    """What one tool says of the model, and what it does to it."""
    package, run = PEERS[tool]
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name == package:
            return {"error": ABSENT}
        raise
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
            result.update(error=" ".join(f"{type(error).__name__}: {error}".split())[:MOST_SAID])
    result["seconds"] = time.perf_counter() - start
    if bytes_before is not None:
        result["mebibytes"] = (mebibytes("VmHWM") or bytes_before) - bytes_before
    said = "".join([printed.getvalue(), *(f"{warning.message}\n" for warning in warned)])
    result["uncounted"] = list(dict.fromkeys([*result.get("uncounted", []), *map("".join, SAID.findall(said))]))
    result["changed"] = changes(before, state_of(model))
    if tool == OURS and "error" not in result:
        result.update(conventions(subject))
    result["printed"] = re.sub(r"\x1b\[\d+m", "", printed.getvalue())
    return result


def conventions(subject: Subject) -> dict[str, Any]:
    """For each convention fxflops's total, and the largest parts of its difference from the base."""
    import fxflops

    model, x = subject.build()
    report = fxflops.count(model, x)
    totals, reasons = {}, {}
    for name in fxflops.list_conventions():
        rows = report.explain("fxflops", name).rows[:WHYS]
        totals[name] = report.recount(name).total_flops
        reasons[name] = "; ".join(f"{row.op} {row.difference:+,}: {row.how_b.partition('; ')[0]}" for row in rows)
    return {"totals": totals, "reasons": reasons}


# The process that asks them all.


def ask(tool: str, subject: Subject) -> dict[str, Any]:
    """What a process of its own says of one tool; which one it is, on stderr, for each takes seconds."""
    print(f"compare.py: {tool} ...", file=sys.stderr, flush=True)
    options = ["--model", subject.model, "--input", subject.shape]
    flags = ["--linear_no_bias"] * (not subject.bias) + ["--add_one"] * subject.add_one
    command = [sys.executable, __file__, *options, *flags, "--child", tool]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {TIMEOUT} s"}
    if run.returncode:
        return {"error": (run.stderr.strip().splitlines() or [f"ended with {run.returncode}"])[-1]}
    return dict(json.loads(run.stdout.splitlines()[-1]))


def rows_of(tool: str, said: dict[str, Any], ours: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each number of the tool's, or one for its error."""
    for value, unit, convention in said.get("numbers") or [(None, "", "")]:
        name = convention.lstrip("~")
        yield {
            "tool": tool,
            "number": value,
            "unit": unit,
            "fxflops": ours.get("totals", {}).get(name),
            "convention": convention,
            "seconds": said.get("seconds"),
            "mebibytes": said.get("mebibytes"),
            "why": said.get("error") or ours.get("reasons", {}).get(name, ""),
            "not_counted": ", ".join(said.get("uncounted", [])),
            "changed": ", ".join(said.get("changed", [])),
        }


def cell(value: Any) -> str:
    if isinstance(value, float) and abs(value) < 100 and not value.is_integer():
        return f"{value:.2g}"
    return "-" if value is None else f"{value:,.0f}" if isinstance(value, (int, float)) else str(value)


def table(rows: list[dict[str, Any]], columns: dict[str, str]) -> Table:
    result = Table(show_lines=columns is REASONS)
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


def say(tool: str, said: dict[str, Any]) -> None:
    """What the tool printed and its numbers, under its name."""
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
    child: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Run every installed FLOP counter on one model, each in a process of its own, and say why they differ."""
    subject = Subject(model, input, not linear_no_bias, add_one)
    if child:
        print(json.dumps(answer(child, subject), default=float))
        return
    chosen = tools.split(",")
    if unknown := [tool for tool in chosen if tool not in PEERS]:
        raise typer.BadParameter(f"unknown tools {', '.join(unknown)}: choose from {', '.join(PEERS)}")
    built, x = subject.build()
    if model == SIMPLE:
        print(f"{' Model ':*^{RULE}}\n{built}\n{built(x)}")
    ours, rows = ask(OURS, subject), []
    for tool in chosen:
        said = ours if tool == OURS else ask(tool, subject)
        rows += rows_of(tool, said, ours)
        if model == SIMPLE:
            say(tool, said)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    there = [row for row in rows if row["why"] != ABSENT]
    console.print(table(there, NUMBERS), table(there, REASONS))
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
