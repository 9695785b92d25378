"""Detect the type of a file or folder from its contents, and load the model in it.

Detection runs no code and does not import torch, which would take seconds. A torch.export program (``.pt2``) or a TorchScript file is
loaded without running code from the file, because torch only reads data from such files. A transformers or diffusers config names a class
of an installed library. Loading a pickle runs the code that the pickle names, so pickles are loaded only with ``unsafe``.
"""

from __future__ import annotations

import io
import json
import pickletools
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError
from ..units import size
from . import configs

PROGRAM, SCRIPT, SAVED, CONFIG = "program", "script", "torch.save", "config"
"""File types that may contain a model: written by torch.export.save, torch.jit.save or torch.save, or a folder with a config.json."""
NONE = "none"
HEAD = 4096
WHAT_IS_READ = (
    "pass a .pt2 file written by torch.export.save, a .pt file written by torch.jit.save, "
    "or a folder with a transformers or diffusers config.json"
)
SAFE = "save the model with torch.export.save(torch.export.export(model, args), 'model.pt2')"
"""How to save a model so that loading it runs no code."""
WEIGHTS = (
    "it has weights, but no code to build the model: pass that code as FILE.py:NAME; counts do not depend on weights"
)


class Kind(NamedTuple):
    """The type of a file. If the type is "none", ``why`` describes the file, which contains no model."""

    name: str
    why: str = ""


def kind_of(path: str | PathLike[str]) -> Kind:
    """Detect the type of a file or folder from its contents. Raises InputError if the file cannot be read."""
    path = Path(path).expanduser()
    try:
        if path.is_dir():
            return _kind_of_folder(path)
        with path.open("rb") as file:
            head = file.read(HEAD)
        if zipfile.is_zipfile(path) or head.startswith(b"PK\x03\x04"):
            return _kind_of_zip(path)
        return _kind_of_bytes(path, head)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def checked_file(path: str | PathLike[str]) -> Kind:
    """Return the type of a file. Raises InputError with the reason if the file is not a model."""
    kind = kind_of(path)
    if kind.name == NONE:
        raise InputError(f"{fspath(path)} is {kind.why}")
    return kind


def load_model(path: str | PathLike[str], *, unsafe: bool = False) -> Any:
    """Load the model in a file or a folder, for :func:`fxflops.count` and the other functions.

    Args:
        path: a program written by ``torch.export.save`` (``.pt2``), a model written by ``torch.jit.save`` (``.pt``), or a
            folder with a transformers or diffusers ``config.json``, with or without weights. The type of the file is detected from
            its contents, not from its name.
        unsafe: also load a module pickled by ``torch.save(model)``, or a program with pickled objects. Unpickling runs
            code that the file names, so use ``unsafe`` only for files that you trust.

    Returns:
        A ``torch.export.ExportedProgram``, a ``torch.jit.ScriptModule`` or another ``nn.Module``. The model is on the CPU, even if
        it was saved on another device. A model made from a config is on the meta device, and its weights are never read.

    Raises:
        InputError: the file contains no model, the file is damaged, or the file is a pickle and ``unsafe`` is False.
    """
    place = Path(path).expanduser()
    kind = checked_file(place)
    return LOADERS[kind.name](place, unsafe)


# The type of a file


MAGIC: dict[bytes, str] = {
    b"GGUF": f"a llama.cpp GGUF file: {WEIGHTS}",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file, a format that Keras writes, not a PyTorch model",
    b"\x7fELF": "a compiled library (ELF), which has no graph to count: pass the model that it was compiled from",
    b"MZ": "a compiled library, which has no graph to count: pass the model that it was compiled from",
    b"\x93NUMPY": "a numpy array, not a model",
    b"ftrt": "a compiled TensorRT engine, which has no graph to count: pass the model that it was built from",
    b"\x1f\x8b": "a gzip archive: unpack it",
    b"BZh": "a bzip2 archive: unpack it",
    b"\xfd7zXZ": "an xz archive: unpack it",
    b"7z\xbc\xaf": "a 7z archive: unpack it",
    b"version https://git-lfs": "a git-lfs pointer, not the file itself: run git lfs pull",
    b"<": "a text file that begins with '<', such as an HTML error page saved instead of the download",
}
"""Descriptions of files that are not PyTorch models, by their first bytes."""
AT_FOUR = {
    b"TFL3": "a TensorFlow Lite model, not a PyTorch model",
    b"ET": "an ExecuTorch program, already lowered for a device: pass the torch.export program that it was made from",
}


