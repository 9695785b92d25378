"""Distinguish the user's source files from the files of Python and of installed packages, without importing torch."""

from __future__ import annotations

import sys
import sysconfig
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from ..errors import PACKAGE

PACKAGES = "/site-packages/", "/dist-packages/"
"""Folder names that mark the path of an installed package, in any environment."""


@cache
def is_installed(file: str) -> bool:
    """Return whether a file belongs to Python, an installed package, torch or fxflops. The result is also True for generated code."""
    if file.startswith("<"):
        return file.startswith(("<frozen", "<built-in", "<string>", "<eval"))
    return file.startswith(FOLDERS) or any(folder in file for folder in PACKAGES)


def is_user_module(module: ModuleType | str) -> bool:
    """Return whether a Python module, or the module with this name, was read from a file that belongs to no installed package.

    No code of the module runs.
    """
    named = sys.modules.get(module) if type(module) is str else module
    if not issubclass(type(named), ModuleType):
        return False
    file = ModuleType.__getattribute__(named, "__dict__").get("__file__")
    return type(file) is str and not is_installed(file)


def _folder_of(package: str) -> str:
    """Return the folder of a package. The package may be installed from a checkout. If the package is missing, return fxflops's own folder."""
    spec = find_spec(package)
    return f"{Path(spec.origin).parent}/" if spec is not None and spec.origin else f"{PACKAGE}/"


TORCH = _folder_of("torch")
FOLDERS = (
    TORCH,
    f"{PACKAGE}/",
    *{f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")},
)
