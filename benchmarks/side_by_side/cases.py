"""The sets of cases. Each set lists the names of its cases, with data where a name is not enough, and builds any case by its name.

This file does not draw or list models itself: nets come from ``benchmarks/fuzz_nets.py``, libraries from ``benchmarks/models``,
odd models from ``tests/trace/odd_models.py``, programs from ``tests/trace/programs.py``, and ranks from ``tests/ranks.py``.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).parents[2]

Case = tuple[str, Any]
Ways = dict[str, Callable[[], Any]]
PROGRAMS, LAYERS = 300, 4
"""The number of programs of each kind, and the layers of the Llama on the meshes that ``benchmarks/distributed.py`` searches."""


class Set(NamedTuple):
    """``names`` yields the cases. ``make`` builds a case and returns the ways to count it. It runs in a process of a side, after
    the side's library is imported."""

    names: Callable[[], Iterator[Case]]
    make: Callable[[str, Any], Ways]


def fuzz_names() -> Iterator[Case]:
    """Yield random nets as text. Both sides build the same module from it."""
    from benchmarks.fuzz import distinct_nets, key_of

    for _, net in distinct_nets():
        yield key_of(net), [net.text, net.seed]


def fuzz(name: str, data: Any) -> Ways:
    from benchmarks.fuzz_checks import OPTIMIZERS
    from benchmarks.fuzz_nets import made

    from .facts import ways_of

    text, seed = data
    model, args, kwargs = made(text, seed)
    learns = any(parameter.requires_grad for parameter in model.parameters())
    return ways_of(model, args, kwargs, [*OPTIMIZERS.values()][seed % len(OPTIMIZERS)] if learns else None)


def odd_names() -> Iterator[Case]:
    from tests.trace.odd_models import ODD

    yield from ((name, None) for name in ODD)


def odd(name: str, data: Any) -> Ways:
    from tests.trace.odd_models import ODD

    from .facts import ways_of

    return ways_of(ODD[name](), torch.randn(2, 8), None, torch.optim.AdamW, mode="as_is")


def program_names() -> Iterator[Case]:
    """Yield the seed of each program twice: without and with small tensors that have values."""
    for seed in range(PROGRAMS):
        yield from ((f"{seed}{' values' if values else ''}", [seed, values]) for values in (False, True))


def program(name: str, data: Any) -> Ways:
    """Count a program. Report the count, and what the program notes about its tensors during the count."""
    import fxflops
    from tests.trace.programs import Told, noted

    from .facts import Several

    seed, values = data
    model = Told(seed, values, unmade=_fails_on_cpu).eval()
    inputs = tuple(model.inputs)
    with torch.no_grad():
        model(*inputs)  # draws the program

    def counted() -> Any:
        report, notes = noted(lambda: fxflops.count(model, inputs))
        return Several({"": report, "tensors": {"notes": [[repr(each) for each in note] for note in notes]}})

    return {"count": counted}


def _fails_on_cpu(step: Any, tensors: list[torch.Tensor]) -> bool:
    """Return True if a step fails on the CPU. This does not use fxflops, because both sides must draw the same program."""
    import copy

    from tests.trace.programs import filled

    function, args, kwargs = step
    reals = []
    for tensor in tensors:
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        storage = torch.zeros(1 + max(last, 0), dtype=tensor.dtype)
        reals.append(storage.as_strided(tensor.shape, tensor.stride()))
    if isinstance(function, torch.nn.Module):
        function = copy.deepcopy(function).to_empty(device="cpu")
    with torch.no_grad(), torch.random.fork_rng():
        try:
            function(
                *filled(args, reals), **filled({**kwargs, **({"device": "cpu"} if "device" in kwargs else {})}, reals)
            )
        except Exception:
            return True
    return False


def rank_names() -> Iterator[Case]:
    """Yield the training steps on several ranks, and the Llama-3 models on meshes."""
    from benchmarks.distributed import LLAMAS, SEARCHED, meshes, named
    from tests.ranks import CASES

    yield from ((case, None) for case in CASES)
    yield from (
        (f"Llama {each.model}, {named(each.mesh)}", [each.model, each.mesh, [*each[2:]], None]) for each in LLAMAS
    )
    yield from ((f"Llama {SEARCHED}, {named(mesh)}", [SEARCHED, mesh, [1, "full"], LAYERS]) for mesh in meshes())


def ranks(name: str, data: Any) -> Ways:
    """Simulate the ranks of a mesh. The cases of ``tests/ranks.py`` also run in real processes."""
    from fxflops.distributed import simulate

    from .facts import Several

    def kinds(simulation: Any) -> Any:
        found = Several({"": {"figures": simulation.figures}})
        for kind in simulation.kinds:
            found[" ".join(f"{axis} {at}" for axis, at in kind.at.items())] = kind.report
        return found

    if data is None:
        from tests import ranks

        sizes = ranks.MESHES.get(name, {"dp": 2})

        def build(mesh: Any) -> Any:
            model, _, step = ranks.prepared(name, mesh)
            return model, step

        return {
            "simulate": lambda: kinds(simulate(build, sizes, differs=[*sizes])),
            "processes": lambda: _processes(name, math.prod(sizes.values())),
        }
    from benchmarks.models.llama_ranks import SHAPES, Layout
    from benchmarks.models.llama_ranks import build as build_llama

    model, mesh, settings, layers = data
    layout = Layout(model, mesh, *settings)

    def step(mesh: Any, depth: int) -> Any:
        return build_llama(layout, SHAPES[model]._replace(layers=depth), mesh)

    differs = ["pp"] if "pp" in mesh else []
    return {"simulate": lambda: kinds(simulate(step, mesh, differs=differs, layers=layers or SHAPES[model].layers))}


def _processes(case: str, size: int) -> Any:
    """Run a training step in real processes. Return the facts of each rank."""
    import fxflops

    from .facts import Several

    tree = Path(fxflops.__file__ or "").parents[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", str(ROOT / "tests" / "ranks.py"), folder, str(size), case]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(tree)})
        files = {rank: Path(folder) / f"{rank}.json" for rank in range(size)}
        return Several({f"rank {rank}": {"facts": json.loads(file.read_text())[case]} for rank, file in files.items()})


def zoo_names(library: str) -> Iterator[Case]:
    zoo = importlib.import_module(f"benchmarks.models.{library}_zoo")
    yield from ((name, None) for name in zoo.names())


def of_zoo(library: str, name: str, data: Any) -> Ways:
    from .facts import ways_of

    zoo = importlib.import_module(f"benchmarks.models.{library}_zoo")
    return ways_of(*zoo.build(name), torch.optim.AdamW)


def zoo(library: str) -> Set:
    return Set(partial(zoo_names, library), partial(of_zoo, library))


SETS = {
    "fuzz": Set(fuzz_names, fuzz),
    "odd": Set(odd_names, odd),
    "programs": Set(program_names, program),
    "ranks": Set(rank_names, ranks),
    "timm": zoo("timm"),
    "torchvision": zoo("torchvision"),
    "transformers": zoo("transformers"),
    "diffusers": zoo("diffusers"),
    "menagerie": zoo("menagerie"),
}
