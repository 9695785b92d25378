"""A closed form must be right at every length that it claims to cover, and must cover the useful lengths of models with chunks,
strides or windows.

The oracle is the model itself at that length: its count, and the products that FlopCounterMode sees.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fxflops import ClosedFormError, closed_form, count

WIDTH, LONGEST = 4, 400


class Chunks(nn.Module):
    """Attention within chunks, with the sequence padded to a multiple of the chunk size; repeated for each of ``sizes``."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        for size, layer in zip(self.sizes, self.layers, strict=True):
            padded = F.pad(layer(x), (0, 0, 0, -length % size)).unflatten(1, (-1, size))
            x = (padded @ padded.mT).softmax(-1).matmul(padded).flatten(1, 2)[:, :length]
        return x


class Strides(nn.Module):
    """A strided convolution over the sequence."""

    def __init__(self, kernel: int, stride: int, padding: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, kernel, stride, padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.mT)


class Pools(nn.Module):
    """A pool that rounds its output size up, followed by a layer."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.pool, self.layer = nn.MaxPool1d(size, ceil_mode=True), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.pool(x.mT).mT)


class Folds(nn.Module):
    """Frames of a signal, ``step`` elements apart. A signal shorter than a frame is padded to one."""

    def __init__(self, size: int, step: int) -> None:
        super().__init__()
        self.size, self.step, self.layer = size, step, nn.Linear(size, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.pad(x, (0, 0, 0, max(self.size - x.shape[1], 0)))
        return self.layer(x.unfold(1, self.size, self.step))


class Steps(nn.Module):
    """A state passed from chunk to chunk, plus attention over all tokens."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.layer = size, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        everywhere = (x @ x.mT) @ x
        padded = F.pad(x, (0, 0, 0, -length % self.size))
        state = x.new_zeros(x.shape[0], WIDTH, WIDTH)
        for chunk in padded.split(self.size, 1):
            state = self.layer(state + chunk.mT @ chunk)
        return everywhere @ state


class Shuffles(nn.Module):
    """Turns pixels into channels, after padding to whole blocks."""

    def __init__(self, block: int) -> None:
        super().__init__()
        self.block, self.conv = block, nn.Conv2d(block * block, WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images = F.pad(x, (0, -x.shape[2] % self.block, 0, -x.shape[1] % self.block))[:, None]
        return self.conv(F.pixel_unshuffle(images, self.block))


RANDOM = random.Random(4)
SIZES = [RANDOM.randint(2, 64) for _ in range(3)]
CASES: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    # The model, the length of its example, and its true period.
    "the example is one chunk": (lambda: Chunks(64), 64, 64),
    "the example is two chunks": (lambda: Chunks(48), 96, 48),
    "the example is no multiple": (lambda: Chunks(64), 100, 64),
    "an example of 1": (lambda: Chunks(20), 1, 20),
    "a state of chunks": (lambda: Steps(50), 50, 50),
    "two sizes of chunks": (lambda: Chunks(6, 10), 60, 30),
    "a prime stride": (lambda: Strides(5, 13, 2), 39, 13),
    "a pool": (lambda: Pools(11), 44, 11),
    "frames": (lambda: Folds(12, 10), 105, 10),
    "pixels": (lambda: Shuffles(12), 24, 12),
    **{f"chunks of {size}": ((lambda size=size: Chunks(size)), size * RANDOM.randint(1, 3), size) for size in SIZES},
}


def products(model: nn.Module, x: torch.Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        model(x)
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("name", CASES)
def test_a_form_is_right_where_it_holds_and_holds_for_the_remainder_of_its_example(name: str) -> None:
    make, example, period = CASES[name]
    with torch.device("meta"):
        model = make()
    shape = {"x": {1: Dim("n", max=LONGEST)}}
    form = closed_form(model, torch.ones(2, example, WIDTH), dynamic_shapes=shape)
    wanted = [n for n in range(max(example % period, 1), LONGEST + 1) if (n - example) % period == 0]
    claimed = []
    for n in range(1, LONGEST + 1):
        try:
            claimed.append((n, form.evaluate("macs", n=n)))
        except ClosedFormError:
            continue
    missing = {n for n in wanted if n > period} - {n for n, _ in claimed}
    assert not missing
    for n, macs in random.Random(0).sample(claimed, min(len(claimed), 8)) + claimed[:2] + claimed[-2:]:
        x = torch.empty(2, n, WIDTH, device="meta")
        assert macs == products(model, x), n
        report = count(model, x)
        assert form.evaluate("flops", n=n) == report.total_flops, n
        assert form.evaluate("activations", n=n) == report.total_activations, n


class Picks(nn.Module):
    """A linear layer followed by a selection by value, whose number of comparisons is not a polynomial."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).sum(-1).topk(min(4, x.shape[1])).values


@pytest.mark.parametrize("example", [1, 30, 300])
def test_macs_hold_where_flops_are_no_polynomial(example: int) -> None:
    model = Picks()
    form = closed_form(model, torch.ones(2, example, WIDTH), dynamic_shapes={"x": {1: Dim("n", max=LONGEST)}})
    held = example == 1  # near length 1, each piece of the sort's cost covers a single length
    for n in (1, 2, 3, 7, 64, 65, 128, 333, LONGEST):
        assert form.evaluate("macs", n=n) == 2 * n * WIDTH * WIDTH
        try:
            flops = form.evaluate("flops", n=n)
        except ClosedFormError:
            continue
        held = True
        assert flops == count(model, torch.ones(2, n, WIDTH)).total_flops
    assert held
    assert "MACs" in str(form)


class Grows(nn.Module):
    """The operation at the peak of memory changes as the length grows."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.layer = nn.Linear(WIDTH, 40), nn.Linear(40, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ x.mT).softmax(-1) @ self.layer(self.wide(x).relu())


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("make", [Grows, lambda: Chunks(16), lambda: nn.TransformerEncoderLayer(WIDTH, 2, 8)])
def test_a_peak_is_shown_only_where_it_holds(make: Callable[[], nn.Module], backward: bool) -> None:
    model: Any = make()
    name = "src" if isinstance(model, nn.TransformerEncoderLayer) else "x"
    form = closed_form(
        model, torch.ones(2, 16, WIDTH), dynamic_shapes={name: {1: Dim("n", max=LONGEST)}}, backward=backward
    )
    text = str(form)
    line = next(each for each in text.splitlines() if each.startswith("bytes at the peak"))
    ranges = re.search(r"n (?:from )?(\d+)(?: to (\d+))?(?: in steps of (\d+))?\)$", line) or re.search(
        r"(?:this is the largest|holds for   ) .*?n (?:from )?(\d+)(?: to (\d+))?(?: in steps of (\d+))?", text
    )
    assert ranges is not None
    first, last, step = (int(each) if each else None for each in ranges.groups())
    lengths = range(first or 1, (last or first or 1) + 1, step or 1)
    if "not a polynomial" in line:
        with pytest.raises(ClosedFormError):
            form.evaluate("memory", n=lengths[-1])
    for n in [lengths[0], lengths[len(lengths) // 2], lengths[-1]] if "not a polynomial" not in line else []:
        report = count(model, torch.ones(2, n, WIDTH), mode="as_is" if backward else None, backward=backward)
        assert form.evaluate("memory", n=n) == report.max_memory
