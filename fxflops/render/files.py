"""Exported files: choose the format by the suffix, and write the file."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike

from ..errors import InputError, of_kind

Path = str | PathLike[str]
FORMATS = {
    ".trace.json": "to_chrome_trace",
    ".perfetto": "to_chrome_trace",
    ".json": "to_json",
    ".csv": "to_csv",
    ".md": "to_markdown",
    ".tex": "to_latex",
    ".html": "to_html",
    ".svg": "to_svg",
    ".png": "to_png",
    ".pdf": "to_pdf",
    ".pickle": "to_memory_snapshot",
}
"""For each suffix of a file, the method of a report that writes such a file."""


def method_for(path: Path) -> str:
    """Return the name of the method that writes files with the suffix of ``path``. Raise InputError for an unknown suffix."""
    name = os.fspath(path)
    method = next((method for suffix, method in FORMATS.items() if name.lower().endswith(suffix)), None)
    if method is None:
        raise InputError(f"unknown suffix in {name!r}; expected one of {', '.join(FORMATS)}; str(report) returns text")
    return method


def written(text: str, path: Path | None) -> str | None:
    """Return the text if ``path`` is None. If ``path`` is not None, write the text to the file ``path`` and return None."""
    if path is None:
        return text
    written_bytes(text.encode("utf8", "backslashreplace"), path)
    return None


def written_bytes(data: bytes, path: Path | None) -> bytes | None:
    """Return the data if ``path`` is None. If ``path`` is not None, write the data to the file ``path`` and return None."""
    if path is None:
        return data
    with writing(path):
        pathlib.Path(path).write_bytes(data)
    return None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """If the block cannot write the file because the file's folder does not exist, raise an InputError that is also a FileNotFoundError."""
    try:
        yield
    except FileNotFoundError as error:
        folder = os.path.dirname(path)
        said = f"cannot write {os.fspath(path)!r}: the folder {folder!r} does not exist; create it with os.makedirs({folder!r})"
        raise of_kind(InputError(said), FileNotFoundError) from error
