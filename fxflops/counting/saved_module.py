"""A stand-in for a module of a model that is gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class SavedModule:
    """A stand-in for a module that is gone: the plain attributes and the tensor specs that its calls recorded."""

    def __init__(self, path: str, settings: Mapping[str, Any]) -> None:
        self._path = path
        self._known = settings

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._known:
            raise AttributeError(
                f"the report holds no {name!r} of the module {self._path!r}, and the model is gone: keep a reference to it, "
                f"or give it with the file, Report.load(path, model=model)"
            )
        return self._known[name]
