"""Convert the arguments, results and settings of calls to JSON data and back.

A bool, int, finite float, string or None becomes the same JSON value. A tuple becomes a list. Any other value becomes an object
with one key, which names the value's type: ``tensor``, ``dict``, ``slice``, ``complex``, ``float``, ``dtype``, ``device``, ``layout``,
``memory_format``, ``class`` or ``ellipsis``. A tensor is written as ``[shape, dtype]``. If the layout or the facts are not the defaults,
the layout and the facts follow. A dict is written as a list of pairs. Classes are written by name (:mod:`fxflops.names`).
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from types import EllipsisType, NoneType
from typing import Any

from ..names import Classes, is_torch_loaded, name_of
from ..records import Spec

JSON_TYPES = frozenset({NoneType, bool, int, str})
TORCH_KINDS = ("dtype", "layout", "memory_format")
"""The types whose values are attributes of torch, e.g. ``torch.float32`` for ``dtype``. The types are attributes of torch, too."""


@dataclass(frozen=True)
class Named:
    """A replacement for a torch dtype, layout, memory format or device, for a process that has not imported torch.

    For a dtype, the properties are derived from the dtype's name.
    """

    name: str

    @property
    def itemsize(self) -> int:
        bits = re.search(r"\d+", self.name)
        return max(1, int(bits[0]) // 8) if bits else 1

    @property
    def is_floating_point(self) -> bool:
        return "float" in self.name

    @property
    def is_complex(self) -> bool:
        return "complex" in self.name

    def __str__(self) -> str:
        return f"torch.{self.name}"


def encoded(value: Any) -> Any:
    """Return a value in a Call as JSON data. An object of an unknown type becomes a string with the name of its class, ``"<name>"``."""
    if type(value) in JSON_TYPES:
        return value
    match value:
        case Spec():
            return {"tensor": _tensor(value)}
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else {"float": str(float(value))}
        case str():
            return str.__str__(value)
        case tuple():
            return [encoded(item) for item in value]
        case dict():
            return {"dict": [[encoded(key), encoded(item)] for key, item in value.items()]}
        case slice(start=start, stop=stop, step=step):
            return {"slice": [encoded(start), encoded(stop), encoded(step)]}
        case complex(real=real, imag=imag):
            return {"complex": [encoded(real), encoded(imag)]}
        case type():
            return {"class": name_of(value)}
        case EllipsisType():
            return {"ellipsis": True}
    kind = type(value).__name__
    if type(value).__module__ != "torch" or kind not in (*TORCH_KINDS, "device"):
        return f"<{kind}>"
    return {kind: _torch_name(value)}


def _tensor(spec: Spec) -> list[Any]:
    parts: list[Any] = [[*spec], _torch_name(spec.dtype)]
    layout = _torch_name(spec.layout)
    if layout != "strided" or spec.facts:
        parts += [layout, encoded(dict(spec.facts))]
    return parts


@lru_cache(maxsize=256)
def _torch_name(value: Any) -> str:
    return str(value).removeprefix("torch.")


def decoded(value: Any, classes: Classes) -> Any:
    """Return the value that :func:`encoded` converted to this JSON data. ``classes`` maps names to classes."""
    if isinstance(value, list):
        return tuple(decoded(item, classes) for item in value)
    if not isinstance(value, dict):
        return value
    [(kind, data)] = value.items()
    match kind:
        case "tensor":
            shape, dtype, *more = data
            layout, facts = more or ("strided", {"dict": []})
            form = _from_torch("dtype", dtype), _from_torch("layout", layout)
            return Spec(tuple(shape), *form, decoded(facts, classes))
        case "dict":
            return {decoded(key, classes): decoded(item, classes) for key, item in data}
        case "class":
            return classes[data]
        case _ if kind in TORCH_KINDS:
            return _from_torch(kind, data)
        case "slice":
            return slice(*decoded(data, classes))
        case "complex":
            return complex(*decoded(data, classes))
        case "float":
            return float(data)
        case "device":
            return sys.modules["torch"].device(data) if is_torch_loaded() else Named(data)
        case "ellipsis":
            return ...
    raise ValueError(f"unknown type of value {kind!r}")


def _from_torch(kind: str, name: str) -> Any:
    """Return torch's dtype, layout or memory format with this name."""
    if not is_torch_loaded():
        return Named(name)
    torch: Any = sys.modules["torch"]
    value = vars(torch).get(name)
    if not isinstance(value, getattr(torch, kind)):
        raise ValueError(f"torch has no {kind} {name!r}")
    return value
