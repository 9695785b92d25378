"""Load models by name: from timm, torchvision and transformers, with random weights and no download, or from the user's
own code."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from ..errors import FxflopsError, InputError, near, not_installed
from ..model.callables import as_model
from ..trace.source import is_library
from .inputs import TOKENS, Given
from .libraries import FORMS, is_from_a_library, near_or_all, unknown, unknown_to_transformers
from .shown import note

DEFAULT_TOKENS, DEFAULT_FRAMES, DEFAULT_SIDE = 128, 16, 224
"""Sizes of inputs for models that do not say which they take: tokens, frames of a video, pixels of an image's side."""


class Loaded(NamedTuple):
    """A model and its inputs: ``given`` are args and kwargs from the user's own code, ``default`` are those that fit a
    library's model.

    ``note`` says which sizes of the default inputs were our choice.
    """

    model: nn.Module
    default: tuple[Given, ...] = ()
    note: str = ""
    given: tuple[Any, Any] | None = None


def load(name: str, on_meta: bool = False) -> Loaded:
    """Load the model of this name; with ``on_meta`` its weights are not allocated.

    Raises InputError for an unknown name, with similar ones, and for a model that cannot be made.
    """
    if not is_from_a_library(name):
        place, _, attribute = name.rpartition(":")
        if place and attribute:
            return _own(place, attribute, on_meta)
        if name.endswith(".py"):
            makers = ", ".join(f"{name}:{maker}" for maker in _makers(_imported(name)))
            raise InputError(
                f"which model of {name}? {f'one of {makers}' if makers else 'no module and no function is in it'}"
            )
        raise InputError(f"unknown model {name!r}. A model is one of\n{FORMS}")
    library, _, rest = name.partition(":")
    with _offline(), _built(on_meta):
        try:
            return LIBRARIES[library](rest)
        except FxflopsError:
            raise
        except Exception as error:
            raise InputError(f"{name} cannot be made{' on meta' * on_meta}: {_message(error)}") from error


@contextmanager
def _built(on_meta: bool) -> Iterator[None]:
    """Build a model with the same random weights each time; on meta, without weights."""
    torch.manual_seed(0)
    with torch.device("meta") if on_meta else nullcontext():
        yield


def _of_timm(name: str) -> Loaded:
    timm = _package("timm")
    if not timm.is_model(name):
        raise unknown("timm", name, timm.list_models())
    model = timm.create_model(name, pretrained=False)
    size = (getattr(model, "pretrained_cfg", None) or {}).get("input_size", (3, DEFAULT_SIDE, DEFAULT_SIDE))
    return Loaded(model, (Given("", (1, *size)),))


def _of_torchvision(name: str) -> Loaded:
    models = _package("torchvision").models
    if name not in models.list_models():
        raise unknown("torchvision", name, models.list_models())
    builder = models.get_model_builder(name)
    # Detection and segmentation would otherwise download a backbone.
    backbone = {"weights_backbone": None} if "weights_backbone" in inspect.signature(builder).parameters else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = builder(weights=None, **backbone)
    kind = builder.__module__.removeprefix("torchvision.models.").partition(".")[0]
    return Loaded(model, *_inputs_of_torchvision(model, name, kind, models))


def _inputs_of_torchvision(model: nn.Module, name: str, kind: str, models: Any) -> tuple[tuple[Given, ...], str]:
    """Return the inputs that the model's first published weights were trained for, and a note on sizes we chose."""
    if kind == "detection":
        resize: Any = model.transform
        height, width = resize.fixed_size[::-1] if resize.fixed_size else (resize.min_size[-1],) * 2
        return (Given("", (1, 3, height, width)),), ""
    transforms = next(iter(models.get_model_weights(name))).transforms()
    said = getattr(transforms, "crop_size", None) or getattr(transforms, "resize_size", None)
    height, width = (said[0], said[-1]) if said else (DEFAULT_SIDE, DEFAULT_SIDE)
    if kind == "video":
        note = f"{DEFAULT_FRAMES} frames; --input 1,3,T,H,W for others"
        return (Given("", (1, 3, DEFAULT_FRAMES, height, width)),), note
    note = "" if said else f"images of {DEFAULT_SIDE} x {DEFAULT_SIDE}; --input 1,3,H,W for others"
    return (Given("", (1, 3, height, width)),) * (2 if kind == "optical_flow" else 1), note


