"""Every architecture under ``menagerie/classics`` in a checkout of johnmarktaylor91/torchlens, which is not part of this repository.

A file has ``MENAGERIE_ENTRIES`` of (title, builder, input, year, ...), or one ``build`` and ``example_input``.

    MENAGERIE=path/to/checkout python -m benchmarks.models.menagerie_zoo [--only rs_L1333_dtln.0] [--out FILE.jsonl]

This command runs each model once on the CPU, eagerly, and prints one JSON line per model.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from .torchvision_zoo import Built, run_each

CANNOT: dict[str, str] = {}
EXPLAINED = {
    "rs_L1354_2_cayleynet.0": "cannot count a product of two sparse matrices: it depends on the positions of their elements; the product is listed as unknown",
    "rs_L279_3_hpnet.0": "the same",
    "rs_L274_3_drivejepa.0": "it puts the CPU's fused attention kernel back on (torch.backends.cuda.sdp_kernel()), which "
    "FlopCounterMode has no formula for: without that both say the same",
    "rs_L1932_1_orca.0": "it makes a torch.Tensor(1) that it does not use; only the dispatcher sees that constructor, which "
    "`analyze` listens to: a call that costs nothing",
}
PACKAGE = "menagerie.classics"


def folder() -> Path:
    """Return the folder of the architectures. Raises SystemExit if MENAGERIE does not name a checkout."""
    found = Path(os.environ.get("MENAGERIE", "")) / "menagerie" / "classics"
    if not found.is_dir():
        raise SystemExit("menagerie: name a checkout of johnmarktaylor91/torchlens: MENAGERIE=path/to/checkout")
    return found


def names() -> list[str]:
    """Return the model names: the file's name, and the index of an entry in it."""
    return [f"{path.stem}.{i}" for path in sorted(folder().glob("*.py")) for i in range(entries_in(path))]


def entries_in(path: Path) -> int:
    """Return how many entries a file has. The source is parsed, not run."""
    body = ast.parse(path.read_text()).body
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "MENAGERIE_ENTRIES" for target in targets):
            return len(getattr(getattr(node, "value", None), "elts", ()))
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    return int({"build", "example_input"} <= functions)


def build(name: str) -> Built:
    """Return the model in eval mode, and the args and kwargs of its forward."""
    stem, _, number = name.rpartition(".")
    module = loaded(stem)
    entry = getattr(module, "MENAGERIE_ENTRIES", [(stem, "build", "example_input")])[int(number)]
    builder, inputs = (each if callable(each) else getattr(module, each) for each in entry[1:3])
    torch.manual_seed(0)
    model = builder()
    if not isinstance(model, nn.Module):
        raise TypeError(f"{name} builds a {type(model).__name__}, no torch.nn.Module")
    return model.eval(), *arguments(model, inputs())


def arguments(model: nn.Module, given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return an example input as args and kwargs of the forward.

    If the forward accepts the parts of a tuple, list or dict as separate arguments, unpack it. Otherwise pass it as one argument.
    For a list, one argument is tried first.
    """
    ways: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((given,), {})]
    if isinstance(given, dict):
        ways.insert(0, ((), given))
    if isinstance(given, (tuple, list)):
        ways.insert(isinstance(given, list), (tuple(given), {}))
    for args, kwargs in ways:
        try:
            inspect.signature(model.forward).bind(*args, **kwargs)
        except TypeError:
            continue
        return args, kwargs
    return ways[0]


def loaded(stem: str) -> ModuleType:
    """Import a file as a module of its package, without the package's ``__init__``, which would import all files."""
    if PACKAGE not in sys.modules:
        sys.modules["menagerie"] = outer = ModuleType("menagerie")
        sys.modules[PACKAGE] = package = ModuleType(PACKAGE)
        outer.__path__, package.__path__ = [str(folder().parent)], [str(folder())]
    return importlib.import_module(f"{PACKAGE}.{stem}")


if __name__ == "__main__":
    run_each(names(), build, CANNOT)
