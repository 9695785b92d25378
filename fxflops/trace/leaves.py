"""Which modules are leaves: counted as a whole by a formula of their class."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.nn.modules import module as nn_module

from ..ops import Formula, Table
from ..records import Scope, spec_of
from .forwards import own_forward


class Hooks:
    """An observer's hooks: entries in modules' hook dicts under itself as key, where the user's have numbers."""

    def attach(self, modules: Iterable[nn.Module], enter: Callable[..., None], leave: Callable[..., None]) -> None:
        """Call ``enter(module, args, kwargs)`` before all other hooks, and ``leave(module, args, kwargs, out)`` after, also on
        errors."""
        for module in modules:
            module._forward_pre_hooks[self] = enter  # type: ignore[index]
            module._forward_pre_hooks.move_to_end(self, last=False)  # type: ignore[attr-defined]
            module._forward_pre_hooks_with_kwargs[self] = True  # type: ignore[index]
            module._forward_hooks[self] = leave  # type: ignore[index]
            module._forward_hooks_with_kwargs[self] = True  # type: ignore[index]
            module._forward_hooks_always_called[self] = True  # type: ignore[index]

    def detach(self, modules: Iterable[nn.Module]) -> None:
        """Take them out again."""
        for module in modules:
            for hooks in (
                module._forward_pre_hooks,
                module._forward_pre_hooks_with_kwargs,
                module._forward_hooks,
                module._forward_hooks_with_kwargs,
                module._forward_hooks_always_called,
            ):
                hooks.pop(self, None)  # type: ignore[call-overload]


class Leaves(dict[nn.Module, "Formula | None"]):
    """The formulas that count modules as a whole, each looked up when it is first asked for."""

    def __init__(self, table: Table) -> None:
        super().__init__()
        self._table = table

    def __missing__(self, module: nn.Module) -> Formula | None:
        self[module] = leaf_formula(module, self._table)
        return self[module]


def leaf_formula(module: nn.Module, table: Table) -> Formula | None:
    """The formula that counts a call of this module as a whole; None where the calls inside it are to be counted.

    There must be a formula for the class whose ``forward`` it runs; the forward must not be replaced on the instance,
    nor the weights computed (parametrizations, hooks), for then more happens than the formula knows.
    """
    entry = table.find_class(type(module))
    if entry is None or own_forward(module) is not None:
        return None
    if "parametrizations" in module._modules:
        return None
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        nn_module._global_forward_hooks,
        nn_module._global_forward_pre_hooks,
    )
    if any(hooks) and any(not isinstance(key, Hooks) for registered in hooks for key in registered):
        return None
    return entry


class Settings(dict[nn.Module, dict[str, Any]]):
    """The settings of modules, each read when it is first asked for."""

    def __missing__(self, module: nn.Module) -> dict[str, Any]:
        self[module] = settings_of(module)
        return self[module]


def scope_of(module: nn.Module, path: str, settings: dict[str, Any], args: Any, kwargs: Any, out: Any) -> Scope:
    """One call of a module, given specs."""
    own = {name: settings[name] for name, parameter in module._parameters.items() if parameter is not None}
    return Scope(path, type(module), own, args, kwargs, out, bool(module._modules), settings)


BASES = (bool, int, float, str, tuple, list, type(None))
PLAIN = frozenset(BASES)


def settings_of(module: nn.Module) -> dict[str, Any]:
    """A module's plain attributes, and specs of its own parameters and buffers (None where it has none)."""
    settings = {
        name: value
        for name, value in vars(module).items()
        if name[0] != "_" and (type(value) in PLAIN or isinstance(value, BASES))
    }
    for own in (module._parameters, module._buffers):
        for name, tensor in own.items():
            settings[name] = spec_of(tensor)
    return settings
