"""Find the modules whose attributes formulas read. If the model no longer exists, stand-ins replace its modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..records import Call

if TYPE_CHECKING:
    from torch import nn


class SavedModule:
    """A replacement for a module that no longer exists. The replacement has the plain attributes and tensor specs that were recorded when
    the module was called."""

    def __init__(self, path: str, settings: Mapping[str, Any]) -> None:
        self._path = path
        self._settings = settings

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._settings:
            raise AttributeError(
                f"the report does not contain the attribute {name!r} of the module {self._path!r}, and the model no longer exists: "
                f"keep a reference to the model, or pass the model, as in Report.load(path, model=model)"
            )
        return self._settings[name]


def module_finder(model: Callable[[], nn.Module | None] | None, calls: Sequence[Call]) -> Callable[[str], Any]:
    """Return a function that maps a path to the module at this path. If the model no longer exists, the returned function makes a
    replacement for the module, with the attributes recorded in ``calls``."""
    settings: dict[str, Mapping[str, Any]] = {}

    def module_at(path: str) -> Any:
        live_model = None if model is None else model()
        if live_model is not None:
            return live_model.get_submodule(path)
        if not settings:  # on first use only, because few formulas read modules
            settings.update({call.path: call.settings for call in calls if isinstance(call.target, type)})
        return SavedModule(path, settings.get(path, {}))

    return module_at
