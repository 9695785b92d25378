"""Formulas of other libraries, each in a module registered as an entry point of the group ``fxflops.formulas``.

A library writes in its pyproject.toml::

    [project.entry-points."fxflops.formulas"]
    mylib = "mylib.flops"

and registers its formulas in ``mylib/flops.py``, with ``@fxflops.formula(...)``. The module is imported before the first count
of a process, not with fxflops, so it may import fxflops itself. An entry point may also name a function,
``"mylib.flops:register"``, which is called without arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from ..errors import warn
from ..records import FormulaFunction
from ._registry import BASE, FormulaRegistry

GROUP = "fxflops.formulas"
_LOADING = threading.RLock()
"""Held while packages are loaded. It is reentrant, as a package's import may itself count, in this thread."""


class Package(NamedTuple):
    """The formulas that an entry point registered.

    ``distribution`` is the installed library with its version, ``place`` the entry point's value, ``ops`` the names of the
    ops that it counts, and ``error`` the reason why it could not be loaded, else "".
    """

    name: str
    distribution: str
    place: str
    ops: tuple[str, ...] = ()
    error: str = ""


def registry_with(formulas: Mapping[Any, FormulaFunction] | None) -> FormulaRegistry:
    """Return the registry for a count: ``formulas`` first, then the user's, the packages' and ours."""
    if not _loaded:
        load_packages()
    return BASE.derive(formulas)


def load_packages() -> tuple[Package, ...]:
    """Load the formulas of all installed libraries, once per process; return one Package per entry point.

    Warns if one cannot be loaded; none of its formulas are used then.
    """
    with _LOADING:
        if not _loaded:
            _loaded[GROUP] = ()  # a package that counts during its import lacks those not yet loaded
            _loaded[GROUP] = tuple(map(_load, sorted(_found(), key=lambda point: point.name)))
        return _loaded[GROUP]


_loaded: dict[str, tuple[Package, ...]] = {}


@cache
def _found() -> tuple[EntryPoint, ...]:
    """Return the entry points of all installed libraries, without duplicates."""
    return tuple(dict.fromkeys(entry_points(group=GROUP)))


def _load(point: EntryPoint) -> Package:
    distribution = f"{point.dist.name} {point.dist.version}" if point.dist is not None else ""
    package = Package(point.name, distribution, point.value)
    try:
        with BASE.of_package() as ops:
            register = point.load()
            if callable(register):
                register()
    except Exception as error:  # anything a library's code raises: counting continues without its formulas
        said = f"{type(error).__name__}: {error}"
        warn(
            f"the formulas of {distribution or point.name} were not loaded, from {point.value} (entry point {point.name!r} of {GROUP}): {said}"
        )
        return package._replace(error=said)
    return package._replace(ops=tuple(ops))


_found()  # read installed libraries' metadata now, not during the first count
