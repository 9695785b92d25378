"""Read a model's modules, parameters and buffers without calling a method that a user's class may override.

A model may have an attribute named ``modules``, a ``parameters`` method that returns a list, or a ``__len__`` that raises. The
functions here therefore read the dicts of ``torch.nn.Module`` itself (``_modules``, ``_parameters``, ``_buffers``). These functions compare
modules by identity, since ``__hash__`` and ``__eq__`` may depend on a module's state, as in a torchmetrics metric.

A function, a method or a callable object may also use modules. :class:`Called` wraps the callable and its modules in one module.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, MutableMapping
from functools import reduce
from itertools import chain
from operator import itemgetter
from typing import Any, TypeVar

import torch
from torch import nn

from ..torch_internals import class_of_script

V = TypeVar("V")


class ByIdentity(MutableMapping[Any, V]):
    """A mapping from modules, compared by identity. The mapping keeps its keys alive."""

    def __init__(self, items: Iterable[tuple[Any, V]] = ()) -> None:
        self._items: dict[int, tuple[Any, V]] = {id(key): (key, value) for key, value in items}

    def __getitem__(self, key: Any) -> V:
        return self._items[id(key)][1]

    def __setitem__(self, key: Any, value: V) -> None:
        self._items[id(key)] = key, value

    def __delitem__(self, key: Any) -> None:
        del self._items[id(key)]

    def __contains__(self, key: object) -> bool:
        return id(key) in self._items

    def __iter__(self) -> Iterator[Any]:
        return map(itemgetter(0), self._items.values())

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: Any, default: Any = None) -> Any:
        return self._items.get(id(key), (None, default))[1]

    def items(self) -> ItemsView[Any, V]:
        return self._items.values()  # type: ignore[return-value]  # fast, since the values are (key, value) pairs


def class_name(module: nn.Module) -> str:
    """Return the name of a module's class; for TorchScript, the name of the original class."""
    scripted = class_of_script(module).rpartition(".")[2] if isinstance(module, torch.jit.ScriptModule) else ""
    return scripted or type(module).__name__


def unique(objects: Iterable[Any]) -> list[Any]:
    """Return the objects in order, without duplicates."""
    return [*{id(each): each for each in objects}.values()]


