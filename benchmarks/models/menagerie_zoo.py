"""Every architecture of a checkout of johnmarktaylor91/torchlens, under ``menagerie/classics``: a file each, with
``MENAGERIE_ENTRIES`` of (title, builder, input, year, ...). Nothing of it is kept here.

    MENAGERIE=path/to/checkout python -m benchmarks.models.menagerie_zoo [--only rs_L1333_dtln.0] [--out FILE.jsonl]

runs each once on the CPU, eagerly, and prints one JSON line per model.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from .torchvision_zoo import Built, run_each

CANNOT: dict[str, str] = {}


def folder() -> Path:
    """Where the architectures are. Raises SystemExit where no checkout is named."""
    found = Path(os.environ.get("MENAGERIE", "")) / "menagerie" / "classics"
    if not found.is_dir():
        raise SystemExit("menagerie: name a checkout of johnmarktaylor91/torchlens: MENAGERIE=path/to/checkout")
    return found


def names() -> list[str]:
    """The file's name and the number of the entry in it."""
    return [f"{path.stem}.{i}" for path in sorted(folder().glob("*.py")) for i in range(entries_in(path))]


def entries_in(path: Path) -> int:
    """How many entries a file has, read from its source: it is not run."""
    for node in ast.parse(path.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "MENAGERIE_ENTRIES" for target in targets):
            return len(getattr(getattr(node, "value", None), "elts", ()))
    return 0


def build(name: str) -> Built:
    """The model in eval mode, and the args and kwargs of its forward."""
    stem, _, number = name.rpartition(".")
    module = loaded(stem)
    entry = module.MENAGERIE_ENTRIES[int(number)]
    builder, inputs = (each if callable(each) else getattr(module, each) for each in entry[1:3])
    torch.manual_seed(0)
    model = builder()
    if not isinstance(model, nn.Module):
        raise TypeError(f"{name} builds a {type(model).__name__}, no torch.nn.Module")
    given = inputs()
    if isinstance(given, dict):
        return model.eval(), (), given
    return model.eval(), given if isinstance(given, tuple) else (given,), {}


@cache
def loaded(stem: str) -> ModuleType:
    path = folder() / f"{stem}.py"
    spec = importlib.util.spec_from_file_location(f"menagerie_{stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    run_each(names(), build, CANNOT)
