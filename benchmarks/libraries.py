"""Count and measure training and sampling with other libraries' classes, and check that fxflops does not change their results.

    python -m benchmarks.libraries [--only WORD] [--again] [--seconds 120]

Each case runs in its own process, from the same seeds without and with fxflops. With fxflops, the second step runs in
``fxflops.profile``, and ``fxflops.count`` then counts the model with its optimizer. Losses, parameters, optimizer state and random
generators must be bit-equal at the end. Code that a library compiles runs eagerly in both. The multiply-accumulates of the profiled
step are compared with torch's FlopCounterMode, and its peak with the storages that a dispatch mode sees. Finished cases are kept in
``results/libraries.jsonl``; ``--again`` runs them anew.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import select
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from .library_cases import CASES, Case
from .library_oracles import Storages, held_by, macs_of, seed, values_of
from .machine import processor

RESULTS = Path(__file__).parent / "results"
DONE, TABLE = RESULTS / "libraries.jsonl", RESULTS / "libraries.md"
STEPS = 4


def plain(name: str) -> tuple[list[Any], dict[str, Any]]:
    """Run the case without fxflops. Return its losses and final values, and the oracles' figures for the second step.

    Each oracle gets a separate run, so that it cannot influence the losses.
    """
    case, trace = started(name), []
    for _ in range(STEPS):
        trace.append(value_of(case.step()))
    final = [trace, values_of(case.model, *case.changes)]
    case = started(name)
    case.step()
    macs, escapes = macs_of(case.step)
    case = started(name)
    case.step()
    storages = Storages(
        held_by(case.model, *(each for each in case.changes if isinstance(each, torch.optim.Optimizer)))
    )
    with storages:
        case.step()
    return final, {"macs": macs, "peak": storages.peak, "escapes": escapes}


def observed(name: str) -> tuple[list[Any], dict[str, Any]]:
    """Return losses and final values, with the second step profiled and the model counted before the third; and fxflops's figures."""
    import fxflops

    case, trace, said = started(name), [], dict[str, Any]()
    for number in range(STEPS):
        if number == 1:
            with fxflops.profile(case.model, optimizer=case.changes[0] if is_torchs(case) else None) as p:
                trace.append(value_of(case.step()))
            report = p.report
            said |= {
                "macs": sum(each.macs for each in report.counted),
                "peak": report.max_memory,
                "missing": sorted({each.op for each in report.missing}),
            }
            continue
        if number == 2 and case.inputs is not None:
            state = torch.get_rng_state()
            inputs = case.inputs()
            torch.set_rng_state(state)
            counted = fxflops.count(
                case.model, inputs, backward=case.optimizer is not None, optimizer=case.optimizer, mode="as_is"
            )
            said["count"] = [*counted.trace.split()[-2:], counted.total_optimizer_flops]
            said["missing"] = sorted({*said["missing"], *(each.op for each in counted.missing)})
        trace.append(value_of(case.step()))
    return [trace, values_of(case.model, *case.changes)], said


def started(name: str) -> Case:
    seed()
    return CASES[name][0]()


def is_torchs(case: Case) -> bool:
    return bool(case.changes) and isinstance(case.changes[0], torch.optim.Optimizer)


def value_of(value: Any) -> Any:
    return value.detach().tolist() if isinstance(value, torch.Tensor) else value


def run(name: str) -> dict[str, Any]:
    """Run a case in this process and return its row."""
    row: dict[str, Any] = {"case": name, "versions": {need: version(need) for need in CASES[name][1]}}
    try:
        alone, oracle = plain(name)
        again, _ = plain(name)
        row |= {"oracle": oracle, "reproducible": alone == again}
    except Exception as error:
        return row | {"broken": f"{type(error).__name__}: {error}"[:300], "where": traceback.format_exc()[-600:]}
    try:
        with_us, said = observed(name)
    except Exception as error:
        return row | {"raised": f"{type(error).__name__}: {error}"[:600]}
    return row | {"said": said, "same": alone == with_us, "same losses": alone[0] == with_us[0]}


