"""Random generators that a model or its inputs hold must be in the same state after a count as before."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fxflops
from fxflops import analyze, count


class Sampler:
    def __init__(self) -> None:
        self.rng = random.Random(5)


class Drawing(nn.Module):
    """Draws from every kind of generator, and keeps the drawn numbers in containers of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.torch = torch.Generator()
        self.listed = [random.Random(1), np.random.RandomState(2)]
        self.named = {"numpy": np.random.default_rng(3), "bits": np.random.Philox(4)}
        self.sampler = Sampler()
        self.system = random.SystemRandom()
        self.drawn: deque[float] = deque([0.5], maxlen=3)
        self.bytes = bytearray(b"ab")
        self.history = np.zeros(2)

    def forward(self, x: torch.Tensor, rng: random.Random) -> torch.Tensor:
        factor = self.listed[0].random() * self.listed[1].rand() * self.named["numpy"].random()
        factor += self.sampler.rng.gauss(0, 1) + self.named["bits"].random_raw() + rng.random()
        self.drawn.extend([factor] * 4)
        self.bytes += b"c"
        self.history += factor
        self.history.resize(3, refcheck=False)
        return self.fc(x) * torch.rand(4, generator=self.torch) * factor

    def draws(self, rng: random.Random) -> list[Any]:
        """Return the states of all generators, and copies of the containers."""
        states = [
            self.torch.get_state().tolist(), self.listed[0].getstate(), str(self.listed[1].get_state()), rng.getstate(),
            str(self.named["numpy"].bit_generator.state), str(self.named["bits"].state), self.sampler.rng.getstate(),
        ]  # fmt: skip
        return [*states, [*self.drawn], bytes(self.bytes), self.history.tolist()]


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("backward", [False, True])
def test_generators_are_put_back(error: type[BaseException] | None, backward: bool) -> None:
    model, rng, x = Drawing(), random.Random(7), torch.randn(3, 4)
    if error is not None:

        def fail(*_: Any) -> None:
            raise error

        model.register_forward_hook(fail)
    before = model.draws(rng)
    for way, settings in ((count, {}), (analyze, {"repeats": 1, "progress": False, "trace": "record"})):
        if error is None:
            assert way(model, (x, rng), backward=backward, **settings).total_macs == 48
        else:
            with pytest.raises((fxflops.RunError, KeyboardInterrupt)):
                way(model, (x, rng), backward=backward, **settings)
        assert model.draws(rng) == before
