"""The model names of timm, torchvision and transformers, read from the sources of the installed libraries.

Importing one of these libraries also imports torch and takes seconds. Names are read from the library's source files. So a misspelt name is
reported without importing the library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from ..errors import InputError, did_you_mean, not_installed
from ..model.files import checked_file

PACKAGES = {"timm": "timm", "torchvision": "torchvision", "hf": "transformers"}
"""The package to install for each prefix of a model's name."""
REGISTERED = {
    "timm": re.compile(r"^@register_model\n(?:@.*\n)*def (\w+)", re.M),
    "torchvision": re.compile(r'^@register_model\((?:name="(\w+)")?\)\n(?:[^d].*\n)*?def (\w+)', re.M),
}
"""For each library, a pattern that finds the names of models where the library's sources register them."""
TYPE, CLASS = re.compile(r'"([\w.-]+)"[:,] "\w+Config"'), re.compile(r'"([A-Z]\w*(?:Model|For\w+))"')
"""Patterns that find model types and model classes in the sources of transformers' auto classes."""
FORMS = """\
  timm:resnet50                    a timm model
  torchvision:swin_t               a torchvision model
  hf:bert  hf:LlamaForCausalLM     a transformers model type or class, with its config's defaults
  hf:path/to/config.json           a transformers model with your own config
  file.py:make_model               a model, or a function that returns model, (model, args) or (model, args, kwargs)
  package.module:make_model        a model or such a function in a module that Python can import
  model.pt2  model.pt              a torch.export program or a model saved by torch.jit.save
  path/to/folder                   a folder with a transformers or diffusers config.json, with or without weights"""


SAVED = (".json", ".json.gz")
UNIT = re.compile("[KMGTP]?i?(FLOPs?|MACs?|B)|[KMGTP]", re.IGNORECASE)
"""A unit that was written apart from its number, as in ``--max-flops 4 GFLOPs``."""
"""The file suffixes of saved reports and of torch.profiler traces."""
SUFFIXES = (".pt2", ".pt", ".pth", ".bin", ".ckpt", ".onnx", ".safetensors", ".gguf")


def is_from_a_library(name: str) -> bool:
    return name.partition(":")[0] in PACKAGES and ":" in name


def is_file(name: str) -> bool:
    """Return whether a name is an existing model file or folder. Python files and .json files are not model files."""
    return not (is_from_a_library(name) or name.endswith((".py", *SAVED))) and Path(name).expanduser().exists()


def model_named(word: str) -> str | None:
    """Return the name of a model as commands expect it, e.g. "timm:resnet50" for "resnet50"; None if the word is not a model's name."""
    if is_from_a_library(word) or ".py:" in word or is_file(word) or word.endswith(".json"):
        return word
    return next((f"{library}:{word}" for library in REGISTERED if word in registered(library)), None)


def check_model(name: str) -> str:
    """Return a model's name, with "hf:" put before a config.json.

    Raises InputError if the model's library or file does not exist, or if the library's sources do not contain the model. If the name
    cannot be checked this way, it is returned unchecked. If the unchecked name is wrong, the library reports the error when the model is loaded.
    """
    if Path(name).name == "config.json" and Path(name).is_file():
        name = f"hf:{name}"
    place, colon, rest = name.rpartition(":")
    if is_file(name):
        checked_file(name)
        return name
    if is_from_a_library(name):
        library, _, rest = name.partition(":")
        if not rest:
            raise InputError(f"expected the name of a model after {name!r}. A model is one of\n{FORMS}")
        if find_spec(PACKAGES[library]) is None:
            raise not_installed(PACKAGES[library])
        if library == "hf":
            _check_transformers(rest)
        elif not _is_written(rest, library):
            raise unknown(library, rest, registered(library))
    elif place.endswith(".py") and not Path(place).expanduser().is_file():
        raise InputError(f"file not found: {place!r}")
    elif not (colon and place and rest) and not name.endswith((".py", *SAVED)):
        if UNIT.fullmatch(name):
            raise InputError(f"unknown model {name!r}: write a number and its unit as one word, e.g. 4{name}")
        known = f" (did you mean timm:{name}?)" if name in registered("timm") else ""
        if "/" in name or name.endswith(SUFFIXES):
            known = ": file not found"
        raise InputError(f"unknown model {name!r}{known}. A model is one of\n{FORMS}")
    return name


def registered(library: str) -> list[str]:
    """Return the names of all models of timm or torchvision. The list is empty if the library's sources are not in the usual folders."""
    found = REGISTERED[library].findall(_sources(library, "models/**/*.py"))
    return [name if isinstance(name, str) else name[0] or name[1] for name in found]


def unknown(library: str, name: str, known: Iterable[str]) -> InputError:
    """Return the error for a model that timm or torchvision does not have."""
    return InputError(f"{library} has no model {name!r}{near_or_all(name.partition('.')[0], known)}")


def near_or_all(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean a or b?)`` with similar known names. If no name is similar, list all known names if there are at most 8."""
    names = list(known)
    return did_you_mean(name, names) or (f"; it has {', '.join(names)}" if 0 < len(names) <= 8 else "")


def unknown_to_transformers(name: str, types: Iterable[str], classes: Iterable[str]) -> InputError:
    """Return the error for a name that is not the path of a config, a model type or a model class of transformers."""
    if name.endswith(".json") or "/" in name:
        path = str(Path(name).expanduser())
        return InputError(
            f"hf:{name}: file not found: {path!r}; fxflops downloads nothing, so give the path of a config.json on this machine"
        )
    known = [*types, *classes]
    kind = max((each for each in known if name.startswith(each)), key=len, default="")
    of_hub = (
        f"; fxflops downloads nothing: hf:{kind} uses the default config, hf:path/to/config.json uses your own config"
    )
    close = "" if kind and not name[len(kind) :][:1].isalnum() else near_or_all(name, known)
    return InputError(f"transformers has no model type or model class {name!r}{close or of_hub if kind else close}")


def _check_transformers(name: str) -> None:
    auto = _sources("transformers", "models/auto/*.py")
    if not auto or f'"{name}"' in auto or Path(name).expanduser().exists():
        return
    if name[:1].isupper() and f"\nclass {name}(" in _sources("transformers", "models/**/modeling_*.py"):
        return
    raise unknown_to_transformers(name, dict.fromkeys(TYPE.findall(auto)), dict.fromkeys(CLASS.findall(auto)))


def _is_written(name: str, library: str) -> bool:
    """Return whether a library's sources contain this model's name. True if the sources are not in the usual folders."""
    sources, bare = _sources(library, "models/**/*.py"), name.partition(".")[0]
    was_renamed = re.compile(
        rf"""["']{re.escape(bare)}["']\s*:"""
    )  # a former name, as a key in a table of renamed models
    return not sources or bare in registered(library) or was_renamed.search(sources) is not None


def _sources(package: str, pattern: str) -> str:
    """Return the text of all files in a package whose paths match the pattern, as one string. Return "" if the package is not installed in
    a folder."""
    spec = find_spec(package)
    return _read(tuple((spec and spec.submodule_search_locations) or ()), pattern)


@cache
def _read(folders: tuple[str, ...], pattern: str) -> str:
    files = chain.from_iterable(sorted(Path(folder).glob(pattern)) for folder in folders)
    return b"\n".join(file.read_bytes() for file in files).decode("utf8", errors="replace")
