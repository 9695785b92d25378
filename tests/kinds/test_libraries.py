"""Kind: classes of other libraries. These are samples of ``benchmarks/libraries.py`` and ``benchmarks/callables.py``, with their
oracles, which do not use fxflops.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import callable_cases, callables, libraries, library_cases, library_oracles

SAMPLE = (
    "accelerate: prepared AdamW, schedule and clipping",
    "accelerate: offloaded to CPU",
    "peft: LoraConfig",
    "timm: lookahead_adamw",
    "torchmetrics: metrics in the model",
    "SAM of SGD, as it is usually written",
)


@pytest.fixture(autouse=True)
def _generators() -> Iterator[None]:
    before = torch.get_rng_state()
    yield
    torch.set_rng_state(before)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_training_is_counted_and_left_as_it_was(name: str) -> None:
    for need in library_cases.CASES[name][1]:
        pytest.importorskip(need)
    row = libraries.run(name)
    assert libraries.verdict(row) == ""
    assert row["oracle"]["macs"] > 0


CALLED = (
    "transformers: generate, beams",
    "transformers: generate, sampling",
    "transformers: generate, assisted",
    "transformers: Trainer.training_step",
    "torch: REINFORCE, an episode and a step",
    "step · accelerate: prepared AdamW, schedule and clipping",
    "step · SAM of SGD, as it is usually written",
)


@pytest.mark.parametrize("name", CALLED)
def test_a_callable_is_counted_and_left_as_it_was(name: str) -> None:
    for need in callables.EACH[name][1]:
        pytest.importorskip(need)
    row = callables.run(name)
    assert callables.verdict(row) == ""
    assert row["oracle"]["macs"] > 0


@pytest.mark.parametrize("module", [library_oracles, library_cases, callable_cases])
def test_the_oracles_know_nothing_of_fxflops(module: object) -> None:
    tree = ast.parse(Path(str(getattr(module, "__file__", ""))).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert len(imported) > 5
    assert not [name for name in imported if "fxflops" in name or name.startswith("libraries")]


def test_the_storage_oracle_by_hand() -> None:
    """Weight and gradient of 4 x 4, input and output of 2 x 4, and a sum. The gradient of the output is an expanded scalar."""
    weight = torch.randn(4, 4, requires_grad=True)
    storages = library_oracles.Storages([weight])
    with storages:
        x = torch.randn(2, 4)
        y = x @ weight
        z = y.sum()
    assert storages.peak == storages.live == 4 * (16 + 8 + 8 + 1)
    del x, y, z
    assert storages.live == 4 * 16


def test_the_value_oracle_sees_a_changed_bit_in_any_holder() -> None:
    held = {"a": [torch.zeros(2), (torch.ones(3),)]}
    before = library_oracles.values_of(held)
    assert library_oracles.values_of(held) == before
    held["a"][1][0][2] = 1 + 1e-7
    assert library_oracles.values_of(held) != before
