"""Compare how results and gradients lie in memory: in a count for the CPU, and in a real run, for torch's operator database.

    python -m benchmarks.formats [--samples 12]

The tensors of each sample are moved to channels last (4 and 5 dims), or their last two dims are swapped in memory. A result or a gradient
differs if a dim with more than one element has another stride. Samples that raise in the real run are skipped; if only the count raises, the
call differs. The table is ``benchmarks/results/formats.md``.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import fxflops
from benchmarks.machine import processor

RESULTS = Path(__file__).parent / "results"
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
NOTED: list[tuple[tuple[int, ...], tuple[int, ...]]] = []


def note(tensor: torch.Tensor) -> None:
    if tensor.layout is torch.strided and tensor.numel() > 1:
        strides = [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
        NOTED.append((tuple(tensor.shape), tuple(strides)))


def tensors_in(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


class Calling(nn.Module):
    """Calls an operator, and notes how its results and the gradient of its input lie in memory."""

    def __init__(self, operator: Any) -> None:
        super().__init__()
        self.operator = operator
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, input: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(input, torch.Tensor) and input.is_floating_point():
            input = input * self.scale
            if input.requires_grad:
                input.register_hook(note)
        results = tensors_in(self.operator(input, *args, **kwargs))
        for result in results:
            note(result)
        return sum((2 * result.float()).sum() for result in results if not result.is_complex())


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=FORMATS[tensor.ndim]) if tensor.ndim in FORMATS else tensor


def swapped(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2) if tensor.ndim > 1 else tensor


MOVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"channels last": channels_last, "swapped": swapped}


def samples(operator: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[Any]:
    """Yield the operator's samples, moved, if this changes a tensor."""
    for sample in operator.sample_inputs("cpu", torch.float32):
        inputs = sample.input, sample.args, sample.kwargs
        if any(move(t).stride() != t.stride() for t in tensors_in(inputs) if t.layout is torch.strided):
            yield inputs


def runs(operator: Any, inputs: Any, move: Callable[[torch.Tensor], torch.Tensor], backward: bool) -> bool | None:
    """Return whether a count and a real run are equal; None if the real run raises, or makes no tensor to compare."""

    def moved(leaf: Any) -> Any:
        is_strided = isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
        return move(leaf.detach().clone()) if is_strided else leaf

    try:
        NOTED.clear()
        with torch.set_grad_enabled(backward):
            out = Calling(operator)(*pytree.tree_map(moved, inputs))
            if backward:
                out.backward()
    except Exception:  # a sample that cannot be differentiated, or that checks for an error
        return None
    real = [*NOTED]
    NOTED.clear()
    if not real:
        return None
    try:
        fxflops.count(Calling(operator), pytree.tree_map(moved, inputs), backward=backward)
    except Exception as error:  # shown, and listed as a call that differs
        print(operator.name, type(error).__name__, str(error)[:200], flush=True)
        return False
    return real == NOTED[-len(real) :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=12)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = [
        "# Memory formats of a count, beside the CPU's",
        "",
        f"`python -m benchmarks.formats --samples {options.samples}`; {processor()}, torch {torch.__version__}, fxflops {fxflops.__version__}.",
        "",
        "| tensors | run | calls compared | equal | operators that differ (calls) |",
        "|---|---|---:|---:|---|",
    ]
    for how, move in MOVES.items():
        for backward in (False, True):
            results: Counter[bool] = Counter()
            differing: Counter[str] = Counter()
            for operator in op_db:
                if torch.float32 not in operator.dtypes or (backward and not operator.supports_autograd):
                    continue
                for inputs in islice(samples(operator, move), options.samples):
                    is_equal = runs(operator, inputs, move, backward)
                    if is_equal is not None:
                        results[is_equal] += 1
                        differing[operator.name] += not is_equal
            names = ", ".join(f"`{name}` ({calls})" for name, calls in differing.items() if calls)
            run = "training step" if backward else "forward"
            lines.append(f"| {how} | {run} | {results.total():,} | {results[True]:,} | {names} |")
            print(lines[-1], flush=True)
    (RESULTS / "formats.md").write_text("\n".join(lines) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
