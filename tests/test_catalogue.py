"""The committed catalogue page lists every formula. Each formula's docstring says what it counts, and each has a test."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from fxflops.counting.catalogue import markdown, registered
from fxflops.counting.catalogue_page import README, catalogue, counts, rows_of, search
from fxflops.errors import InputError
from fxflops.ops import BASE
from tests.fresh import Fresh
from tests.source_tree import needs_source_tree

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "fxflops"
# Tests of several source files or of none. test_reports*.py, from users' reports, are exempt below.
ACROSS = {
    "test_changelog",
    "test_site",
    "test_side_effects",
    "test_stale",
    "test_released",
    "test_at_once",
    "test_shape_rules",
    "test_classes",
    "test_fast_asks",
    "test_graph_recorder_nodes",
    "test_tape_memory",
    "test_golden",
    "test_page_browser",
    "test_large",
    "test_memory",
    "test_training",
    "test_training_steps",
    "test_distributed",
    "test_hand_worked",
    "test_peer_suite",
    "test_fuzz",
    "test_models",
    "test_layering",
    "test_imports",
    "test_style",
    "test_readme",
    "test_formulas",
    "test_catalogue",
    "test_compare",
    "test_published",
    "test_drop_ins",
}
# Formulas that override a more general one of the same file for one spelling.
OVERRULED = {("matmul", "reflected_matmul")}
FAMILIES = sorted({row.family for row in registered() if row.family})
FORMULAS = [row for row in registered() if row.family]


WRITTEN_FOR = re.search(r"torch (\d+\.\d+)\.", README.read_text(encoding="utf8"))
of_this_torch = pytest.mark.skipif(
    WRITTEN_FOR is not None and not torch.__version__.startswith(f"{WRITTEN_FOR[1]}."),
    reason="the catalogue is written for another torch, which has other spellings",
)


@of_this_torch
def test_the_committed_page_is_the_generated_one() -> None:
    assert README.read_text(encoding="utf8") == markdown(), "run: python -m fxflops.counting.catalogue"


def test_the_page_has_the_rows_that_it_is_written_from() -> None:
    """Searching the page does not load torch. The page shows ``code`` as `code`."""
    rows = [row._replace(doc=row.doc.replace("``", "`")) for row in registered()]
    assert [*rows_of(markdown())] == rows
    assert len(catalogue()) > 1000


def test_the_module_writes_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[Path, str]] = []
    monkeypatch.setattr(Path, "write_text", lambda path, text, encoding: written.append((path, text)))
    monkeypatch.delitem(sys.modules, "fxflops.counting.catalogue")
    runpy.run_module("fxflops.counting.catalogue", run_name="__main__")
    assert written == [(README, markdown())]


def test_the_first_line_says_what_is_counted() -> None:
    assert len(FORMULAS) > 500
    # The whole formula is on that line.
    assert [row for row in FORMULAS if not re.fullmatch(r".+ -> .+: .+(\.|https://\S+)", row.doc)] == []


@of_this_torch
def test_each_formula_is_named_in_its_family_s_test() -> None:
    assert len(FAMILIES) > 40
    assert {family: docs for family in FAMILIES if (docs := untested(family))} == {}


def untested(family: str) -> dict[str, list[str]]:
    """The docstrings of a family's formulas that its test file does not name, each with the names that would count."""
    text = (TESTS / "ops" / f"test_{family}.py").read_text(encoding="utf8")
    words = set(re.findall(r"\w+", text))
    # The test may assemble a name: f"LPPool{d}d".
    joined = [re.sub(r"{.*?}", r"\\w+", name) for name in re.findall(r'f"((?:\w|{.*?}){3,})"', text)]
    patterns = [pattern for pattern in joined if re.search("[a-zA-Z]{3}", pattern)]
    spellings: dict[str, set[str]] = {}
    for row in FORMULAS:
        # A row without targets is an operator of another torch version.
        if row.family == family and row.targets:
            # Take the function's own name from package.module:function, from Function.apply, and from the backward of either.
            bare = [re.sub(r"(\.(apply|forward|backward))+$", "", target) for target in row.targets]
            names = {row.op, *(re.split(r"\.|:+", target)[-1] for target in bare)}
            spellings.setdefault(row.doc, set()).update(names)
    return {
        doc: sorted(names)
        for doc, names in spellings.items()
        if not names & words and not any(re.fullmatch(pattern, name) for pattern in patterns for name in names)
    }


