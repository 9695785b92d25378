"""Write the table of a mutation run: killed mutants, survivors, and the verdict on each survivor."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.mutation.operators import Mutant

EQUIVALENT = "equivalent: "
"""The prefix of a verdict in ``mutants_verdicts.json`` if no test can distinguish the mutant from the original."""
FOLDERS = ("fxflops/ops/", "fxflops/counting/", "fxflops/trace/")


def write(
    sample: Sequence[Mutant], rows: Mapping[str, Sequence[Mapping[str, Any]]], every: int, seed: int, folder: Path
) -> None:
    """Write ``mutants.md`` from the results of each mutant of the sample. In ``rows``, the latest run comes last."""
    said = folder / "mutants_verdicts.json"
    verdicts: dict[str, str] = json.loads(said.read_text()) if said.exists() else {}
    kinds = {m.key: kind(rows.get(m.key, ()), verdicts.get(m.key, "")) for m in sample}
    names = ("killed", "killed since", "equivalent", "survived")
    lines = ["# Mutation", "", f"`benchmarks/mutants.py --sample {len(sample)} --seed {seed}`, of {every:,} mutants; mutmut's operators,"
             " deleted statements, negated conditions, swapped arguments;", f"torch {torch.__version__}. Score: killed of those"
             " that are not equivalent; *killed since*: by a test written for it, or one that it was not given at first.", "",
             f"| | mutants | {' | '.join(names)} | score |", "|" + " --- |" * 7]  # fmt: skip
    for start in (*FOLDERS, ""):
        of = Counter(kinds[m.key] for m in sample if m.file.startswith(start))
        run = sum(of[n] for n in names)
        score = (of["killed"] + of["killed since"]) / max(run - of["equivalent"], 1)
        lines.append(f"| {start or 'all'} | {run} | {' | '.join(str(of[n]) for n in names)} | {score:.1%} |")
    missing = sum(k == "not run" for k in kinds.values())
    if missing:
        lines += ["", f"{missing} of the sample have not been run yet."]
    if late := sum(rows[m.key][-1]["code"] == 2 for m in sample if m.key in rows):
        lines += ["", f"{late} of the killed were stopped by the time limit."]
    for name, title in (
        ("survived", "Survivors"),
        ("killed since", "Killed by tests written for them"),
        ("equivalent", "Equivalent"),
    ):
        lines += ["", f"## {title}", ""]
        listed = [m for m in sorted(sample, key=lambda m: (m.file, m.lines.start)) if kinds[m.key] == name]
        lines += [
            f"- {shown(m)}{': ' * bool(v := verdicts.get(m.key, ''))}{v.removeprefix(EQUIVALENT)}" for m in listed
        ]
    (folder / "mutants.md").write_text("\n".join(lines) + "\n")


def kind(rows: Sequence[Mapping[str, Any]], verdict: str) -> str:
    if not rows:
        return "not run"
    if rows[-1]["code"]:
        return "killed since" if any(not row["code"] for row in rows) else "killed"
    return "equivalent" if verdict.startswith(EQUIVALENT) else "survived"


def shown(mutant: Mutant) -> str:
    before, after, statement = (" ".join(t.split()) for t in (mutant.before, mutant.after, mutant.statement))
    where = "" if statement in (before, after) else f" in `{statement[:100]}`"
    return f"{mutant.file}:{mutant.lines.start} `{before[:90]}` -> `{after[:90]}`{where}"
