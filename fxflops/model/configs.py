"""Make models from a transformers or diffusers config, with random weights: downloads nothing, runs no custom code."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ..errors import InputError, did_you_mean, not_installed


class Configured(NamedTuple):
    """A model with its config; ``note`` says how it may differ from the saved model."""

    model: Any
    config: Any
    note: str = ""


def model_of_folder(path: Path) -> Configured:
    """Return the model of a folder's ``config.json``, or of such a file, on the default device.

    Raises InputError if the config is not one of transformers or diffusers, or if its model is custom code; and the library's own
    error if it cannot be made.
    """
    file = path / "config.json" if path.is_dir() else path
    values = read_json(file)
    with offline():
        if "_class_name" in values:
            return _of_diffusers(file, values)
        transformers = transformers_package()
        config, cls, note = config_of(file, values, transformers)
        configured = model_of_config(config, cls, note, transformers)
        if cls is not None:
            return configured
        # Say so: a model without a head has no loss, and no product with the vocabulary.
        headless = f"its architectures name no model of transformers, so this is {type(configured.model).__name__}, without a head"
        add = 'add a line such as "architectures": ["LlamaForCausalLM"] for another'
        return configured._replace(note="; ".join(filter(None, (f"{headless}: {add}", note))))


def transformers_package() -> ModuleType:
    """Import transformers and silence everything but its errors."""
    transformers: ModuleType = package("transformers")
    transformers.logging.set_verbosity_error()
    return transformers


def config_of(path: Path, values: dict[str, Any], transformers: ModuleType) -> tuple[Any, Any, str]:
    """Return the transformers config in a file, the model class that its ``architectures`` name (None if they name none),
    and a note on the parts of the config that are ignored."""
    types = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    kind = values.get("model_type")
    if kind is None and "pretrained_cfg" in values and "architecture" in values:
        raise InputError(f"{path} is a config of timm: give timm:{values['architecture']}")
    if kind is None:
        raise InputError(f'{path} is not a transformers config: it has no model_type, such as "llama"')
    name = next(iter(values.get("architectures") or ()), "")
    cls = architecture(transformers, name)
    is_custom = "auto_map" in values
    if kind not in types or (is_custom and name and cls is None):
        what = f"model_type {kind!r}" if kind not in types else f"class {name!r}"
        custom_code = " names custom code (auto_map)" if is_custom else ""
        close = "" if is_custom else did_you_mean(str(kind), types)
        instead = "; build it in your own function, FILE.py:NAME" if is_custom else ""
        raise InputError(f"{path}{custom_code}: transformers has no {what}{close}; custom code is not run{instead}")
    notes = []
    if is_custom:
        notes.append("made of transformers' own classes, not of the custom code in auto_map")
    if method := (values.get("quantization_config") or {}).get("quant_method"):
        notes.append(f"without its quantization ({method})")
    return types[kind].from_dict(values), cls, "; ".join(notes)


def model_of_config(config: Any, cls: Any, note: str, transformers: ModuleType) -> Configured:
    """Return a model of this class, by default AutoModel's choice, with random weights in the config's dtype."""
    import torch

    model = transformers.AutoModel.from_config(config) if cls is None else cls(config)
    return Configured(model.to(getattr(config, "dtype", None) or torch.float32), config, note)


def architecture(transformers: ModuleType, name: str) -> Any:
    """Return the transformers model class with this name; None if there is none."""
    from torch import nn

    cls = getattr(transformers, name, None)
    is_model = isinstance(cls, type) and issubclass(cls, nn.Module) and getattr(cls, "config_class", None)
    return cls if is_model else None


def _of_diffusers(path: Path, values: dict[str, Any]) -> Configured:
    name = values["_class_name"]
    cls = getattr(package("diffusers"), str(name), None)
    if cls is None or not hasattr(cls, "from_config"):
        raise InputError(f"{path}: diffusers has no model {name!r}")
    return Configured(cls.from_config(values), values)


def parts_of_pipeline(path: Path) -> str:
    """Describe a diffusers pipeline's folder, with the folders of its models."""
    index = read_json(path / "model_index.json")
    models = [
        f"{path.name}/{name} ({part[1]})"
        for name, part in index.items()
        if isinstance(part, list) and len(part) == 2 and part[1] and _has_config(path / name)
    ]
    which = f": count one of its models, {', '.join(models)}" if models else ", without the configs of its models"
    return f"a pipeline of diffusers, {index.get('_class_name')}{which}"


def _has_config(path: Path) -> bool:
    return (path / "config.json").is_file()


def read_json(path: Path) -> dict[str, Any]:
    """Return the dict in a JSON file. Raises InputError if there is none."""
    try:
        values = json.loads(path.read_text(encoding="utf8"))
    except (ValueError, OSError) as error:
        raise InputError(f"{path} is not a transformers config: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f'{path} is not a transformers config: it has no model_type, such as "llama"')
    return values


def package(name: str) -> Any:
    """Import a library. Raises InputError with the install command if it is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise InputError(f"{name} cannot be imported: {error}") from error
        raise not_installed(name) from None


@contextmanager
def offline() -> Iterator[None]:
    """Make any download by the Hugging Face libraries an error."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before
