"""Files of exports: choosing the format by suffix, and writing."""

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
"""The method of a report that writes a file with this suffix."""


def method_for(path: Path) -> str:
    """Return the method that writes the format of the suffix of ``path``; raise InputError for an unknown suffix."""
    name = os.fspath(path)
    method = next((method for suffix, method in FORMATS.items() if name.lower().endswith(suffix)), None)
    if method is None:
        raise InputError(f"no format has the suffix of {name!r}: one of {', '.join(FORMATS)}; str(report) is text")
    return method


def written(text: str, path: Path | None) -> str | None:
    """Return the text if ``path`` is None; otherwise write it to that file and return None."""
    if path is None:
        return text
    written_bytes(text.encode("utf8", "backslashreplace"), path)
    return None


def written_bytes(data: bytes, path: Path | None) -> bytes | None:
    """Return the data if ``path`` is None; otherwise write it to that file and return None."""
    if path is None:
        return data
    with writing(path):
        pathlib.Path(path).write_bytes(data)
    return None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise InputError, which is also a FileNotFoundError, if the file's folder does not exist."""
    try:
        yield
    except FileNotFoundError as error:
        folder = os.path.dirname(path)
        said = f"cannot write {os.fspath(path)!r}: there is no folder {folder!r}; make it, by os.makedirs({folder!r})"
        raise of_kind(InputError(said), FileNotFoundError) from error