def _kind_of_bytes(path: Path, head: bytes) -> Kind:
    if not head:
        return Kind(NONE, "an empty file")
    for magic, why in MAGIC.items():
        if head.lstrip(b"\xef\xbb\xbf \t\r\n" if magic == b"<" else b"").startswith(magic):
            return Kind(NONE, why)
    for magic, why in AT_FOUR.items():
        if head[4:].startswith(magic):
            return Kind(NONE, why)
    if (tensors := _of_safetensors(head, path.stat().st_size)) is not None:
        return Kind(NONE, f"a safetensors file{tensors}: {WEIGHTS}")
    if head[:1] == b"\x80":
        return Kind(SAVED)
    if head[257:262] == b"ustar":
        return Kind(NONE, "a tar archive: unpack it")
    # ONNX's ModelProto has no magic number: its first field is ir_version, followed by a string field.
    if head[:1] == b"\x08" and 0 < head[1] < 32 and head[2:3] in (b"\x12", b"\x1a", b"\x22", b"\x32", b"\x3a", b"\x42"):
        return Kind(NONE, "an ONNX model, which torch does not run: pass the PyTorch model that it was exported from")
    if _is_text(head):
        return Kind(NONE, f"a text file, not a model: {WHAT_IS_READ}")
    return Kind(NONE, f"of unknown type, or damaged: {WHAT_IS_READ}")


def _is_text(head: bytes) -> bool:
    try:
        text = head[:-4].decode() if len(head) == HEAD else head.decode()
    except UnicodeDecodeError:
        return False
    return all(char.isprintable() or char in "\r\n\t\f" for char in text)


def _of_safetensors(head: bytes, length: int) -> str | None:
    """Return "" for a complete safetensors file, " (cut off)" for a truncated safetensors file, and None for any other file.

    The format starts with the header's length in 8 bytes, then a JSON header (https://huggingface.co/docs/safetensors).
    """
    header_bytes = int.from_bytes(head[:8], "little")
    if len(head) < 10 or head[8:9] != b"{" or not 2 <= header_bytes <= 100_000_000:
        return None
    return " (cut off)" if 8 + header_bytes > length else ""


def _kind_of_folder(path: Path) -> Kind:
    if (path / "config.json").is_file():
        return Kind(CONFIG)
    if (path / "model_index.json").is_file():
        return Kind(NONE, configs.parts_of_pipeline(path))
    if (path / "adapter_config.json").is_file():
        base = configs.read_json(path / "adapter_config.json").get("base_model_name_or_path")
        return Kind(
            NONE,
            f"a PEFT adapter for {base or 'another model'}, without that model's config: pass the base model's folder",
        )
    names = {each.name for each in path.iterdir()}
    if "data.pkl" in names and "version" in names:
        return Kind(NONE, "an unpacked file of torch.save or torch.jit.save: pass the file itself")
    if "saved_model.pb" in names:
        return Kind(NONE, "a TensorFlow SavedModel, not a PyTorch model")
    return Kind(
        NONE,
        "a directory without a config.json: pass a model's folder, which has a config.json, or your own model as FILE.py:NAME",
    )


