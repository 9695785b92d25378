"""Nothing is printed on the way to a report: calls that fxflops only tries, and that fail, must stay silent.

A script runs each case with and without fxflops in a separate process. Its stderr must have only the messages of the script itself.
"""

from __future__ import annotations

from pathlib import Path

from tests.fresh import Fresh

PROGRAM = """
import logging, sys, threading, warnings
import torch
from torch import nn
from torch.nn import functional as F
import fxflops

warnings.simplefilter("ignore")
CASES = {
    "einsum": lambda y, x: torch.einsum("bi,bj->bij", y, x),
    "einsum of three": lambda y, x: torch.einsum("bi,bj,bk->bijk", y, x, x),
    "matmul": lambda y, x: y @ x.T,
    "baddbmm": lambda y, x: torch.baddbmm(torch.zeros(1, 4, 4), y[None], x.T[None]),
    "tensordot": lambda y, x: torch.tensordot(y, x, ([1], [1])),
    "chain": lambda y, x: torch.linalg.multi_dot([y, x.T, x]),
    "attention": lambda y, x: F.scaled_dot_product_attention(y[None], x[None], x[None]),
    "scatter": lambda y, x: x.clone().scatter(0, torch.zeros(1, 8, dtype=torch.long), y[:1]),
    "index": lambda y, x: x.clone().index_put((torch.tensor([0]),), y[:1]),
    "grid": lambda y, x: F.grid_sample(x[None, None], y.new_zeros(1, 2, 2, 2)),
    "norm": lambda y, x: F.layer_norm(y, (8,), torch.ones(8)),
    "lerp": lambda y, x: torch.lerp(y, x, 0.5),
    "dot": lambda y, x: torch.dot(y[0], x[0]),
    "bilinear": lambda y, x: F.bilinear(y, x, torch.ones(3, 8, 8)),
    "cat": lambda y, x: torch.cat([y, x]),
    "cdist": lambda y, x: torch.cdist(y, x),
}

class Mixed(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(8, 8), function

    def forward(self, x):
        return self.function(self.layer(x), x)

x = torch.ones(4, 8)
for name, function in CASES.items():
    for training in (False, True):
        for call in ("count", "profile"):
            model, outcomes = Mixed(function), []
            for observed in (False, True):
                try:
                    with torch.autocast("cpu", torch.bfloat16):
                        if not observed or call == "profile":
                            with fxflops.profile(model) if observed else warnings.catch_warnings():
                                out = model(x)
                                if training:
                                    out.sum().backward()
                        else:
                            fxflops.count(model, x, backward=training)
                    outcomes.append("works")
                except Exception as error:
                    outcomes.append("raises")
            assert len(set(outcomes)) == 1, (name, training, call, outcomes)

# The user's own messages, and those of other threads, are printed.
logger = logging.getLogger("torch._subclasses.fake_tensor")
from fxflops.torch_internals import fake_errors_unlogged
with fake_errors_unlogged():
    logger.error("mine, unseen")
    other = threading.Thread(target=logger.error, args=("of another thread",))
    other.start()
    other.join()
logger.error("after")
assert not logger.filters
"""


def test_what_is_tried_prints_nothing(tmp_path: Path, fresh: Fresh) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = fresh.run(str(program))
    assert done.returncode == 0, done.stderr[-3000:]
    written = [line for line in done.stderr.splitlines() if line.strip()]
    assert [line.rpartition("] ")[2] for line in written] == ["of another thread", "after"]
