"""A forward that is the first to need torch's compiler: what its import computes is no part of the model."""

from __future__ import annotations

import subprocess
import sys

import pytest
from torch import nn

import fxflops

FIRST = """
import sys
import torch
import fxflops
from torch import nn
from torch.utils.checkpoint import checkpoint

scan = torch.library.custom_op("fxflops_tests::first", lambda x: x.clone(), mutates_args=(), schema="(Tensor x) -> Tensor")
scan.register_fake(torch.empty_like)

class Scanning(nn.Module):
    def forward(self, x):
        return scan(x) + x

class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return checkpoint(self.linear, x, use_reentrant=False)

def profiled(model, x):
    with fxflops.profile(model) as p:
        model(x)
    return p.report

run = {"count": fxflops.count, "analyze": fxflops.analyze, "profile": profiled}[sys.argv[1]]
assert "torch._dynamo" not in sys.modules
finders = list(sys.meta_path)
report = run(globals()[sys.argv[2]](), torch.ones(2, 4))
assert sys.meta_path[:len(finders)] == finders and not any("fxflops" in repr(each) for each in sys.meta_path), sys.meta_path
import torch._dynamo
assert torch._dynamo.guards is sys.modules["torch._dynamo.guards"]
assert torch._dynamo.__spec__.submodule_search_locations
print(report.total_flops, [missing.op for missing in report.missing])
"""


@pytest.mark.parametrize(
    ("way", "model", "printed"),
    [
        ("count", "Checkpointed", "64 []\n"),
        ("profile", "Checkpointed", "64 []\n"),
        ("count", "Scanning", "8 ['fxflops_tests::first']\n"),
        ("analyze", "Scanning", "8 ['fxflops_tests::first']\n"),
        ("profile", "Scanning", "8 ['fxflops_tests::first']\n"),
    ],
)
def test_the_compilers_import_is_not_counted(way: str, model: str, printed: str) -> None:
    ran = subprocess.run([sys.executable, "-c", FIRST, way, model], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, printed), ran.stderr


def test_what_another_thread_imports_takes_no_call_away(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._dynamo

    monkeypatch.setattr(torch._dynamo.__spec__, "_initializing", True, raising=False)
    assert fxflops.count(nn.Sequential(nn.Linear(4, 4), nn.Flatten()), torch.ones(2, 4)).total_flops == 64
