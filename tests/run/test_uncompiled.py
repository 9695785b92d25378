"""Runs that load the compiler halfway, each in a separate process."""

from __future__ import annotations

import pytest

from tests.fresh import Fresh

MODEL = """
import sys

import torch
from torch import nn

import fxflops

class Chooses(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return torch.cond(x.sum() > 0, self.fc, lambda x: self.fc(self.fc(x)), (x,))

model, x = Chooses(), torch.ones(5, 4)
assert "torch._dynamo" not in sys.modules
"""
RUNS = {
    "count": "report = fxflops.count(model, x, convention='torch')",
    "analyze": "report = fxflops.analyze(model, x, convention='torch', repeats=1)",
    "profile": "with fxflops.profile(model, convention='torch') as p: model(x)\nreport = p.report",
}


@pytest.mark.parametrize("name", RUNS)
def test_a_first_run_may_load_the_compiler(name: str, fresh: Fresh) -> None:
    done = fresh.run("-c", f"{MODEL}{RUNS[name]}\nprint(report.total_flops, report.complete, 'no' in report.trace)")
    assert done.stdout == f"{2 * 5 * 4 * 4} True False\n", done.stderr
