"""Load models by name: from timm, torchvision and transformers, with random weights and no download, or from the user's
own code."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from ..errors import FxflopsError, InputError
from ..model.callables import as_model
from ..model.configs import (
    architecture,
    model_of_config,
    model_of_folder,
    offline,
    package,
    transformers_package,
)
from ..model.files import CONFIG, checked_file, load_model
from ..model.inputs import inputs_of_program
from ..model.programs import ProgramInput, is_program, program_module
from ..trace.source import is_library
from .inputs import TOKENS, Given
from .libraries import FORMS, is_file, is_from_a_library, near_or_all, unknown, unknown_to_transformers
from .shown import note

OF_EACH_TOKEN = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")
OF_A_WHOLE = ("ForSequenceClassification", "ForImageClassification")
"""Name endings of transformers classes: the first take one label per token, the second one label per sequence or image."""
DEFAULT_TOKENS, DEFAULT_FRAMES, DEFAULT_SIDE = 128, 16, 224
"""Input sizes for models that do not state their own: number of tokens, frames of a video, pixels on each side of an image."""


class Loaded(NamedTuple):
    """A model and its inputs.

    ``given`` are args and kwargs from the user's own code. ``default`` are inputs that fit a library's model. ``note`` names the default
    sizes that fxflops chose. ``ask`` is the error message to show if the model has free input sizes and the user passes no inputs. If
    ``is_batch`` is True, only the first size of each input is free. ``to_train`` prepares a transformers model for training as
    transformers' Trainer does, and returns labels for the inputs.
    """

    model: nn.Module
    default: tuple[Given, ...] = ()
    note: str = ""
    given: tuple[Any, Any] | None = None
    ask: str = ""
    is_batch: bool = False
    to_train: Callable[[Sequence[Given]], tuple[Given, ...]] | None = None


def load(name: str, on_meta: bool = False, unsafe: bool = False) -> Loaded:
    """Load a model by name. ``on_meta`` allocates no weights; ``unsafe`` also loads pickled files.

    Raises InputError for an unknown name, with similar names in the message, and for a model that cannot be built.
    """
    if is_file(name):
        return _of_file(name, on_meta, unsafe)
    if not is_from_a_library(name):
        place, _, attribute = name.rpartition(":")
        if place and attribute:
            return _own(place, attribute, on_meta)
        if name.endswith(".py"):
            makers = ", ".join(f"{name}:{maker}" for maker in _makers(_imported(name)))
            raise InputError(
                f"{name} is not the name of a model: {f'give one of {makers}' if makers else 'the file defines no module and no function'}; "
                f"fxflops profile {name} profiles the script"
            )
        raise InputError(f"unknown model {name!r}. A model is one of\n{FORMS}")
    library, _, rest = name.partition(":")
    with offline(), _errors_of(name, on_meta), _built(on_meta):
        return LIBRARIES[library](rest)


@contextmanager
def _errors_of(name: str, on_meta: bool) -> Iterator[None]:
    """Turn an error that a library raises while it builds a model into an InputError."""
    try:
        yield
    except FxflopsError:
        raise
    except Exception as error:
        raise InputError(f"{name} cannot be built{' on the meta device' * on_meta}: {_message(error)}") from error


@contextmanager
def _built(on_meta: bool) -> Iterator[None]:
    """Let the block build a model with the same random weights each time; with ``on_meta``, without allocating weights."""
    torch.manual_seed(0)
    with torch.device("meta") if on_meta else nullcontext():
        yield


def _of_timm(name: str) -> Loaded:
    timm = package("timm")
    if not timm.is_model(name):
        raise unknown("timm", name, timm.list_models())
    model = timm.create_model(name, pretrained=False)
    size = (getattr(model, "pretrained_cfg", None) or {}).get("input_size", (3, DEFAULT_SIDE, DEFAULT_SIDE))
    return Loaded(model, (Given("", (1, *size)),))


def _of_torchvision(name: str) -> Loaded:
    models = package("torchvision").models
    if name not in models.list_models():
        raise unknown("torchvision", name, models.list_models())
    builder = models.get_model_builder(name)
    # Without this argument, detection and segmentation models download a pretrained backbone.
    backbone = {"weights_backbone": None} if "weights_backbone" in inspect.signature(builder).parameters else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = builder(weights=None, **backbone)
    kind = builder.__module__.removeprefix("torchvision.models.").partition(".")[0]
    return Loaded(model, *_inputs_of_torchvision(model, name, kind, models))


def _inputs_of_torchvision(model: nn.Module, name: str, kind: str, models: Any) -> tuple[tuple[Given, ...], str]:
    """Return inputs of the sizes used with the model's first published weights, and a note about sizes that fxflops chose."""
    if kind == "detection":
        resize: Any = model.transform
        height, width = resize.fixed_size[::-1] if resize.fixed_size else (resize.min_size[-1],) * 2
        return (Given("", (1, 3, height, width)),), ""
    transforms = next(iter(models.get_model_weights(name))).transforms()
    said = getattr(transforms, "crop_size", None) or getattr(transforms, "resize_size", None)
    height, width = (said[0], said[-1]) if said else (DEFAULT_SIDE, DEFAULT_SIDE)
    if kind == "video":
        note = f"using {DEFAULT_FRAMES} frames; --input 1,3,T,H,W sets other sizes"
        return (Given("", (1, 3, DEFAULT_FRAMES, height, width)),), note
    note = "" if said else f"using images of {DEFAULT_SIDE} x {DEFAULT_SIDE}; --input 1,3,H,W sets other sizes"
    return (Given("", (1, 3, height, width)),) * (2 if kind == "optical_flow" else 1), note