def _of_transformers(name: str) -> Loaded:
    transformers = _package("transformers")
    transformers.logging.set_verbosity_error()
    auto = importlib.import_module("transformers.models.auto.configuration_auto")
    path = Path(name).expanduser()
    path = path / "config.json" if path.is_dir() else path
    if path.is_file():
        config, cls = _of_config(path, transformers, auto.CONFIG_MAPPING)
    elif name in auto.CONFIG_MAPPING_NAMES:
        config, cls = auto.CONFIG_MAPPING[name](), None
    elif (found := _architecture(transformers, name)) is not None:
        config, cls = found.config_class(), found
    else:
        words = (word for word in dir(transformers) if word[:1].isupper() and (word.endswith("Model") or "For" in word))
        raise unknown_to_transformers(name, auto.CONFIG_MAPPING_NAMES, words)
    model = transformers.AutoModel.from_config(config) if cls is None else cls(config)
    model = model.to(getattr(config, "dtype", None) or torch.float32)
    if cls is None and path.is_file():
        # Without a head there is no loss, and no product with the vocabulary.
        note(
            f"{name}: its architectures name no model of transformers, so this is {type(model).__name__}, without a head: "
            'add a line such as "architectures": ["LlamaForCausalLM"] for another'
        )
    return Loaded(model, *_inputs_of_transformers(model, config))


def _of_config(path: Path, transformers: ModuleType, types: Any) -> tuple[Any, Any]:
    """Return the config in a file and the model class that its ``architectures`` name, None if they name none."""
    try:
        values = json.loads(path.read_text(encoding="utf8"))
    except (ValueError, OSError) as error:
        raise InputError(f"{path} is not a config of transformers: {error}") from None
    kind = values.get("model_type") if isinstance(values, dict) else None
    if kind is None:
        raise InputError(f'{path} is not a config of transformers: it has no model_type, such as "llama"')
    if kind not in types:
        raise InputError(
            f"{path}: transformers has no model_type {kind!r}{near(str(kind), types)}; custom code is not run"
        )
    return types[kind].from_dict(values), _architecture(transformers, next(iter(values.get("architectures") or ()), ""))


def _architecture(transformers: ModuleType, name: str) -> Any:
    """Return the model class of this name; None if there is none."""
    found = getattr(transformers, name, None)
    is_model = isinstance(found, type) and issubclass(found, nn.Module) and getattr(found, "config_class", None)
    return found if is_model else None


def _inputs_of_transformers(model: Any, config: Any) -> tuple[tuple[Given, ...], str]:
    """Return tokens or an image, if that is the main input, and a note on sizes we chose; no inputs for other models."""
    if model.main_input_name == "input_ids" and hasattr(config, "vocab_size"):
        tokens = min(DEFAULT_TOKENS, getattr(config, "max_position_embeddings", None) or DEFAULT_TOKENS)
        wanted = ["decoder_input_ids"] if getattr(config, "is_encoder_decoder", False) else []
        names = ["input_ids", *(name for name in wanted if name in inspect.signature(model.forward).parameters)]
        note = f"{' and '.join(names)} of {tokens} tokens, without a mask; --input-ids 1,512 for others"
        return tuple(Given(name, (1, tokens), TOKENS) for name in names), note
    if model.main_input_name == "pixel_values":
        said = getattr(config, "image_size", None)
        height, width = (said[0], said[-1]) if isinstance(said, (list, tuple)) else (said or DEFAULT_SIDE,) * 2
        note = "" if said else f"an image of {DEFAULT_SIDE} x {DEFAULT_SIDE}; --input pixel_values=1,3,H,W for others"
        return (Given("pixel_values", (1, getattr(config, "num_channels", 3), height, width)),), note
    return (), ""


LIBRARIES = {"timm": _of_timm, "torchvision": _of_torchvision, "hf": _of_transformers}


# The user's own code


def _own(place: str, attribute: str, on_meta: bool) -> Loaded:
    """Load ``attribute`` of a file or module: a model, or a function that returns a model, (model, args) or (model, args,
    kwargs). With its inputs it may be any callable: ``(model.generate, ids)``."""
    name = f"{place}:{attribute}"
    module = _imported(place, attribute)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InputError(f"{place} has no {attribute!r}{near_or_all(attribute, _makers(module))}")
        found = getattr(found, part)
    if not isinstance(found, nn.Module) and callable(found):
        with _user_errors(f"{name}()"), _own_arguments(place), _built(on_meta):
            found = found()
    parts = found if isinstance(found, tuple) else (found,)
    is_called = 1 < len(parts) <= 3 and callable(parts[0]) and not isinstance(parts[0], (nn.Module, type))
    if is_called:  # a method or a pipeline with its inputs: without them it would be taken for what makes a model
        parts = (as_model(parts[0], None, *parts[1:]), *parts[1:])
    if not parts or not isinstance(parts[0], nn.Module) or len(parts) > 3:
        kinds = ", ".join(type(part).__name__ for part in parts)
        kind = f"({kinds})" if isinstance(found, tuple) else kinds
        forms = "a torch.nn.Module, (model, args) or (model, args, kwargs), where model may be anything that is called"
        raise InputError(f"{name} gives {kind}, not {forms}")
    if len(parts) == 1:
        return Loaded(parts[0])
    return Loaded(parts[0], given=(parts[1], parts[2] if len(parts) == 3 else None))


