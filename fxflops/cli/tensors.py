"""Make input tensors; look up dtypes, devices and optimizers by name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch

from ..errors import InputError, did_you_mean
from ..model.inputs import CASTS_TO, is_inexact, place_of, random_input
from ..records import DTYPE_NAMES, Spec
from ..roofline.devices import Device, find_device, listed
from ..run.model_run import cap_of
from ..units import size
from .inputs import TOKENS, Given
from .options import NO_CARD, unknown_device

DTYPES = {name: dtype for name, dtype in vars(torch).items() if isinstance(dtype, torch.dtype)}
DTYPES |= {short: DTYPES[name] for name, short in DTYPE_NAMES.items()}


def dtype_of(name: str, of_weights: bool = False) -> torch.dtype:
    """Return the dtype with this name, which may be written as "f16", "fp16", "float16" or "torch.float16".

    Raises InputError for an unknown name. With ``of_weights``, also raises InputError for a dtype that is neither floating-point nor complex.
    """
    bare = re.sub(r"^fp(?=\d)", "f", name.removeprefix("torch."))
    found = DTYPES.get(bare)
    known = {each: dtype for each, dtype in DTYPES.items() if not of_weights or is_inexact(dtype)}
    if found is None:
        some = ", ".join(each for each in DTYPE_NAMES.values() if each in known)
        raise InputError(f"unknown dtype {name!r}{did_you_mean(bare, known)}; expected {some} ...")
    if bare not in known:
        raise InputError(
            f"weights cannot have dtype {name!r}: give a floating-point or complex dtype, such as f16 or bf16"
        )
    return found


def autocast_of(name: str | None) -> torch.dtype | None:
    """Return the autocast dtype with this name; None for None. Raises InputError for a dtype that autocast does not support."""
    found = None if name is None else dtype_of(name)
    if found is not None and found not in CASTS_TO:
        raise InputError(f"--autocast {name}: expected bf16 or f16")
    return found


def device_of(name: str, needed: bool = True) -> torch.device:
    """Return the torch device with this name. Raises InputError for an unknown name.

    With ``needed``, also raises InputError for a CUDA device that this machine does not have.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise unknown_device(name) from None
    if (
        needed
        and device.type == "cuda"
        and not (torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count())
    ):
        raise InputError(
            f"device {name!r} does not exist: torch finds {torch.cuda.device_count()} CUDA devices on this machine"
        )
    return device


def card_of(name: str | None) -> Device:
    """Return the card with this name. For a CUDA device such as "cuda:0", return the card that is in this machine. Raises InputError if
    there is no such card."""
    if name is None:
        raise InputError(NO_CARD)
    found = listed(name)
    if found is not None:
        return found
    device = device_of(name)
    if device.type != "cuda":
        raise InputError(
            f"--device {name} is not a card: give a card, such as H100, A100, L4 or RTX 4090; "
            f"fxflops run --device cpu measures a model on this machine's CPU"
        )
    return find_device(torch.cuda.get_device_name(device))


def optimizer_of(name: str | None) -> type[torch.optim.Optimizer] | None:
    """Return the torch.optim class with this name, ignoring case; None for None. Raises InputError for an unknown name."""
    classes = {each: cls for each, cls in vars(torch.optim).items() if isinstance(cls, type) and each != "Optimizer"}
    if name is None:
        return None
    found = next((each for each in classes if each.lower() == name.lower()), None)
    if found is None:
        raise InputError(
            f"torch.optim has no optimizer {name!r}{did_you_mean(name, classes)}; expected one of {', '.join(sorted(classes))}"
        )
    return classes[found]


def tensors_of(
    inputs: Iterable[Given], device: torch.device, dtype: torch.dtype, vocabulary: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Create the input tensors; return the positional inputs and the named inputs.

    Floating-point inputs are random numbers from 0 to 1, booleans are True, integers are 0, and integer masks are 1. Token ids are random.
    An input named ``batch.ids`` becomes the entry ``ids`` of the dict ``batch``. Raises InputError for an input that torch cannot create
    or that does not fit in memory.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    args: list[torch.Tensor] = []
    kwargs: dict[str, Any] = {}
    for given in inputs:
        tensor = _made(given, device, dtype, vocabulary, generator)
        *outer, last = given.name.split(".")
        entries = kwargs
        for name in outer:
            entries = entries.setdefault(name, {})
            if not isinstance(entries, dict):
                raise InputError(
                    f"--input {given.name}: {name} cannot be a dict, because another --input gives it as a tensor"
                )
        if last:
            entries[last] = tensor
        else:
            args.append(tensor)
    return tuple(args), kwargs


def _made(
    given: Given, device: torch.device, dtype: torch.dtype, vocabulary: int, generator: torch.Generator
) -> torch.Tensor:
    dtype = torch.int64 if given.dtype == TOKENS else dtype_of(given.dtype) if given.dtype else dtype
    spec = Spec(given.shape, dtype)
    device = place_of(dtype, device)
    try:
        if device.type == "cpu" and spec.nbytes > 2 * cap_of(device):
            raise MemoryError(f"it needs {size(spec.nbytes)}, more than this machine's memory")
        if given.dtype == TOKENS:
            return torch.randint(vocabulary, spec, generator=generator, device="cpu").to(device)
        made = random_input(spec, dtype, device, generator)
        return made if "mask" not in given.name or is_inexact(dtype) else made.fill_(1)
    # torch raises RuntimeError for sizes that overflow, and TypeError for dtypes that it cannot fill with numbers.
    except (RuntimeError, TypeError, MemoryError) as error:
        raise InputError(f"cannot create an input {spec!r} on {device}: {str(error).splitlines()[0]}") from error
