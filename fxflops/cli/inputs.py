"""Inputs as written on the command line: ``1,3,224,224`` or ``mask=1,128:bool``."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..errors import InputError

WRITTEN = re.compile(r"(?:(?P<name>[A-Za-z_][\w.]*)=)?(?P<shape>\d+(?:[,x]\d+)*)(?::(?P<dtype>[\w.]+))?")
TOKENS = "tokens"
"""Given in place of a dtype: fill the input with random token ids below the model's vocabulary size."""


class Given(NamedTuple):
    """An input as written on the command line. An input with an empty ``name`` is positional. ``dtype`` is the name of a dtype, :data:`TOKENS`,
    or "" for the model's dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str = ""


def read_input(text: str) -> Given:
    """Read ``[name=]1,3,224,224[:dtype]``. The shape may have brackets around it, as in Python. Raises InputError for other text."""
    found = WRITTEN.fullmatch(re.sub(r"[ ()\[\]]", "", text))
    if found is None:
        raise InputError(f"--input {text!r}: write a shape, such as 1,3,224,224 or name=1,3,224,224:f16")
    return Given(found["name"] or "", tuple(map(int, re.split("[,x]", found["shape"]))), found["dtype"] or "")


def read_tokens(text: str) -> Given:
    """Read the shape given as ``--input-ids``. Raises InputError for other text."""
    given = read_input(text)
    if given.name or given.dtype:
        raise InputError(f"--input-ids {text!r}: write only a shape, such as 1,128, without a name or a dtype")
    return given._replace(name="input_ids", dtype=TOKENS)
