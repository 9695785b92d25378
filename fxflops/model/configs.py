"""Make models with random weights from a transformers or diffusers config, without downloads and without running custom code."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ..errors import InputError, did_you_mean, not_installed


class Configured(NamedTuple):
    """A model and its config. ``note`` describes differences from the saved model."""

    model: Any
    config: Any
    note: str = ""


def model_of_folder(path: Path) -> Configured:
    """Return the model described by a ``config.json``, on the default device. ``path`` is the file or its folder.

    Raises InputError if the config is not from transformers or diffusers. The function also raises InputError if the config's model is
    custom code. Raises the library's own error if the library cannot make the model.
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
        # Note this for the user: a model without a head computes no loss and no vocabulary logits.
        headless = f"the config's architectures name no transformers model, so this is {type(configured.model).__name__}, without a head"
        add = 'for a model with a head, add a line such as "architectures": ["LlamaForCausalLM"]'
        return configured._replace(note="; ".join(filter(None, (f"{headless}: {add}", note))))


def transformers_package() -> ModuleType:
    """Import transformers, and set its logging to errors only."""
    transformers: ModuleType = package("transformers")
    transformers.logging.set_verbosity_error()
    return transformers


def config_of(path: Path, values: dict[str, Any], transformers: ModuleType) -> tuple[Any, Any, str]:
    """Return the transformers config in a file, the model class named in the config's ``architectures``, and a note on the parts that are ignored.

    The class is None if ``architectures`` name no transformers model.
    """
    types = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    kind = values.get("model_type")
    if kind is None and "pretrained_cfg" in values and "architecture" in values:
        raise InputError(f"{path} is a timm config: use timm:{values['architecture']}")
    if kind is None:
        raise InputError(f'{path} is not a transformers config: it has no model_type, such as "llama"')
    name = next(iter(values.get("architectures") or ()), "")
    cls = architecture(transformers, name)
    is_custom = "auto_map" in values
    if kind not in types or (is_custom and name and cls is None):
        what = f"model_type {kind!r}" if kind not in types else f"class {name!r}"
        custom_code = " names custom code (auto_map)" if is_custom else ""
        close = "" if is_custom else did_you_mean(str(kind), types)
        instead = "; build the model in your own function, FILE.py:NAME" if is_custom else ""
        raise InputError(
            f"{path}{custom_code}: transformers has no {what}{close}; fxflops does not run custom code{instead}"
        )
    notes = []
    if is_custom:
        notes.append("built from transformers' own classes instead of the custom code in auto_map")
    if method := (values.get("quantization_config") or {}).get("quant_method"):
        notes.append(f"quantization ({method}) is ignored")
    return types[kind].from_dict(values), cls, "; ".join(notes)


def model_of_config(config: Any, cls: Any, note: str, transformers: ModuleType) -> Configured:
    """Return a model of this class with random weights in the config's dtype. If ``cls`` is None, AutoModel chooses the class."""
    import torch

    model = transformers.AutoModel.from_config(config) if cls is None else cls(config)
    return Configured(model.to(getattr(config, "dtype", None) or torch.float32), config, note)


def architecture(transformers: ModuleType, name: str) -> Any:
    """Return the transformers model class with this name; None if transformers has no such class."""
    from torch import nn

    cls = getattr(transformers, name, None)
    is_model = isinstance(cls, type) and issubclass(cls, nn.Module) and getattr(cls, "config_class", None)
    return cls if is_model else None


def causal_lm_class(config: Any) -> str:
    """Return the name of transformers' class of causal language models for a config; "" if there is no such class."""
    if "transformers" not in sys.modules:
        return ""
    names = importlib.import_module("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    name = names.get(getattr(config, "model_type", None))
    return name if isinstance(name, str) else ""


def _of_diffusers(path: Path, values: dict[str, Any]) -> Configured:
    name = values["_class_name"]
    cls = getattr(package("diffusers"), str(name), None)
    if cls is None or not hasattr(cls, "from_config"):
        raise InputError(f"{path}: diffusers has no model {name!r}")
    return Configured(cls.from_config(values), values)


def parts_of_pipeline(path: Path) -> str:
    """Describe the folder of a diffusers pipeline for an error message, and list the folders of the pipeline's models."""
    index = read_json(path / "model_index.json")
    models = [
        f"{path.name}/{name} ({part[1]})"
        for name, part in index.items()
        if isinstance(part, list) and len(part) == 2 and part[1] and _has_config(path / name)
    ]
    which = (
        f": count one of its models, {', '.join(models)}" if models else ", and the configs of its models are missing"
    )
    return f"a diffusers pipeline, {index.get('_class_name')}{which}"


def _has_config(path: Path) -> bool:
    return (path / "config.json").is_file()


def read_json(path: Path) -> dict[str, Any]:
    """Return the dict in a JSON file. Raises InputError if the file does not contain a dict."""
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
    """Make Hugging Face libraries raise an error instead of downloading."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before
