"""Formulas that other libraries provide through entry points of the group ``fxflops.formulas``.

A library registers a module with formulas in its pyproject.toml::

    [project.entry-points."fxflops.formulas"]
    mylib = "mylib.flops"

The module ``mylib/flops.py`` registers the formulas with ``@fxflops.formula(...)``. fxflops imports the module before the first
count of a process, so the module may import fxflops. An entry point may also name a function, ``"mylib.flops:register"``. fxflops
calls this function without arguments.
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
"""The lock for loading packages, reentrant because importing a package may itself count a model in the same thread."""


class Package(NamedTuple):
    """The formulas that an entry point registered.

    ``distribution`` is the name and version of the installed library, and ``place`` is the entry point's value. ``ops`` are the
    names of the ops with a formula from the library. ``error`` is the reason if loading failed, else "".
    """

    name: str
    distribution: str
    place: str
    ops: tuple[str, ...] = ()
    error: str = ""


def registry_with(formulas: Mapping[Any, FormulaFunction] | None) -> FormulaRegistry:
    """Return the registry for a count, in order of precedence: ``formulas``, registered formulas of the user, of packages, of fxflops."""
    if not _loaded:
        load_packages()
    return BASE.derive(formulas)


def load_packages() -> tuple[Package, ...]:
    """Load the formulas of all installed libraries, once per process; return one Package per entry point.

    Warns if an entry point cannot be loaded; then none of its formulas are used.
    """
    with _LOADING:
        if not _loaded:
            _loaded[GROUP] = ()  # a package that counts a model while it is imported does not see packages loaded later
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
            f"could not load the formulas of {distribution or point.name} from {point.value} (entry point {point.name!r} of {GROUP}): {said}"
        )
        return package._replace(error=said)
    return package._replace(ops=tuple(ops))


_found()  # read installed libraries' metadata now, not during the first count
