"""Old and new side by side: differences are named down to the call, and equal results have no differences."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from benchmarks.side_by_side.__main__ import Side, cause_of
from benchmarks.side_by_side.compare import Difference, differences
from benchmarks.side_by_side.facts import of_report, row_of, unpacked
from tests.source_tree import needs_source_tree

ROOT = Path(__file__).parents[2]
OTHER = """

import torch
from fxflops import formula

@formula(torch.Tensor.relu)
def twice(input, *, out):
    return 2 * out.numel()
"""
"""What the other side's library does differently: it counts a relu method twice."""


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def facts(model: nn.Module) -> Any:
    report = fxflops.count(model, torch.ones(2, 8), mode="as_is")
    return json.loads(json.dumps({"count": of_report(report)}))


def places(old: Any, new: Any) -> list[str]:
    return [each.place for each in differences(old, new)]


def test_equal_counts_have_equal_facts() -> None:
    assert facts(model()) == facts(model())
    assert differences(facts(model()), facts(model())) == []
    row = row_of("mlp", facts(model()), {})
    assert row == row_of("mlp", facts(model()), {})
    assert unpacked(row["facts"]) == facts(model())


def test_a_difference_in_one_call_is_named() -> None:
    old, new = facts(model()), facts(model())
    new["count"]["calls"][1]["cost"]["others"] += 1
    new["count"]["totals"]["total_flops"] += 1  # a consequence of it
    (found,) = differences(old, new)
    assert (found.way, found.place, found.old, found.new) == ("count", "calls[1] relu in 1.cost.others", "16", "17")
    assert row_of("mlp", old, {})["digests"] != row_of("mlp", new, {})["digests"]


def test_a_cause_explains_what_all_its_patterns_match() -> None:
    difference = Difference("train", "calls[7] einsum in layer.cost.macs", "8", "4")
    causes = [("fuzz/.*", "count", ".*", "of another way"), ("fuzz/.*", "train", r"calls.* einsum .*", "counted twice")]
    assert cause_of("fuzz/4d99", difference, causes) == "counted twice"
    assert cause_of("timm/resnet18", difference, causes) == ""
    by_half = [(".*", "train", lambda text: text.endswith("8 -> 4"), "counted twice")]
    assert cause_of("timm/resnet18", difference, by_half) == "counted twice"


def test_places_and_addresses_are_no_facts() -> None:
    one, other = ({"count": {"raises": ["E", f"<f at 0x7f{n}abc0> in /home/{n}/fxflops/api.py"]}} for n in (1, 2))
    rows = [row_of("mlp", facts, {}, (f"/home/{n}",)) for n, facts in enumerate((one, other), 1)]
    assert rows[0] == rows[1]
    assert unpacked(rows[0]["facts"]) == {"count": {"raises": ["E", "<f at 0x> in TREE/fxflops/api.py"]}}


def test_what_took_too_long_is_not_compared() -> None:
    slow = {
        "count": {"raises": ["TimeoutError", "not done after 180 s"]},
        "train": {"raises": ["TimeoutError", "of the model's own"]},
    }
    assert row_of("mlp", slow, {})["cut_off"] == ["count"]


def test_each_kind_of_difference_is_named_once() -> None:
    old, new = facts(model()), facts(model())
    for i in (0, 2):
        new["count"]["calls"][i]["cost"]["macs"] = 0
    new["count"]["calls"][1]["path"] = "elsewhere"
    new["count"]["timeline"][-1]["live"][0] += 4
    assert places(old, new) == [
        "calls[0] linear in 0.cost.macs",
        "calls[1] relu in 1.path",
        "timeline[2] linear in 2.live[0]",
    ]


def test_a_call_more() -> None:
    old, new = facts(model()), facts(model())
    (call,) = new["count"]["calls"][1:2]
    new["count"]["calls"].insert(1, {**call, "op": "gelu"})
    (found,) = differences(old, new)
    assert found.place == "calls[1]"
    assert (found.old, found.new) == ("3 items, here 0: ", "4 items, here 1: gelu in 1")


def test_moments_that_repeat_the_one_before_are_counted() -> None:
    old, new = facts(model()), facts(model())
    timeline = new["count"]["timeline"]
    timeline.insert(1, {**timeline[0], "op": "view"})
    (found,) = differences(old, new)
    assert (found.place, int(found.new) - int(found.old)) == ("timeline.repeated", 1)
    timeline[1]["live"] = [0] * len(timeline[0]["live"])
    assert places(old, new) == ["timeline[1]"]


def test_of_the_peak_the_tensors_that_one_side_lacks_are_named() -> None:
    old, new = facts(model()), facts(model())
    new["count"]["live_at_peak"][0]["spec"] = {"tensor": [[64], "float32"]}
    new["count"]["live_at_peak"].reverse()
    assert places(old, new) == ["live_at_peak[0] 0.weight in 0.spec.tensor[0][0]"]


def test_words_are_no_difference_but_what_follows_from_them_is() -> None:
    old, new = facts(model()), facts(model())
    new["count"]["calls"][1]["rule"] = {"formula": "another", "counts": "in other words"}
    assert differences(old, new) == []
    new["count"]["totals"]["total_flops"] += 1  # a difference in words does not hide other differences
    assert places(old, new) == ["totals.total_flops"]


def test_one_side_raises() -> None:
    raised: Any = {"count": {"raises": ["RunError", "no"], "warnings": []}}
    (found,) = differences(facts(model()), raised)
    assert (found.place, found.old, found.new) == ("raises", "null", '["RunError", "no"]')


@pytest.mark.parametrize(
    ("other", "place"),
    [
        (nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4, bias=False)), "calls[2] linear in 2.settings.bias"),
        (nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 4)), "calls[1] relu in 1.settings.inplace"),
        (nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 4)), "timeline.repeated"),
        (nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.ReLU()), nn.Linear(8, 4)), "calls[1] relu in 1.path"),
        (nn.Sequential(*model(), nn.Dropout(0.0)), "scopes"),
    ],
)
def test_facts_tell_models_apart(other: nn.Module, place: str) -> None:
    found = places(facts(model()), facts(other))
    assert any(each.startswith(place) for each in found), found


@needs_source_tree
def test_two_sides(tmp_path: Path) -> None:
    """The other side is a copy of the library that counts one operation twice. The difference shows only where it is used."""
    shutil.copytree(ROOT / "fxflops", tmp_path / "other" / "fxflops", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "other" / "fxflops" / "__init__.py").open("a") as file:
        file.write(OTHER)
    command = [sys.executable, "-m", "benchmarks.side_by_side", str(tmp_path / "other"), "--out", str(tmp_path / "out")]
    command += ["--sets", "odd", "--only", "tied,in_place,another's in a leaf", "--ways", "count"]
    settings: Any = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "capture_output": True, "text": True}
    made = subprocess.run(command, **settings)
    assert "UNEXPLAINED" in made.stdout, made.stderr
    assert made.returncode == 1
    table = (tmp_path / "out" / "count" / "table.md").read_text()
    assert "| odd | 3 | 3 | 2 | 1 | 0 | 0 |" in table
    # The layer's forward is x + linear(x).relu() on [2, 8].
    assert "- odd tied: count: calls[3] twice in 2.cost.others: 32 -> 16" in table
    side = Side("new", ROOT, tmp_path / "out" / "count")
    side.read("odd")
    assert {case for _, case in side.rows} == {"tied", "in_place", "another's in a leaf"}  # they are not run again
    assert all(side.facts(key)["count"]["calls"] for key in side.rows)