class Called(nn.Module):
    """A module that wraps a function, a bound method or any other callable. The callable can then be counted like a model.

    ``roots`` are the modules that are reachable from the callable, by path. If the callable is a method of a module, this module has the
    path "", and the paths of all modules start at this module. The wrapper has no hooks and no calls, because :func:`modules_of` does not
    list it among the model's modules. Operations outside all modules have the path "".

    ``reachable`` are all other reachable objects whose state a run may change, such as the callable's closure or an
    optimizer. ``unnamed`` are modules that are reachable but are neither roots nor inside a root. Unnamed modules exist only if the user
    passed ``models``.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        roots: Mapping[str, nn.Module],
        reachable: Iterable[Any] = (),
        unnamed: Iterable[nn.Module] = (),
        classes: Mapping[str, str] | None = None,
    ) -> None:
        """``classes`` maps the path of an object that contains modules to the name of the object's class."""
        super().__init__()
        self.roots, self.reachable, self.unnamed = roots, [*reachable], [*unnamed]
        attributes = vars(self)  # assigning an attribute would register a module as a child
        attributes["forward"] = function
        if (root_module := roots.get("")) is not None:
            attributes.update(
                {kind: dict(getattr(root_module, kind).items()) for kind in ("_parameters", "_buffers", "_modules")}
            )
        for path, module in roots.items():
            if path:
                *groups, name = path.split(".")
                parent: nn.Module = self
                for i, group in enumerate(groups, 1):
                    if group not in parent._modules:
                        cls = (classes or {}).get(".".join(groups[:i]), Group.__name__)
                        parent._modules[group] = type(cls, (Group,), {})()
                    parent = parent._modules[group]  # type: ignore[assignment]
                parent._modules[name] = module
        attributes["training"] = any(bool(getattr(module, "training", False)) for module in roots.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return vars(self)["forward"](*args, **kwargs)  # skips the hooks registered for all modules


class Group(nn.Module):
    """A module that represents an object, a list or a mapping that contains modules. Groups are never called."""


def label_of(model: nn.Module) -> str:
    """Return the callable's name for an error message: ``Net.forward``, or the function's name."""
    return type(model).__name__ if isinstance(model, Called) else f"{class_name(model)}.forward"


def modules_of(model: nn.Module) -> tuple[ByIdentity[str], dict[str, str]]:
    """Return all modules with their first path, in the order of ``named_modules()``, and a dict from other paths to first paths."""
    paths, aliases = dict[int, tuple[nn.Module, str]](), dict[str, str]()
    if not isinstance(model, Called):
        _visit(model, "", paths, aliases)
        return ByIdentity(paths.values()), aliases
    if "" in model.roots:
        _visit(model.roots[""], "", paths, aliases)
    for name, module in _entries(model):
        if id(module) not in paths:
            _visit(module, name, paths, aliases)
        elif paths[id(module)][1] != name:
            aliases[name] = paths[id(module)][1]
    return ByIdentity(paths.values()), aliases


def _visit(module: nn.Module, path: str, paths: dict[int, tuple[nn.Module, str]], aliases: dict[str, str]) -> None:
    # Not nested in modules_of: a recursive closure is a reference cycle, which would keep the model alive.
    paths[id(module)] = module, path
    for name, child in module._modules.items():
        if child is None:
            continue
        name = f"{path}.{name}" if path else name
        if id(child) not in paths:
            _visit(child, name, paths, aliases)
        else:
            aliases[name] = paths[id(child)][1]


def all_modules(model: nn.Module) -> list[nn.Module]:
    """Return the model and all modules in it, without duplicates."""
    return [*modules_of(model)[0]]


def named_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the model and all modules in it with their first paths."""
    return [(path, module) for module, path in modules_of(model)[0].items()]


def named_children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield a module's direct children with their first names, without duplicates."""
    seen = set[int]()
    for name, child in _entries(module):
        if id(child) not in seen:
            seen.add(id(child))
            yield name, child


def _entries(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield a module's direct children with their names. A child with several names is repeated with every name."""
    return ((name, child) for name, child in module._modules.items() if child is not None)


def children_of(module: nn.Module) -> list[nn.Module]:
    """Return a module's direct children, without duplicates."""
    return [child for _, child in named_children(module)]


def submodule(model: nn.Module, path: str) -> nn.Module:
    """Return the module with this path. Raises KeyError if no module has this path."""
    return reduce(lambda module, name: module._modules[name], path.split(".") if path else [], model)  # type: ignore[return-value, arg-type]


def named_parameters(model: nn.Module, each_once: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of all modules with their names. ``each_once=False`` repeats shared parameters with every name."""
    return _named(model, "_parameters", each_once)


def named_buffers(model: nn.Module, each_once: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the buffers of all modules with their names. ``each_once=False`` repeats shared buffers with every name."""
    return _named(model, "_buffers", each_once)


def parameters_of(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of all modules, without duplicates."""
    return [parameter for _, parameter in named_parameters(model)]


def state_tensors(model: nn.Module) -> list[torch.Tensor]:
    """Return the parameters of all modules, then their buffers, without duplicates."""
    return [tensor for _, tensor in chain(named_parameters(model), named_buffers(model))]


def _named(model: nn.Module, kind: str, each_once: bool) -> Iterator[tuple[str, Any]]:
    paths, aliases = modules_of(model)
    places: list[tuple[str, nn.Module]] = [(path, module) for module, path in paths.items()]
    if not each_once and aliases:
        places = [*_every_place(model, "")]
    seen = set[int]()
    for path, module in places:
        tensors: Mapping[str, Any] = getattr(module, kind)
        for name, tensor in tensors.items():
            if tensor is not None and not (each_once and id(tensor) in seen):
                seen.add(id(tensor))
                yield f"{path}.{name}" if path else name, tensor


def _every_place(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield all paths of all modules, each with its module, in the order of ``named_modules(remove_duplicate=False)``."""
    yield path, module
    for name, child in _entries(module):
        yield from _every_place(child, f"{path}.{name}" if path else name)
