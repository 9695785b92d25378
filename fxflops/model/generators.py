"""Read and write the state of torch, Python and numpy random generators."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class Generator(NamedTuple):
    """The functions that get and set the state of a random generator."""

    get: Callable[[], Any]
    set: Callable[[Any], Any]


def generator_of(value: Any) -> Generator | None:
    """Return the functions that get and set the state of a torch, Python or numpy generator; None for any other object."""
    kind = type(value)
    if issubclass(kind, torch.Generator):
        return Generator(value.get_state, value.set_state)
    if issubclass(kind, random.Random) and not issubclass(kind, random.SystemRandom):
        return Generator(value.getstate, value.setstate)
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if issubclass(kind, numpy.random.RandomState):
        return Generator(value.get_state, value.set_state)
    bits = value.bit_generator if issubclass(kind, numpy.random.Generator) else value
    if not issubclass(type(bits), numpy.random.BitGenerator):
        return None
    return Generator(lambda: bits.state, lambda state: setattr(bits, "state", state))


def global_states() -> list[tuple[Generator, Any]]:
    """Return the process's global generators with their current states."""
    generators = [Generator(torch.get_rng_state, torch.set_rng_state), Generator(random.getstate, random.setstate)]
    if torch.cuda.is_initialized():
        generators.append(Generator(torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all))
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"].random
        generators.append(Generator(numpy.get_state, numpy.set_state))
    return [(generator, generator.get()) for generator in generators]