def _imported(place: str, attribute: str = "name") -> ModuleType:
    """Import a file, which may import its neighbours; or a module by name, also from the current directory.

    ``attribute`` is the name that is wanted from it.
    """
    is_file = place.endswith(".py") or os.sep in place
    path = Path(place).expanduser().resolve()
    if is_file and not path.is_file():
        raise InputError(f"there is no file {place!r}")
    folder = str(path.parent if is_file else Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if not is_file:
        try:
            missing = importlib.util.find_spec(place) is None
        except (ImportError, ValueError):
            missing = True
        if missing:
            raise InputError(f"there is no module {place!r} to import. A model is one of\n{FORMS}")
        with _user_errors(f"import {place}"), _own_arguments(place):
            return importlib.import_module(place)
    if path.suffix != ".py":
        raise InputError(f"{place!r} is not a Python file")
    with _user_errors(place, _package_advice(path, attribute)), _own_arguments(str(path)):
        return _executed(path, path.stat().st_mtime_ns)


@cache
def _executed(path: Path, changed: int) -> ModuleType:
    """Run a file as a module, once unless its time of change differs: it may register things that cannot be registered
    twice."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickle look their module up there
    spec.loader.exec_module(module)
    return module


@contextmanager
def _own_arguments(program: str) -> Iterator[None]:
    """Let the user's code find a command line without arguments: ours are none of its own."""
    before, sys.argv = sys.argv, [program]
    try:
        yield
    finally:
        sys.argv = before


def _package_advice(path: Path, attribute: str) -> Callable[[BaseException], str]:
    """Return what to write for a file that imports as a part of its package, by the error that it raised."""

    def advice(error: BaseException) -> str:
        if isinstance(error, SystemExit):
            return "\n  it sees a command line without arguments: give those that it parses defaults"
        packages = [path.parent]
        while (packages[-1] / "__init__.py").is_file():
            packages.append(packages[-1].parent)
        inside = packages[:-1] or packages  # one without __init__.py may be a package, too
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        is_own = (missing or "").partition(".")[0] in {folder.name for folder in inside}
        if not (isinstance(error, ImportError) and ("relative import" in str(error) or is_own)):
            return ""
        module = ".".join([*(folder.name for folder in reversed(inside)), path.stem])
        return f"\n  it is a module of a package: give {module}:{attribute}, in the folder {inside[-1].parent}"

    return advice


@contextmanager
def _user_errors(what: str, advice: Callable[[BaseException], str] = lambda error: "") -> Iterator[None]:
    """Turn an error of the user's own code into an InputError with the last line of the traceback outside libraries."""
    try:
        yield
    except (Exception, SystemExit) as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_library(f.filename)]
        own = [f for f in frames if f"{os.sep}site-packages{os.sep}" not in f.filename] or frames
        at = f"\n  at {own[-1].filename}:{own[-1].lineno}: {own[-1].line}" if own else ""
        raise InputError(f"{what} raised {_message(error, at)}{advice(error)}") from error


def _makers(module: ModuleType) -> list[str]:
    """Return the names in a module that are models, or callables that might make one."""
    named = [(name, value) for name, value in vars(module).items() if not name.startswith("_")]
    made_here = {n for n, value in named if callable(value) and getattr(value, "__module__", "") == module.__name__}
    return [name for name, value in named if isinstance(value, nn.Module) or name in made_here]


# Packages, the network, and messages


def _package(name: str) -> Any:
    """Import a library; InputError with the line to install it if it is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise InputError(f"{name} cannot be imported: {error}") from error
        raise not_installed(name) from None


@contextmanager
def _offline() -> Iterator[None]:
    """Keep libraries from downloading: what they would download is an error."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


def _message(error: BaseException, at: str = "") -> str:
    full = "\n--counts-only makes no weights" if "allocate" in str(error) else ""
    return f"{type(error).__name__}: {error}{at}{full}"
