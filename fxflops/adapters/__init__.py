"""Drop-in replacements for other counters. The replacements have the same names, signatures, return values and printed text, but fxflops
does the counting."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any


def __getattr__(name: str) -> Any:
    """Import an adapter on first access, so that ``fxflops.adapters.torchinfo`` works after ``import fxflops``."""
    if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f".{name}", __name__)
