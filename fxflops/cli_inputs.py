"""Inputs as the command line writes them, ``1,3,224,224``, ``mask=1,128:bool``, and the tensors they stand for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, NamedTuple

import torch
from torch import nn

from .errors import InputError
from .records import DTYPE_NAMES

DTYPES = {
    **{name: dtype for dtype, name in DTYPE_NAMES.items()},
    **{str(dtype).removeprefix("torch."): dtype for dtype in DTYPE_NAMES},
    "half": torch.float16,
    "float": torch.float32,
    "double": torch.float64,
    "int": torch.int32,
    "long": torch.int64,
}
WRITTEN = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>\d+(?:[,x]\d+)*)(?::(?P<dtype>\w+))?")
TOKENS = "tokens"
"""In place of a dtype: numbers of words, drawn from the model's vocabulary."""


class Given(NamedTuple):
    """An input: by position where it has no ``name``; ``dtype`` one of :data:`DTYPES`, :data:`TOKENS`, or "" for the
    model's own."""

    name: str
    shape: tuple[int, ...]
    dtype: str = ""

    def of_batch(self, batch: int | None) -> Given:
        return self if batch is None else self._replace(shape=(batch, *self.shape[1:]))


def read_input(text: str) -> Given:
    """``[name=]1,3,224,224[:dtype]``; InputError says how it is written."""
    found = WRITTEN.fullmatch(text.replace(" ", ""))
    if found is None:
        raise InputError(f"--input {text!r}: write a shape, such as 1,3,224,224 or name=1,3,224,224:f16")
    if found["dtype"]:
        dtype_of(found["dtype"])
    return Given(found["name"] or "", tuple(map(int, re.split("[,x]", found["shape"]))), found["dtype"] or "")


def read_tokens(text: str) -> Given:
    """The shape of ``--input-ids``."""
    given = read_input(text)
    if given.name or given.dtype:
        raise InputError(f"--input-ids {text!r}: write a shape alone, such as 1,128")
    return given._replace(name="input_ids", dtype=TOKENS)


def dtype_of(name: str) -> torch.dtype:
    """The dtype of this name, "f16" or "float16"; InputError names those there are."""
    if name not in DTYPES:
        near = get_close_matches(name, DTYPES, n=3) or list(DTYPE_NAMES.values())
        raise InputError(f"unknown dtype {name!r}: {', '.join(near)} ...")
    return DTYPES[name]


def device_of(name: str) -> torch.device:
    """The device of this name; InputError where torch has none such here."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"unknown device {name!r}: cpu, cuda, cuda:1, meta ...") from None
    if device.type == "cuda" and not (torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()):
        raise InputError(f"no device {name!r}: torch finds {torch.cuda.device_count()} CUDA devices here")
    return device


def tensors_of(
    inputs: Iterable[Given], device: torch.device, dtype: torch.dtype, vocabulary: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named inputs: real numbers are random, integers 0 (1 in a mask), booleans true, tokens random.

    For a model on meta, integers and booleans are on the CPU: masks and positions are to keep their values.
    """
    made = [(each.name, _tensor(each, device, dtype, vocabulary)) for each in inputs]
    return tuple(tensor for name, tensor in made if not name), {name: tensor for name, tensor in made if name}


def _tensor(given: Given, device: torch.device, dtype: torch.dtype, vocabulary: int) -> torch.Tensor:
    chosen = dtype if given.dtype in ("", TOKENS) else dtype_of(given.dtype)
    if given.dtype != TOKENS and (chosen.is_floating_point or chosen.is_complex):
        return torch.randn(given.shape, device=device, dtype=chosen)
    device = torch.device("cpu") if device.type == "meta" else device
    if given.dtype == TOKENS:
        return torch.randint(vocabulary, given.shape, device=device)
    return torch.full(given.shape, int(chosen is torch.bool or "mask" in given.name), device=device, dtype=chosen)


def place_of(model: nn.Module) -> torch.device:
    """Where the model's parameters are."""
    tensor = next((t for tensors in (model.parameters(), model.buffers()) for t in tensors), None)
    return torch.device("cpu") if tensor is None else tensor.device


def precision_of(model: nn.Module) -> torch.dtype:
    """The dtype of its first real parameter."""
    dtypes = (parameter.dtype for parameter in model.parameters())
    return next((dtype for dtype in dtypes if dtype.is_floating_point), torch.get_default_dtype())


def vocabulary_of(model: nn.Module) -> int:
    """How many words the model's first embedding knows."""
    embeddings = (module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding))
    return next(embeddings, 2)
