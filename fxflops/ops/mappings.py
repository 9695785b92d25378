"""torch_flops's three formula tables. Formulas can be read and assigned by class, function or name."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from torch import nn

from ..errors import FormulaError
from ..records import FormulaFunction
from ._registry import BASE, Formula, FormulaRegistry, formula_for, is_method


class FormulaMapping(MutableMapping[Any, FormulaFunction]):
    """The table of formulas for modules, functions or methods (``kind`` "module", "function" or "method").

    A formula assigned here is called with the same arguments as in torch_flops: ``(module, result, *args)``, ``(result, *args)`` or
    ``(self_obj, result, *args)``. The formula gets empty meta tensors and returns FLOPs. ``del`` restores the previous formula.
    """

    def __init__(self, kind: str, registry: FormulaRegistry) -> None:
        self._kind = kind
        self._formulas = registry
        self._replaced: dict[Any, Formula | None] = {}

    def __getitem__(self, key: Any) -> FormulaFunction:
        entries = [entry for found in self._find(key) if (entry := self._formulas.get(found)) is not None]
        if not entries:
            raise KeyError(key)
        return entries[0].function or computes_nothing

    def __setitem__(self, key: Any, function: FormulaFunction) -> None:
        if not callable(function):
            raise FormulaError(f"a formula must be a function, not {function!r}")
        for found in self._find(key) or [(self._kind, key) if isinstance(key, str) else key]:
            before = self._formulas.get(found)
            self._replaced.setdefault(found, before)
            name = before.op if before is not None else getattr(key, "__name__", str(key))
            if function is computes_nothing:
                self._formulas.add(found, Formula(name, None, "declared to compute nothing"))
            elif any(e.function is function and e.style != "mapping" for _, e in self._formulas.items()):
                self._formulas.add(found, formula_for([found], function))
            else:
                self._formulas.add(found, formula_for([found], function, name, style="mapping"))

    def __delitem__(self, key: Any) -> None:
        written = [found for found in dict.fromkeys([*self._find(key), (self._kind, key)]) if found in self._replaced]
        if not written:
            raise KeyError(key)
        for found in written:
            before = self._replaced.pop(found)
            if before is None:
                del self._formulas.entries[found]
            else:
                self._formulas.entries[found] = before

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self._formulas.items() if self._holds(key))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<{self._kind} formulas: {len(self)} targets>"

    def _holds(self, key: Any) -> bool:
        if isinstance(key, tuple):
            return bool(key[0] == self._kind)
        if isinstance(key, str):
            return False
        if isinstance(key, type):
            return self._kind == "module" and issubclass(key, nn.Module)
        return self._kind == ("method" if is_method(key) else "function")

    def _find(self, key: Any) -> list[Any]:
        """Return the registry's keys for ``key``: the key itself, or all keys with this name."""
        if not isinstance(key, str):
            return [key] if self._formulas.get(key) is not None else []
        return [found for found in self if (found[1] if isinstance(found, tuple) else found.__name__) == key]


def computes_nothing(*args: Any, **kwargs: Any) -> int:
    """Return 0, as the table's formula for an op that is declared to compute nothing."""
    return 0


MODULE_FLOPs_MAPPING = FormulaMapping("module", BASE)
FUNCTION_FLOPs_MAPPING = FormulaMapping("function", BASE)
METHOD_FLOPs_MAPPING = FormulaMapping("method", BASE)
