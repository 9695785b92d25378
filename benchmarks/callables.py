"""Count pipelines, methods and loops of other libraries the way users call them: ``fxflops.count(pipe, prompt)``.

    python -m benchmarks.callables [--only WORD] [--again] [--seconds 120]

Each case runs in its own process, three times from the same seeds: under torch's FLOP counter, in ``fxflops.profile``, and by
``fxflops.count``. All state and the random generators must be bit-equal before and after ``fxflops.count``, and the call must then
still compute the same MACs. The training steps of ``benchmarks/libraries.py`` are counted as functions too. Finished cases are
kept in ``results/callables.jsonl`` until ``--again``.
"""

from __future__ import annotations

import functools
import traceback
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .callable_cases import CALLS, Call
from .libraries import note_of, row_of_table, run_cases
from .library_cases import CASES
from .library_oracles import macs_of, seed, values_of
from .machine import processor

RESULTS = Path(__file__).parent / "results"
DONE, TABLE = RESULTS / "callables.jsonl", RESULTS / "callables.md"


def of_training(name: str) -> Call:
    """Return a training step of ``benchmarks/libraries.py`` as a call of a function. A first step has already run."""
    case = CASES[name][0]()
    case.step()
    return Call(case.step, (), {}, {"model": case.model}, case.changes)


EACH = CALLS | {f"step · {name}": (functools.partial(of_training, name), needs) for name, (_, needs) in CASES.items()}


def started(name: str) -> Call:
    seed()
    made = EACH[name][0]()
    seed(1)
    return made


def run(name: str) -> dict[str, Any]:
    """Run a case in this process; return its row."""
    import fxflops

    row: dict[str, Any] = {"case": name, "versions": {need: version(need) for need in EACH[name][1]}}
    try:
        case = started(name)
        macs, escapes = macs_of(lambda: case.called(*case.args, **case.kwargs))
        row["oracle"] = {"macs": macs, "escapes": escapes}
    except Exception as error:
        return row | {"broken": f"{type(error).__name__}: {error}"[:300], "where": traceback.format_exc()[-900:]}
    try:
        case = started(name)
        with fxflops.profile(case.modules.get("") if [*case.modules] == [""] else case.modules) as p:
            case.called(*case.args, **case.kwargs)
        case = started(name)
        state = [*case.modules.values(), *case.changes, case.args, case.kwargs]
        before = values_of(*state)
        report = fxflops.count(case.called, case.args, dict(case.kwargs), mode="as_is")
        same = values_of(*state) == before
        macs_after, _ = macs_of(lambda: case.called(*case.args, **case.kwargs))
    except Exception as error:
        return row | {"raised": f"{type(error).__name__}: {error}"[:600], "where": traceback.format_exc()[-900:]}
    parameters = {id(each): each.numel() for module in case.modules.values() for each in module.parameters()}
    row["said"] = {
        "macs": sum(each.macs for each in report.counted),
        "flops": sum(each.flops for each in report.counted),
        "profiled": [sum(each.macs for each in p.report.counted), sum(each.flops for each in p.report.counted)],
        "params": report.params.total if report.params else None,
        "expected params": sum(parameters.values()),
        "way": report.trace.removeprefix("counted "),
        "why": report.trace_reason[:300],
        "missing": sorted({each.op for each in report.missing}),
        "after": macs_after,
    }
    return row | {"same": same}


def verdict(row: dict[str, Any]) -> str:
    """Return what is wrong with a row; "" if everything is right."""
    if "broken" in row:
        return f"cannot run alone: {row['broken']}"
    if "raised" in row:
        return f"RAISED {row['raised']}"
    said, wrong = row["said"], []
    if not row["same"]:
        wrong.append("CHANGED the state")
    if said["macs"] != row["oracle"]["macs"]:
        wrong.append("MACs differ from FlopCounterMode's")
    if said["profiled"] != [said["macs"], said["flops"]]:
        wrong.append(f"profile has {said['profiled']}")
    if said["params"] < said["expected params"]:  # a step may use more, e.g. an averaged model
        wrong.append(f"params {said['params']} of {said['expected params']}")
    if said["after"] != row["oracle"]["macs"]:
        wrong.append("runs differently afterwards")
    if {*said["missing"]} - {*row["oracle"]["escapes"]}:
        wrong.append(f"listed as missing: {', '.join(said['missing'])}")
    return "; ".join(wrong)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a Markdown page."""
    lines = [
        "# Callables of other libraries",
        "",
        f"{processor()}, by `python -m benchmarks.callables`: `fxflops.count(called, args, kwargs)` beside torch's FlopCounterMode around",
        "the call and `fxflops.profile` of it. *Same*: parameters, buffers, optimizers, schedulers, inputs and random generators are",
        "bit-equal before and after. *Way*: whether it was counted on the meta device, or needed values.",
        "",
        "| what is called | versions | MACs | FlopCounterMode | FLOPs | profile | params | way | same | note |",
        "|---|---|---:|---:|---:|---:|---:|---|---|---|",
    ]
    for row in rows:
        said, oracle = row.get("said", {}), row.get("oracle", {})
        numbers = [
            said.get("macs"),
            oracle.get("macs"),
            said.get("flops"),
            said.get("profiled", [None])[-1],
            said.get("params"),
        ]
        same = "yes" if row.get("same") else "NO"
        lines.append(row_of_table(row, numbers, said.get("way", ""), same, note_of(row, NOTES, verdict)))
    good = sum(not verdict(row) for row in rows)
    return "\n".join([*lines, "", f"{good} of {len(rows)} rows are equal in everything.", ""])


KEPT = "equal but for sums with the gradients of the step before, which a count begins without"
NOTES = {
    "step · opacus: private SGD": KEPT,
    "step · vector_quantize_pytorch: VQ with EMA codes": KEPT,
    "step · fastai: its Adam": KEPT,
    "step · fastai: a Learner's fit": KEPT,
    "step · pyro: SVI of a Bayesian regression": KEPT,
    "step · torch_optimizer: Lookahead of Yogi": KEPT,
    "diffusers: flow matching, FluxPipeline": "equal but for torch.outer's 528 products, which FlopCounterMode does not count",
}
"""The known causes of differences, by case."""


def is_installed(name: str) -> bool:
    try:
        return all(version(need) for need in EACH[name][1])
    except PackageNotFoundError:
        return False


if __name__ == "__main__":
    run_cases(EACH, run, verdict, table, DONE, TABLE, is_installed)