def _of_transformers(name: str) -> Loaded:
    transformers = transformers_package()
    auto = importlib.import_module("transformers.models.auto.configuration_auto")
    path = Path(name).expanduser()
    if path.exists():
        return _of_folder(path)
    if name in auto.CONFIG_MAPPING_NAMES:
        config, cls = auto.CONFIG_MAPPING[name](), None
    elif (found := architecture(transformers, name)) is not None:
        config, cls = found.config_class(), found
    else:
        words = (word for word in dir(transformers) if word[:1].isupper() and (word.endswith("Model") or "For" in word))
        raise unknown_to_transformers(name, auto.CONFIG_MAPPING_NAMES, words)
    model = model_of_config(config, cls, "", transformers).model
    return Loaded(model, *_inputs_of_transformers(model, config), to_train=partial(_labels, model, config))


def _of_folder(path: Path) -> Loaded:
    """Build the model that a config file, or the config in a folder, describes."""
    model, config, said = model_of_folder(path)
    if said:
        note(f"{path}: {said}")
    if not hasattr(model, "main_input_name"):  # a diffusers model
        return Loaded(model)
    return Loaded(model, *_inputs_of_transformers(model, config), to_train=partial(_labels, model, config))


def _inputs_of_transformers(model: Any, config: Any) -> tuple[tuple[Given, ...], str]:
    """Return inputs for a model whose main input is tokens or an image. Also return a note about the sizes that fxflops chose. Other models
    get no inputs."""
    if model.main_input_name == "input_ids" and hasattr(config, "vocab_size"):
        tokens = min(DEFAULT_TOKENS, getattr(config, "max_position_embeddings", None) or DEFAULT_TOKENS)
        wanted = ["decoder_input_ids"] if getattr(config, "is_encoder_decoder", False) else []
        names = ["input_ids", *(name for name in wanted if name in inspect.signature(model.forward).parameters)]
        note = f"using {' and '.join(names)} of {tokens} tokens, without a mask; --input-ids 1,512 sets another size"
        return tuple(Given(name, (1, tokens), TOKENS) for name in names), note
    if model.main_input_name == "pixel_values":
        said = getattr(config, "image_size", None)
        height, width = (said[0], said[-1]) if isinstance(said, (list, tuple)) else (said or DEFAULT_SIDE,) * 2
        note = (
            ""
            if said
            else f"using an image of {DEFAULT_SIDE} x {DEFAULT_SIDE}; --input pixel_values=1,3,H,W sets other sizes"
        )
        return (Given("pixel_values", (1, getattr(config, "num_channels", 3), height, width)),), note
    return (), ""


def _labels(model: Any, config: Any, inputs: Sequence[Given]) -> tuple[Given, ...]:
    """Return the labels for training a transformers model. There are no labels if the model takes none or their shape is unknown.

    Also switch the model's KV cache off, as transformers' Trainer does, because the cache would keep all keys and values until the step ends.
    """
    configs = [config, config.get_text_config()] if hasattr(config, "get_text_config") else [config]
    for each in configs:
        if getattr(each, "use_cache", False):
            each.use_cache = False
    given = {each.name: each for each in inputs}
    if "labels" in given or "labels" not in inspect.signature(model.forward).parameters:
        return ()
    name = type(model).__name__
    tokens = given.get("decoder_input_ids" if getattr(config, "is_encoder_decoder", False) else "input_ids")
    if name.endswith(OF_EACH_TOKEN) and tokens is not None:
        return (tokens._replace(name="labels"),)
    if name.endswith(OF_A_WHOLE) and inputs and getattr(config, "num_labels", 0) > 1:
        return (Given("labels", inputs[0].shape[:1], "int64"),)
    return ()


# Files