def test_zeros_have_reasons_and_names() -> None:
    zeros = [row for row in registered() if not row.family]
    assert all(row.doc and row.op for row in zeros)


@needs_source_tree
def test_each_family_has_a_test_and_each_test_a_source() -> None:
    tests = {path.relative_to(TESTS).with_suffix("") for path in TESTS.rglob("test_*.py")}
    tests = {path for path in tests if path.parts[0] not in ("benchmarks", "kinds")}  # tests of no single source file
    of_sources = [path for path in tests if path.name not in ACROSS and not path.name.startswith("test_reports")]
    sources = {path.parent / path.name.removeprefix("test_") for path in of_sources}
    missing = [
        s for s in sorted(sources) if not (PACKAGE / s).with_suffix(".py").exists() and not (PACKAGE / s).is_dir()
    ]
    assert not missing, "tests without a source of that name"
    assert {Path("ops") / family for family in FAMILIES} <= sources


REGISTER_AGAIN = """
import importlib
import sys
import fxflops.ops
from fxflops.ops import _registry

first, twice = {}, []

def add(table, target, entry):
    for key in _registry._keys(target):
        function = entry.function and f"{entry.function.__module__}.{entry.function.__qualname__}"
        rule = (entry.op, function) if function else ("", "zero")
        if first.setdefault(key, rule) != rule:
            twice.append((key, first[key][1].rpartition(".")[2], rule[1].rpartition(".")[2]))
        first[key] = rule

_registry.FormulaRegistry.add = add
for name in [name for name in sys.modules if name.startswith("fxflops.ops.") and "._" not in name]:
    if not name.endswith(".mappings"):
        importlib.reload(sys.modules[name])
assert len(first) > 300, first
print(*("{0}\\t{1}\\t{2}".format(*each) for each in twice), sep="\\n")
"""


def test_no_target_is_registered_for_two_formulas(fresh: Fresh) -> None:
    run = fresh.run("-c", REGISTER_AGAIN)
    assert run.returncode == 0, run.stderr
    found = {tuple(line.split("\t")) for line in run.stdout.splitlines() if line}
    assert {each for each in found if each[1:] not in OVERRULED} == set()


@of_this_torch
def test_operators_of_derivatives_are_torch_s() -> None:
    names = {key[6:] for key in BASE.entries if isinstance(key, str) and key.startswith("aten::") and "backward" in key}
    assert len(names) > 100
    assert {name for name in names if not hasattr(torch.ops.aten, name.partition(".")[0])} == set()


def test_an_op_is_found_by_part_of_its_name_or_of_a_spelling() -> None:
    assert search("conv2d")[0].op == "conv"
    found = search("log_softmax")
    assert found[0].op == "log_softmax"
    assert "nn.LogSoftmax" in found[0].targets
    assert counts(found[0]).startswith("input[*, k] -> out[*, k]: ")
    assert counts(search("flatten")[0]).startswith("nothing (view). ")


def test_the_nearest_spelling_comes_first() -> None:
    firsts = {
        "lstm": "nn.LSTM",
        "nn.lstm": "nn.LSTM",
        "gru": "nn.GRU",
        "attention": "F.scaled_dot_product_attention",
        "eigvals": "torch.linalg.eigvals",
        "greater": "torch.greater",
        "size": "Tensor.size",
        "to": "Tensor.to",
    }
    assert {word: search(word)[0].targets[0] for word in firsts} == firsts


def test_an_op_that_there_is_not() -> None:
    with pytest.raises(InputError, match=r"no op has a name that contains 'sofmax' \(did you mean softmax"):
        search("sofmax")
