"""Fuzz fxflops with random nets: all its numbers for a net must agree with each other and with independent measurements.

    python benchmarks/fuzz.py --nets 500 --seed 0

hypothesis draws each net as the source text of a module (``fuzz_nets.py``). ``fuzz_checks.py`` then checks the net: counts must
agree with each other and with an independent counter (``fuzz_counter.py``), predicted memory must agree with the CPU's allocator,
and the state must be unchanged, even after an error. Results are kept in ``results/fuzz.jsonl``. Nets that are already there are
not checked again, so the results of several runs add up. The table is ``results/fuzz.md``. A net with a disagreement is shrunk to
a few lines.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import FlakyStrategyDefinition

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops
from benchmarks.fuzz_checks import Checked
from benchmarks.fuzz_nets import Line, Net, Part, nets

KEPT = Path(__file__).parent / "results" / "fuzz.jsonl"
AT_ONCE, ONE_IN = 25, 20
PHASES, THREADS, FORWARDS, META = (
    f"tests/trace/test_{name}.py" for name in ("phases", "threads", "forwards", "meta_mirror")
)
MENDED = [
    ("an LSTM or GRU as the last call of what checkpoint computes again: 0 recomputed MACs, the call being stopped once all is saved", PHASES),
    ("the same for any last operator that saves its result (tanh, layer_norm): not in the recomputed FLOPs", PHASES),
    ("a layer in a thread of what checkpoint computes again: counted as forward a second time", THREADS),
    ("an error of meta's that the model swallows in a thread: another branch was counted than the model takes", THREADS),
    ("`torch.add(x, 1, out=torch.empty(0))`: what reads the result counted no elements", META),
    ("`torch.add(x, 1, out=table)`: the table kept its old values under a count, and a branch on it went wrong", META),
    ("`copy.deepcopy(self.layer)(x)` in a forward: the copy was predicted to stay (69.6 KB for 36.4), and kept a `forward` if it did", FORWARDS),
    ("the same with `analyze(backward=True)`: refused, as its graph held the copy's weights as constants that do not learn", "tests/test_api.py"),
    ("a layer that clips its weight in a thread of the model's own: `analyze()` left the weight changed, which symbolic tracing wrote to", THREADS),
    ("a tensor that the model has filled itself, through an autograd.Function or a reentrant checkpoint: `count(backward=True)` lost its gradient", META),
    ("what a forward notes on an input, a buffer or a tensor that it keeps (`x.note = 1`) stayed after a count", "tests/model/test_snapshot.py"),
    ("a model that raises while its symbolic graph fails of itself: the graph's error was told, not the model's", "tests/test_api.py"),
    ("a layer without gradients on a strided input: torch asks whether the weight learns, and copies the rows; predicted 1,168 bytes of 1,552", "tests/test_memory.py"),
    ("`1 / x`: a reciprocal and a product, of which the first was not predicted", "tests/test_memory.py"),
    ("a batch norm (or instance norm) of values that do not learn: meta's kernel makes their gradient, so that the peak was predicted too high", "tests/trace/test_tape_memory.py"),
    ("a forward that freezes or thaws a parameter which it has used before: `count(backward=True)` kept the gradient that it had at first", META),
    ("a checkpoint inside a reentrant one: the last layer before the operator that it stops was counted twice", PHASES),
    ("a GRU under a checkpoint: each step's gates were predicted as kept, 40.0 KB of 14.3", "tests/test_memory.py"),
    ("`F.fold`, and the gradient of `F.unfold`: the kernels' result has a storage as large as the windows", "tests/test_memory.py"),
    ("two gradients in a checkpointed forward: what the second computes again were nodes of the graph, and did not run there", "tests/run/test_passes.py"),
    ("a tensor that a reentrant checkpoint fills inside, and returns: `count(backward=True)` ended its backward pass there", META),
    ("`checkpoint(...).add_(1)`: `analyze(backward=True)` was refused, as its graph has no checkpointing and the result was changed", "tests/run/test_passes.py"),
]  # fmt: skip
"""Defects that the fuzzer found, each with the test file that now covers it."""
LIMITS = [
    "a function, not a module, that is called in a thread of the model's own is seen by nobody: no mode is on there (modules are watched)",
]


def drawn(number: int, use: Callable[[Net], None], count: int = AT_ONCE) -> None:
    """Call ``use`` with each net that hypothesis draws for a seed, up to ``count`` nets."""

    @seed(number)
    @settings(
        max_examples=count, database=None, deadline=None, suppress_health_check=[*HealthCheck], phases=[Phase.generate]
    )
    @given(nets())
    def draw(net: Net) -> None:
        use(net)

    draw()


def distinct_nets(number: int = 0, seen: Iterable[str] = ()) -> Iterator[tuple[int, Net]]:
    """Yield seeds and their nets, starting at ``number``. Each net is yielded once; nets whose key is in ``seen`` are skipped."""
    known_keys = {*seen}
    while True:
        of_seed: list[Net] = []
        try:
            drawn(number, of_seed.append)
        except FlakyStrategyDefinition as error:  # the rest of this seed's nets cannot be drawn
            print(f"seed {number}: {error}", flush=True)
        for net in of_seed:
            if key_of(net) not in known_keys and net.kinds:
                known_keys.add(key_of(net))
                yield number, net
        number += 1


def key_of(net: Net) -> str:
    return hashlib.sha256(f"{net.text}{net.seed}".encode()).hexdigest()[:16]


def shrunk(net: Net, kind: str) -> Net:
    """Return the net without the lines that are not needed for a disagreement of this kind."""
    before, smaller = None, net
    while before is not smaller:
        before = smaller
        for candidate in _smaller(before):
            if len(candidate.text) < len(before.text) and kind in kinds_of(candidate, "fault" in kind):
                smaller = candidate
                break
    return smaller


def kinds_of(net: Net, faults: bool = False) -> set[str]:
    try:
        return {kind for kind, _ in Checked(net.text, net.seed, faults).found}
    except Exception as error:
        return {f"the fuzzer raises {type(error).__name__}"}


def _smaller(net: Net) -> Any:
    """Yield smaller nets: without one line, whose result is replaced by its input; and with a single value as the result."""
    for i, part in reversed([*enumerate(net.parts)]):
        for j in reversed(range(len(part.lines))):
            other = copy.deepcopy(net)
            line = other.parts[i].lines.pop(j)
            for later in other.parts[i].lines[j:]:
                later.body = _renamed(later.body, line)
                later.of = _renamed(later.of, line)
            other.parts[i].returned = _renamed(other.parts[i].returned, line)
            text = "\n".join(part.text() for part in other.parts)
            other.parts = [p for p in other.parts if p.name == "Net" or text.count(f"{p.name}(") > 1]
            yield other
        found = re.findall(r"x\d+", part.returned)
        if part.returned not in found:
            for name in found:
                other = copy.deepcopy(net)
                other.parts[i].returned = name
                yield other


def _renamed(text: str, line: Any) -> str:
    return re.sub(rf"\b{line.out}\b", line.of, text)


def checked(net: Net, number: int, faults: bool, shrink: bool) -> dict[str, Any]:
    """Check a net and return its row. A net with a disagreement is shrunk if ``shrink``."""
    began = time.perf_counter()
    try:
        result = Checked(net.text, net.seed, faults)
        found, notes = result.found, result.notes
    except Exception as error:
        found, notes = [(f"the fuzzer raises {type(error).__name__}", str(error))], []
    row: dict[str, Any] = {
        "seed": number,
        "key": key_of(net),
        "kinds": net.kinds,
        "found": found,
        "notes": notes,
        "faults": faults,
    }
    row["seconds"] = round(time.perf_counter() - began, 3)
    if found:
        smaller = shrunk(net, found[0][0]) if shrink else net
        row |= {"text": smaller.text, "net": asdict(smaller)}
    return row


def net_of(kept: dict[str, Any]) -> Net:
    """Rebuild the net that is kept in a row with a disagreement."""
    parts = [Part(**{**part, "lines": [Line(**line) for line in part["lines"]]}) for part in kept["parts"]]
    return Net(**{**kept, "parts": parts})


def again(rows: list[dict[str, Any]]) -> None:
    """Check the nets with a disagreement again, and update their rows. ``was`` keeps the kinds of earlier disagreements."""
    for i, row in enumerate(rows):
        if row["found"]:
            new = checked(net_of(row["net"]), row["seed"], row["faults"], shrink=True)
            rows[i] = {**new, "was": row.get("was", []) + sorted({kind for kind, _ in row["found"]})}
            tell(rows[i])
    KEPT.write_text("".join(json.dumps(row) + "\n" for row in rows))


def tell(row: dict[str, Any]) -> None:
    for kind, what in row["found"]:
        print(f"{kind}: {what}", flush=True)
    if row["found"]:
        print(row["text"], flush=True)


def known() -> list[dict[str, Any]]:
    return [json.loads(line) for line in KEPT.read_text().splitlines()] if KEPT.exists() else []


def table(rows: list[dict[str, Any]]) -> str:
    """Return the page: the nets that ran, the disagreements, the explained differences, and the defects that were found."""
    kinds = Counter(kind for row in rows for kind in row["kinds"])
    notes = Counter(note for row in rows for note in {*row["notes"]})
    left = [row for row in rows if row["found"]]
    ran = [row for row in rows if "does not run" not in row["notes"]]
    lines = [
        "# Random nets",
        "",
        f"torch {torch.__version__}, fxflops {fxflops.__version__}: {len(ran):,} different nets that run, with {kinds.total():,} statements "
        f"({', '.join(f'{kind} {count:,}' for kind, count in kinds.most_common())}); in {sum(row['faults'] for row in ran):,} of them "
        "something raised at ten random calls.",
        "",
        f"Nets of which something disagrees: {len(left)}.",
        "",
        *(f"- {kind}: {what[:200]} (net {row['key']})" for row in left for kind, what in row["found"]),
        "## Explained",
        "",
        "| nets | why something is not held of them, or not bit for bit |",
        "|---:|---|",
        *(f"| {count} | {' '.join(note.split())[:160]} |" for note, count in notes.most_common()),
        "",
        *(f"- A stated limit: {limit}." for limit in LIMITS),
        "",
        "## Found on the way",
        "",
        "| what was wrong | test |",
        "|---|---|",
        *(f"| {what} | `{test}` |" for what, test in MENDED),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", type=int, default=100, help="check so many more")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; each gives up to 25 nets")
    parser.add_argument("--fast", action="store_true", help="do not shrink what disagrees")
    parser.add_argument("--again", action="store_true", help="first check again the nets of which something disagreed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if options.again:
        again(known())
    seen = {row["key"] for row in known()}
    for new, (number, net) in enumerate(islice(distinct_nets(options.seed, seen), options.nets), 1):
        row = checked(net, number, new % ONE_IN == 0, not options.fast)
        with KEPT.open("a") as file:
            file.write(json.dumps(row) + "\n")
        tell(row)
    rows = known()
    KEPT.with_suffix(".md").write_text(table(rows))
    print(len(rows), "nets", Counter(kind for row in rows for kind, _ in row["found"]))


if __name__ == "__main__":
    main()
