"""Meters that show tokens/s, TFLOP/s, MFU, HFU and the FLOPs so far during training.

``Meter`` is for your own loop, ``MeterCallback`` for transformers' Trainer, and ``LightningMeter`` for Lightning's Trainer. transformers
and lightning are imported only if you use the class that needs them.
"""

from typing import TYPE_CHECKING

from .meter import Meter

if TYPE_CHECKING:
    from .lightning_meter import LightningMeter
    from .trainer_callback import MeterCallback

__all__ = ["LightningMeter", "Meter", "MeterCallback"]

_HOMES = {"MeterCallback": ("trainer_callback", "transformers"), "LightningMeter": ("lightning_meter", "lightning")}


def __getattr__(name: str) -> type:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, package = _HOMES[name]
    try:
        found: type = getattr(import_module(f".{home}", __name__), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"{name} needs {package}: pip install {package}") from error
    return found