def _kind_of_zip(path: Path) -> Kind:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return Kind(NONE, "a damaged zip archive, cut off or changed")
    inside = {name.partition("/")[2] for name in names} | {*names}
    if "serialized_exported_program.json" in inside or any(_is_program(name) for name in inside):
        return Kind(PROGRAM)
    if any(name.startswith(("data/aotinductor/", "data/executorch/")) for name in inside):
        why = (
            "compiled by AOTInductor, which has no graph to count: pass the torch.export program that it was made from"
        )
        return Kind(NONE, f"a package {why}")
    if "archive_format" in inside:
        return Kind(NONE, "a torch package without a torch.export program")
    if "constants.pkl" in inside:
        return Kind(SCRIPT)
    if "data.pkl" in inside:
        return Kind(SAVED)
    if "MAR-INF/MANIFEST.json" in inside:
        return Kind(NONE, "a TorchServe archive: unpack it, and pass the model inside")
    if any(name.endswith(".npy") for name in names):
        return Kind(NONE, "an archive of numpy arrays, not a model")
    if any(name.startswith("model.weights.h5") for name in names):
        return Kind(NONE, "a Keras model, not a PyTorch model")
    return Kind(NONE, f"a zip archive that torch did not write: {WHAT_IS_READ}")


def _is_program(name: str) -> bool:
    return name.startswith("models/") and name.endswith(".json")


# Programs and TorchScript


def _program(path: Path, unsafe: bool) -> Any:
    """Load a torch.export program."""
    import torch.export

    from ..torch_internals import programs_in

    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if _is_program(name.partition("/")[2])]
        if not unsafe:
            for name in _pickled_in(archive):
                with archive.open(name) as member:
                    if (why := _refused(member.read())) is not None:
                        raise _runs_code(path, f"contains pickled objects ({name}: {why})")
    programs = [name.rpartition("/")[2].removesuffix(".json") for name in names] or ["model"]
    with _reading(path, "torch.export program"):
        if programs == ["model"]:
            return torch.export.load(path)
        loaded = programs_in(path)
    if len(loaded) == 1:
        return next(iter(loaded.values()))
    raise InputError(
        f"{path} has {len(loaded)} programs ({', '.join(loaded)}): save every program in a separate file, and count these files"
    )


def _pickled_in(archive: zipfile.ZipFile) -> Iterator[str]:
    """Yield the members of an archive that torch.export.load unpickles."""
    for name in archive.namelist():
        inside = name.partition("/")[2]
        is_old_format = name.startswith("serialized_") and name.endswith(".pt")
        if is_old_format or inside.startswith(("data/sample_inputs/", "data/constants/opaque")):
            yield name
        elif inside.startswith(("data/weights/", "data/constants/")) and name.endswith("_config.json"):
            folder = name.rpartition("/")[0]
            for payload in _dicts_in(json.loads(archive.read(name))):
                # Script objects are read by torch's C++ unpickler, which creates no Python objects.
                if payload.get("use_pickle") and "custom_obj" not in str(payload.get("path_name")):
                    yield f"{folder}/{payload['path_name']}"


