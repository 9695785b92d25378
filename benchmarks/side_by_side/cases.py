"""The sets of cases. Each has the names of its cases, with data where a name is not enough, and makes each one anew.

Nothing here draws or lists models itself: nets come from ``benchmarks/fuzz_nets.py``, libraries from ``benchmarks/models``,
odd models from ``tests/trace/odd_models.py``, programs from ``tests/trace/programs.py``, and ranks from ``tests/ranks.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

Case = tuple[str, Any]
Ways = dict[str, Callable[[], Any]]


class Set(NamedTuple):
    """``names`` yields the cases, and is called with the number of them that are wanted at most. ``make`` makes one: it runs
    in a process of a side, after the side's library is imported, and returns the ways to count it."""

    names: Callable[[int | None], Iterator[Case]]
    make: Callable[[str, Any], Ways]


def fuzz_names(most: int | None) -> Iterator[Case]:
    """Yield random nets as text, which both sides make into the same module."""
    from benchmarks.fuzz import distinct_nets, key_of

    for number, (_, net) in enumerate(distinct_nets()):
        if number == most:
            return
        yield key_of(net), [net.text, net.seed]


def fuzz(name: str, data: Any) -> Ways:
    from benchmarks.fuzz_checks import OPTIMIZERS
    from benchmarks.fuzz_nets import made

    from .facts import ways_of

    text, seed = data
    model, args, kwargs = made(text, seed)
    learns = any(parameter.requires_grad for parameter in model.parameters())
    return ways_of(model, args, kwargs, [*OPTIMIZERS.values()][seed % len(OPTIMIZERS)] if learns else None)


def odd_names(most: int | None) -> Iterator[Case]:
    from tests.trace.odd_models import ODD

    yield from ((name, None) for name in [*ODD][:most])


def odd(name: str, data: Any) -> Ways:
    import torch

    from tests.trace.odd_models import ODD

    from .facts import ways_of

    return ways_of(ODD[name](), torch.randn(2, 8), None, torch.optim.AdamW, mode="as_is")


def zoo_names(library: str, most: int | None) -> Iterator[Case]:
    zoo = importlib.import_module(f"benchmarks.models.{library}_zoo")
    yield from ((name, None) for name in zoo.names()[:most])


def of_zoo(library: str, ways: str, name: str, data: Any) -> Ways:
    import torch

    from .facts import ways_of

    zoo = importlib.import_module(f"benchmarks.models.{library}_zoo")
    return ways_of(*zoo.build(name), torch.optim.AdamW, ways)


def zoo(library: str, ways: str) -> Set:
    return Set(partial(zoo_names, library), partial(of_zoo, library, ways))


SETS = {
    "fuzz": Set(fuzz_names, fuzz),
    "odd": Set(odd_names, odd),
    "timm": zoo("timm", "count train"),
    "torchvision": zoo("torchvision", "count train"),
    "transformers": zoo("transformers", "count train analyze profile"),
    "diffusers": zoo("diffusers", "count train analyze profile"),
    "menagerie": zoo("menagerie", "count train"),
}
