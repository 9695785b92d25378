"""Skip the repeated layers of a model. Only the first and the last layer run; the cost of the first layer is also used for the skipped layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from ..errors import FxflopsError
from ..model.modules import all_modules, modules_of, named_children
from ..records import Counted, per_operation, typed

FEWEST = 3
"""The smallest number of equal layers at which a layer can be skipped, because the first and the last always run."""
NUMBERS = frozenset({bool, int, float, str, type(None)})


class NoFirst(FxflopsError):
    """A skipped layer was called too early. A skipped layer returns the result of the first layer of its group, but this layer had not been
    called yet."""


class RepeatedLayers:
    """Groups of equal layers in a model's ModuleLists.

    Two layers of a list are equal if they have the same attributes, and if in each of ``counts`` they made the same calls with the same
    costs. An attribute with the layer's own index is not compared. ``times`` maps the path of the first layer of each group to the number
    of layers whose cost this layer represents.
    """

    def __init__(self, model: nn.Module, counts: Sequence[Sequence[Counted]]) -> None:
        self.times: dict[str, int] = {}
        self._groups: list[tuple[dict[str, Any], list[str]]] = []
        lists: list[str] = []
        for module, path in modules_of(model)[0].items():
            inside = any(path.startswith(f"{other}.") for other in lists)
            if type(module) is not nn.ModuleList or len(module._modules) <= FEWEST or inside:
                continue
            lists.append(path)
            made = [_calls_of_layers(each, path) for each in counts]
            groups: dict[Any, list[str]] = {}
            layers = dict(named_children(module))
            structures = _structures(layers)
            for name, layer in layers.items():
                if "forward" not in vars(layer):
                    key = (structures[name], *(tuple(each.get(name, ())) for each in made))
                    groups.setdefault(key, []).append(name)
            for names in groups.values():
                if len(names) >= FEWEST:
                    self.times[f"{path}.{names[0]}"] = len(names) - 1
                    self._groups.append((module._modules, names))

    def __bool__(self) -> bool:
        return bool(self._groups)

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """In this block, some layers of each group do not run. The layers between the first and the last are replaced by modules that
        return the first layer's result."""
        given = [(layers, name, layers[name]) for layers, names in self._groups for name in names[:-1]]
        try:
            for layers, names in self._groups:
                out: list[Any] = []
                first, *others, _ = names
                vars(layers[first])["forward"] = _keeping(layers[first], out)
                for name in others:
                    layers[name] = LeftOut(layers[name], out)
            yield
        finally:
            for layers, name, layer in given:
                layers[name] = layer
                vars(layer).pop("forward", None)

    def number(self, path: str) -> int:
        """Return how many layers a call in the module at this path represents."""
        for first, times in self.times.items():
            if path == first or path.startswith(f"{first}."):
                return times
        return 1


def _keeping(layer: Any, out: list[Any]) -> Callable[..., Any]:
    forward = layer.forward

    def keep(*args: Any, **kwargs: Any) -> Any:
        out[:] = [forward(*args, **kwargs)]
        return out[0]

    return keep


class LeftOut(nn.Module):
    """A module that replaces a layer and copies the layer's plain attributes. The forward of a LeftOut returns ``out[0]``, another layer's result."""

    def __init__(self, layer: nn.Module | None, out: list[Any]) -> None:
        super().__init__()
        own = vars(self)
        own |= {name: value for name, value in vars(layer).items() if type(value) in NUMBERS}
        own["out"] = out

    def forward(self, *_: Any, **__: Any) -> Any:
        out: Any = self.out
        if not out:
            raise NoFirst(
                "the run skips layers that are identical to another layer, but the model called a skipped layer before the other layer"
            )
        return out[0]


def _calls_of_layers(counted: Sequence[Counted], path: str) -> dict[str, list[Any]]:
    """Return the calls of each layer in the ModuleList at this path, with the cost of each call. The keys are the layers' names."""
    found: dict[str, list[Any]] = {}
    start = len(path) + 1
    result = per_operation(lambda each: (each.call.op, each.macs, each.flops, typed(each.call.out)))
    for each in counted:
        call = each.call
        if call.path.startswith(f"{path}."):
            name, _, inner = call.path[start:].partition(".")
            found.setdefault(name, []).append((inner, result(each)))
    return found


def _structures(layers: Mapping[str, nn.Module]) -> dict[str, Any]:
    """Return the classes, plain attributes and parameter shapes of each layer and its submodules. The keys are the layers' names.

    If an attribute of every layer is the layer's own index in the list, the attribute is left out.
    """
    found: dict[str, dict[Any, Any]] = {}
    for name, layer in layers.items():
        facts = found[name] = {}
        for i, module in enumerate(all_modules(layer)):
            facts[i, ""] = type(module)
            facts |= {(i, key): (type(v), v) for key, v in [*vars(module).items()] if type(v) in NUMBERS}
            facts |= {(i, key): p if p is None else (p.shape, p.dtype) for key, p in module._parameters.items()}
    first = next(iter(found.values()))
    numbers = {key for key in first if all(facts.get(key) == (int, int(name)) for name, facts in found.items())}
    return {
        name: tuple((key, value) for key, value in facts.items() if key not in numbers) for name, facts in found.items()
    }
