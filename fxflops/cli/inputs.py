"""Inputs as the command line writes them, ``1,3,224,224``, ``mask=1,128:bool``, and the tensors they stand for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn

from ..errors import InputError, near
from ..records import DTYPE_NAMES, Spec
from ..run.model_run import cap_of
from ..units import size

DTYPES = {name: dtype for name, dtype in vars(torch).items() if isinstance(dtype, torch.dtype)} | {
    name: dtype for dtype, name in DTYPE_NAMES.items()
}
WRITTEN = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>\d+(?:[,x]\d+)*)(?::(?P<dtype>[\w.]+))?")
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


def dtype_of(name: str, of_weights: bool = False) -> torch.dtype:
    """The dtype of this name, "f16", "fp16", "float16" or "torch.float16"; InputError names those there are, of weights
    the real and complex ones."""
    bare = re.sub(r"^fp(?=\d)", "f", name.removeprefix("torch."))
    found = DTYPES.get(bare)
    known = {each: dtype for each, dtype in DTYPES.items() if not of_weights or _is_inexact(dtype)}
    if found is None:
        some = ", ".join(each for each in DTYPE_NAMES.values() if each in known)
        raise InputError(f"unknown dtype {name!r}{near(bare, known)}; one of {some} ...")
    if bare not in known:
        raise InputError(f"dtype {name!r} is none of weights: a real or complex one, as f16 or bf16")
    return found


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


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

    For a model on meta, integers and booleans are on the CPU: masks and positions are to keep their values. InputError
    for what there is no room for.
    """
    made = [(each.name, _made(each, device, dtype, vocabulary)) for each in inputs]
    return tuple(tensor for name, tensor in made if not name), {name: tensor for name, tensor in made if name}


def _made(given: Given, device: torch.device, dtype: torch.dtype, vocabulary: int) -> torch.Tensor:
    chosen = torch.int64 if given.dtype == TOKENS else dtype_of(given.dtype) if given.dtype else dtype
    spec = Spec(given.shape, chosen)
    real = not _is_inexact(chosen) and device.type == "meta"
    device = torch.device("cpu") if real else device
    try:
        if device.type == "cpu" and spec.nbytes > 2 * cap_of(device):
            raise MemoryError(f"{size(spec.nbytes)}, more than the memory there is")
        return _filled(given, spec, device, vocabulary)
    except (
        RuntimeError,
        TypeError,
        MemoryError,
    ) as error:  # of sizes that torch cannot count, and dtypes it cannot fill
        raise InputError(f"no input of shape {spec!r} can be made on {device}: {str(error).splitlines()[0]}") from error


def _filled(given: Given, spec: Spec, device: torch.device, vocabulary: int) -> torch.Tensor:
    if given.dtype == TOKENS:
        return torch.randint(vocabulary, spec, device=device)
    if _is_inexact(spec.dtype):
        drawn = spec.dtype if spec.dtype.itemsize > 1 else torch.float32  # torch draws no float8
        return torch.randn(spec, device=device, dtype=drawn).to(spec.dtype)
    return torch.full(spec, int(spec.dtype is torch.bool or "mask" in given.name), device=device, dtype=spec.dtype)


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