def verdict(row: dict[str, Any]) -> str:
    """Return what is wrong with a row; "" if nothing is."""
    if "broken" in row:
        return f"cannot run alone: {row['broken']}"
    if "raised" in row:
        return f"RAISED {row['raised']}"
    wrong = []
    if not row["reproducible"]:
        wrong.append("differs from itself")
    elif not row["same"]:
        wrong.append("CHANGED the training" if not row["same losses"] else "CHANGED the state")
    if row["said"]["macs"] != row["oracle"]["macs"]:
        wrong.append("MACs differ")
    if abs(row["said"]["peak"] / row["oracle"]["peak"] - 1) > 0.005:
        wrong.append("peak differs")
    missing, escapes = {*row["said"]["missing"]}, {*row["oracle"]["escapes"]}
    if missing - escapes:
        wrong.append(f"listed as missing: {', '.join(sorted(missing - escapes))}")
    if escapes - missing:
        wrong.append(f"left torch unseen by {', '.join(sorted(escapes - missing))}")
    return "; ".join(wrong)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a Markdown page."""
    lines = [
        "# Other libraries' trainings and samplers",
        "",
        f"torch {torch.__version__}, {processor()}, by `python -m benchmarks.libraries`. Second step under `profile`, then",
        "`count` with the optimizer, then on. The MACs beside FlopCounterMode's, the peak beside the storages seen by a dispatch",
        "mode, which knows what the model and the optimizer hold, and what operators take and return. *Same*: losses, parameters, state and random generators are bit-equal to a training without fxflops.",
        "",
        "| case | versions | MACs | FlopCounterMode | peak, bytes | storages | optimizer FLOPs | same | note |",
        "|---|---|---:|---:|---:|---:|---:|---|---|",
    ]
    for row in rows:
        said, oracle = row.get("said", {}), row.get("oracle", {})
        numbers = [
            said.get("macs"),
            oracle.get("macs"),
            said.get("peak"),
            oracle.get("peak"),
            said.get("count", [None])[-1],
        ]
        same = "yes" if row.get("same") else "NO"
        lines.append(row_of_table(row, numbers, same, note_of(row, NOTES, verdict)))
    good = sum(not verdict(row) for row in rows)
    return "\n".join([*lines, "", f"{good} of {len(rows)} rows are equal in everything, and nothing is missing.", ""])


NUMPY = "equal; np.array(tensor) leaves torch, and is listed as missing"
NOTES = {
    "diffusers: UNet2DModel, EulerDiscreteScheduler": NUMPY,
    "diffusers: UNet2DModel, DPMSolverMultistepScheduler": NUMPY,
    "pyro: SVI of a Bayesian regression": "peak: the first step's observations, 48 bytes, which the guide's prototype_trace holds: "
    "gc.get_objects() finds them before and after the step; the oracle looks into attributes, lists and dicts alone",
}
"""Known causes of differences, by case."""


def warm_up() -> None:
    """Import what every case needs, so that the forked processes do not have to."""
    import fxflops

    model = torch.nn.Linear(2, 2)
    fxflops.count(model, torch.ones(2, 2), backward=True)
    with fxflops.profile(model):
        model(torch.ones(2, 2)).sum().backward()


def in_copy(name: str, seconds: int, run: Callable[[str], dict[str, Any]], needs: Iterable[str]) -> dict[str, Any]:
    """Run a case in a fork of this process and return its row. ``needs`` names the packages to import before forking."""
    for need in needs:
        with contextlib.suppress(Exception):
            importlib.import_module(need.replace("-", "_").removesuffix("_ppl"))
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        with os.fdopen(writer, "w") as file:
            file.write(json.dumps(run(name)))
        os._exit(0)
    os.close(writer)
    deadline, text = time.monotonic() + seconds, b""
    while time.monotonic() < deadline and select.select([reader], [], [], max(deadline - time.monotonic(), 0))[0]:
        if not (chunk := os.read(reader, 2**16)):
            break
        text += chunk
    else:
        os.kill(child, signal.SIGKILL)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if status or not text:
        said = f"took more than {seconds} s" if status == signal.SIGKILL else f"ended with status {status}"
        return {"case": name, "versions": {}, "broken": said}
    row: dict[str, Any] = json.loads(text)
    return row


def row_of_table(row: dict[str, Any], numbers: Sequence[float | None], *rest: str) -> str:
    """Return a case's row of a page: its name, versions, numbers (empty for None), and the rest."""
    versions = ", ".join(f"{name} {number}" for name, number in row["versions"].items())
    cells = ["" if number is None else f"{number:,.0f}" for number in numbers]
    return f"| {' | '.join([row['case'], versions, *cells, *rest])} |"


def note_of(row: dict[str, Any], notes: Mapping[str, str], verdict: Callable[[dict[str, Any]], str]) -> str:
    """Return the known cause of a row's difference, else its verdict, with characters that would break a table replaced."""
    return (notes.get(row["case"], "") or verdict(row)).replace("\n", " ").replace("|", "/")


def run_cases(
    cases: Mapping[str, tuple[Any, Sequence[str]]],
    run: Callable[[str], dict[str, Any]],
    verdict: Callable[[dict[str, Any]], str],
    table: Callable[[list[dict[str, Any]]], str],
    kept: Path,
    page: Path,
    can_run: Callable[[str], bool] = lambda name: True,
) -> None:
    """Run the requested cases that have no row yet, each in a fork of this process. Save the rows to ``kept`` and write ``page``.

    The second item of each case names the packages that it needs. This function reads the command line.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--seconds", type=int, default=120)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.compiler.set_stance("force_eager")  # torch.compile(fullgraph=True) refuses the oracles' modes
    warm_up()
    done = {} if not kept.exists() else {row["case"]: row for row in map(json.loads, kept.read_text().splitlines())}
    for name in cases:
        if given.only.lower() not in name.lower() or (name in done and not given.again) or not can_run(name):
            continue
        row = done[name] = in_copy(name, given.seconds, run, cases[name][1])
        print(f"{name}: {verdict(row) or 'equal'}", flush=True)
        kept.write_text("".join(json.dumps(done[each]) + "\n" for each in cases if each in done))
    page.write_text(table([done[name] for name in cases if name in done]))


if __name__ == "__main__":
    run_cases(CASES, run, verdict, table, DONE, TABLE)
