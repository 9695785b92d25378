"""What cannot be observed in torch: data that leaves it, and memory that was written out of sight."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fxflops import MissingFormulaError, analyze, count, profile


class Runs(nn.Module):
    def __init__(self, run: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)


def filled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(2, 3)
    out[:] = x
    other = torch.empty_like(x).copy_(x)
    torch.add(x, 1, out=other)
    moved = torch.empty(2, 3).to(x.device, torch.float64).cfloat().clone()
    moved[0] = x[0]
    other = other + moved[0].real.float() + torch.arange(3, out=x.new_empty(3).long())
    return torch.baddbmm(torch.empty(1, 2, 2), x[None], x.T[None], beta=0) + out.sum() + other.sum()


ESCAPES = {
    "numpy": lambda x: torch.from_numpy(x.numpy() * 2),
    "__array__": lambda x: torch.tensor(__import__("numpy").asarray(x)),
    "data_ptr": lambda x: x + x.data_ptr() * 0,
    "unseen write to torch.empty": lambda x: torch.empty(2, 3) + x,
    "unseen write to torch.empty, moved": lambda x: torch.empty(2, 3).double().contiguous() + x,
}


@pytest.mark.parametrize("case", ESCAPES)
def test_escapes_are_missing(case: str) -> None:
    model, x, name = Runs(ESCAPES[case]), torch.ones(2, 3), case.partition(",")[0]
    report = analyze(model, x, trace="record", repeats=0)
    assert [m.op for m in report.missing] == [name]
    assert not report.complete
    with pytest.raises(MissingFormulaError, match=name):
        analyze(model, x, trace="record", repeats=0, strict=True)


def test_what_is_written_is_known() -> None:
    assert analyze(Runs(filled), torch.ones(2, 3), trace="record", repeats=0).complete


def test_integers_that_are_read_are_positions() -> None:
    model = Runs(lambda x: x[torch.arange(2).numpy().tolist()])
    assert analyze(model, torch.ones(2, 3), trace="record", repeats=0).complete


class Attends(nn.Module):
    """Like fairseq's attention: uses one projection if both inputs are the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.first, self.second = nn.Linear(4, 6), nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.data_ptr() == y.data_ptr() == x.view(-1, 4).data_ptr():
            return self.both(x).sum()
        return self.first(x).sum() + self.second(y).sum()


class Alike(nn.Module):
    def __init__(self, same: bool) -> None:
        super().__init__()
        self.attends, self.same = Attends(), same

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x.relu()
        return self.attends(hidden, hidden.view(-1, 4) if self.same else x.relu())


@pytest.mark.parametrize("same", [True, False])
def test_addresses_may_be_compared(same: bool) -> None:
    model, x = Alike(same), torch.ones(2, 4)
    counted, analyzed = count(model, x), analyze(model, x, trace="record", repeats=0)
    assert counted.total_macs == analyzed.total_macs == 2 * 4 * (6 if same else 2 + 3)
    assert counted.complete
    assert analyzed.complete
    assert counted.trace == "counted on the meta device"


def test_an_address_handed_on_is_one_of_real_memory() -> None:
    found = list[int]()
    model = Runs(lambda x: (found.append(x.relu().data_ptr()), x)[1])
    report = count(model, torch.ones(2, 4))
    assert [m.op for m in report.missing] == ["data_ptr"]
    assert report.trace == "counted on real tensors"
    assert found[-1] != 0


class Native(nn.Module):
    """Uses the result of an extension module: memory that it allocated, and filled out of sight."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.layer, self.reads = nn.Linear(3, 3), reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        with torch._C.DisableTorchFunction():
            y = torch.empty_like(x)
        return y * 2 if self.reads else y


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("way", ["count", "analyze", "record", "profile"])
def test_what_an_extension_wrote_is_missing(way: str, reads: bool) -> None:
    model, x = Native(reads).eval(), torch.randn(2, 3)
    if way == "profile":
        with torch.no_grad(), profile(model) as p:
            model(x)
        report = p.report
    elif way == "count":
        report = count(model, x)
    else:
        report = analyze(model, x, trace="record" if way == "record" else "auto", repeats=1, progress=False)
    assert [(missing.op, missing.calls) for missing in report.missing] == [("unseen write to torch.empty", 1)]