def _dicts_in(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from _dicts_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from _dicts_in(each)


def _refused(data: bytes) -> str | None:
    """Return why torch's ``weights_only`` unpickler, which allows only tensors and plain values, refuses a pickle; None if it does not."""
    import torch

    if not data:
        return None
    try:
        torch.load(io.BytesIO(data), map_location="meta", weights_only=True)
    except Exception as error:
        return ", ".join(_names_in(io.BytesIO(data))) or type(error).__name__
    return None


def _script(path: Path, unsafe: bool) -> Any:
    """Load a TorchScript model."""
    import torch

    with _reading(path, "TorchScript model"):
        return torch.jit.load(str(path), map_location="cpu")


class _reading:
    """Turn errors of torch's file readers into an InputError that names the file, and suppress torch's warnings."""

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._what = what
        self._quiet = warnings.catch_warnings()

    def __enter__(self) -> None:
        self._quiet.__enter__()
        warnings.simplefilter("ignore")

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._quiet.__exit__(kind, error, traceback)
        if isinstance(error, Exception) and not isinstance(error, InputError):
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
            raise InputError(
                f"{self._path}: this {self._what} cannot be loaded: {kind.__name__}: {lines[0][:300]}"
            ) from error


# Files written by torch.save


def _saved(path: Path, unsafe: bool) -> Any:
    """Load a pickled module if ``unsafe``. Raises InputError with a description if the file contains anything else."""
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = torch.load(path, map_location="meta", weights_only=True)
    except Exception:
        with path.open("rb") as file:
            names = [*_names_in(file)]
    else:
        raise InputError(f"{path} is {_described(plain)}")
    if not names:
        raise InputError(f"{path} is an unreadable pickle: truncated, damaged, or not written by PyTorch")
    if not unsafe:
        raise _runs_code(path, f"is a pickle of {names[0]}")
    with _reading(path, "pickle"):
        loaded = torch.load(path, map_location="cpu", weights_only=False)
    modules = {id(each): each for each in _modules_in(loaded)}
    if len(modules) == 1:
        return next(iter(modules.values()))
    raise InputError(f"{path} is {_described(loaded)}")


def _runs_code(path: Path, what: str) -> InputError:
    problem = f"{path} {what}, and loading a pickle runs the code that the pickle names. For a file that is safe to load, {SAFE}"
    return InputError(problem, advice="unsafe")


def _modules_in(loaded: Any) -> Iterator[Any]:
    """Yield the loaded object if it is a module. If the loaded object is a checkpoint, yield the modules among its values."""
    from torch import nn

    if isinstance(loaded, nn.Module):
        yield loaded
    elif isinstance(loaded, Mapping):
        yield from (value for value in loaded.values() if isinstance(value, nn.Module))


def _described(value: Any) -> str:
    """Describe a value that was saved with torch.save, other than a module."""
    import torch

    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}, not a model"
    if not isinstance(value, Mapping):
        return f"a saved {type(value).__name__}, not a model"
    tensors = {name: tensor for name, tensor in value.items() if isinstance(tensor, torch.Tensor)}
    if tensors and len(tensors) >= len(value) - 1:
        numbers = sum(tensor.numel() for tensor in tensors.values())
        nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        return f"a state dict ({len(tensors)} tensors, {numbers:,} numbers, {size(nbytes)}): {WEIGHTS}"
    keys = ", ".join(map(str, [*value][:6])) + ", ..." * (len(value) > 6)
    by = "Lightning " if "pytorch-lightning_version" in value else ""
    return f"a {by}checkpoint ({keys}): {WEIGHTS}"


def _names_in(file: Any) -> Iterator[str]:
    """Yield the names that a pickle, or the pickle in an archive, would import, as "module.name". Names of plain data are skipped."""
    from ..torch_internals import OF_TENSORS

    text = file.read()
    if text[:4] == b"PK\x03\x04":
        try:
            with zipfile.ZipFile(io.BytesIO(text)) as archive:
                name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
                text = archive.read(name)
        except (zipfile.BadZipFile, StopIteration):
            return
    strings: list[str] = []
    stream = io.BytesIO(text)
    seen = set[str]()
    while stream.tell() < len(text):  # torch.save's old format is a sequence of pickles, followed by raw bytes
        try:
            for opcode, argument, _ in pickletools.genops(stream):
                name = ""
                if opcode.name == "GLOBAL":
                    name = str(argument).replace(" ", ".")
                elif opcode.name == "STACK_GLOBAL" and len(strings) > 1:
                    name = ".".join(strings[-2:])
                elif isinstance(argument, str):
                    strings.append(argument)
                if name and name not in seen and not name.startswith(OF_TENSORS):
                    seen.add(name)
                    yield name
        except (ValueError, UnicodeDecodeError, IndexError, KeyError, OverflowError):
            return


def _config(path: Path, unsafe: bool) -> Any:
    """Make the model described by a folder's config on meta, without weights."""
    import torch

    with _reading(path, "config"), torch.device("meta"):
        return configs.model_of_folder(path).model


LOADERS: dict[str, Callable[[Path, bool], Any]] = {PROGRAM: _program, SCRIPT: _script, SAVED: _saved, CONFIG: _config}