def _of_file(name: str, on_meta: bool, unsafe: bool) -> Loaded:
    """Load a model from a file, or build the model that a folder's config describes."""
    path = Path(name).expanduser()
    if checked_file(path).name == CONFIG:
        with _errors_of(name, on_meta), _built(on_meta):
            return _of_folder(path)
    model = load_model(path, unsafe=unsafe)
    if not is_program(model):
        return Loaded(model)
    program = program_module(model)
    varying = program.varying()
    tensors = [] if program.has_nested() else [each for each in program.inputs if each.sizes is not None]
    inputs = tuple(Given(each.name, each.example(program.ranges), _dtype(each)) for each in tensors)
    if varying:
        options = " ".join(f"--input {each.name}={','.join(map(str, each.shape))}" for each in inputs)
        advice = f"\n  give the inputs, e.g. fxflops run {name} {options}" if inputs else ""
        return Loaded(program, inputs, ask=f"{name}: {varying}{advice}", is_batch=program.is_batch_alone())
    return Loaded(program, inputs, given=inputs_of_program(program))


def _dtype(wanted: ProgramInput) -> str:
    return str(wanted.dtype).removeprefix("torch.")


LIBRARIES = {"timm": _of_timm, "torchvision": _of_torchvision, "hf": _of_transformers}


# The user's own code


def _own(place: str, attribute: str, on_meta: bool) -> Loaded:
    """Load ``attribute`` of a file or module: a model, or a function that returns a model, (model, args) or (model, args, kwargs).

    In such a tuple the model may be any callable, e.g. ``(model.generate, ids)``.
    """
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
    if is_called:  # a method or pipeline with its inputs; a callable without inputs was called above to build the model
        parts = (as_model(parts[0], None, *parts[1:]), *parts[1:])
    if not parts or not isinstance(parts[0], nn.Module) or len(parts) > 3:
        kinds = ", ".join(type(part).__name__ for part in parts)
        kind = f"({kinds})" if isinstance(found, tuple) else kinds
        forms = "a torch.nn.Module, (model, args) or (model, args, kwargs); in a tuple, model may be any callable"
        raise InputError(f"{name} is or returns {kind}; expected {forms}")
    if len(parts) == 1:
        return Loaded(parts[0])
    return Loaded(parts[0], given=(parts[1], parts[2] if len(parts) == 3 else None))


def _imported(place: str, attribute: str = "name") -> ModuleType:
    """Import a Python file or a module by name. A file can import the other files in its folder. A module may also be in the current directory.

    ``attribute`` is the name to look up in it, for error messages.
    """
    is_file = place.endswith(".py") or os.sep in place
    path = Path(place).expanduser().resolve()
    if is_file and not path.is_file():
        raise InputError(f"file not found: {place!r}")
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
    """Run a file as a module. The file runs again only if it has changed, since its code may register things that cannot be registered twice."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickle look up a class's module there
    spec.loader.exec_module(module)
    return module


@contextmanager
def _own_arguments(program: str) -> Iterator[None]:
    """Hide the arguments of fxflops from the user's code, which sees a command line without arguments."""
    before, sys.argv = sys.argv, [program]
    try:
        yield
    finally:
        sys.argv = before


def _package_advice(path: Path, attribute: str) -> Callable[[BaseException], str]:
    """Return a function that gives advice for an error raised while the file is imported. The advice is e.g. to name the file as part of
    its package."""

    def advice(error: BaseException) -> str:
        if isinstance(error, SystemExit):
            return "\n  the file runs without command-line arguments: give the arguments that it parses default values"
        packages = [path.parent]
        while (packages[-1] / "__init__.py").is_file():
            packages.append(packages[-1].parent)
        inside = packages[:-1] or packages  # a folder without __init__.py may also be a package
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        is_own = (missing or "").partition(".")[0] in {folder.name for folder in inside}
        if not (isinstance(error, ImportError) and ("relative import" in str(error) or is_own)):
            return ""
        module = ".".join([*(folder.name for folder in reversed(inside)), path.stem])
        return f"\n  the file is part of a package: give {module}:{attribute}, from the folder {inside[-1].parent}"

    return advice


@contextmanager
def _user_errors(what: str, advice: Callable[[BaseException], str] = lambda error: "") -> Iterator[None]:
    """Turn an error of the user's own code into an InputError that shows the last line of the traceback in the user's code."""
    try:
        yield
    except (Exception, SystemExit) as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_library(f.filename)]
        own = [f for f in frames if f"{os.sep}site-packages{os.sep}" not in f.filename] or frames
        at = f"\n  at {own[-1].filename}:{own[-1].lineno}: {own[-1].line}" if own else ""
        raise InputError(f"{what} raised {_message(error, at)}{advice(error)}") from error


def _makers(module: ModuleType) -> list[str]:
    """Return the names of a module's models, and of the callables defined in the module, which might return a model."""
    named = [(name, value) for name, value in vars(module).items() if not name.startswith("_")]
    made_here = {n for n, value in named if callable(value) and getattr(value, "__module__", "") == module.__name__}
    return [name for name, value in named if isinstance(value, nn.Module) or name in made_here]


# Messages


def _message(error: BaseException, at: str = "") -> str:
    full = "\n--counts-only allocates no weights" if "allocate" in str(error) else ""
    return f"{type(error).__name__}: {error}{at}{full}"
