"""Calls that involve other processes: calls on sharded tensors, and collectives, with their process group and module."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import nn

from ..model.pytree import tensors_given
from ..ops import BASE
from ..ops.aten import BETWEEN_PROCESSES
from ..records import COMMUNICATION
from ..records.tensors import ORDINARY
from ..torch_internals import FSDP_GROUP_FILE, SHARDING, OpOverload, OpOverloadPacket, process_group_of
from .functions import qualified_name
from .modes import answers_operators
from .source import frame_in

MESH = "mesh_"
"""The prefix of the description that a DeviceMesh gives to the process group of a mesh dimension."""
NOT_DESCRIBED = ("undefined", "default_pg", "mesh_default", "")
GROUP_ARGUMENTS = ("process_group", "group_name")


def processes() -> int:
    """Return the number of processes that ``torch.distributed`` connects; 1 if it is not initialized."""
    is_on = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if is_on else 1


def is_sharded(value: Any) -> bool:
    """Return whether any tensor in nested tuples, lists and dicts is a DTensor, of which this process has only a shard."""
    return any(map(_is_dtensor, {*map(type, tensors_given(value))} - ORDINARY))


def runs_in_parts(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether to record a call with these arguments operator by operator.

    That is so if the call runs on this process's shard of a DTensor, or if selective checkpointing returns saved results for some
    operators.
    """
    if answers_operators():
        return True
    is_usual = not kwargs and ORDINARY.issuperset(map(type, args))  # saves the search of the arguments, for most calls
    return not is_usual and is_sharded((args, kwargs))


def has_shards(module: nn.Module) -> bool:
    """Return whether any of the module's own parameters or buffers is a DTensor."""
    types = {*map(type, module._parameters.values()), *map(type, module._buffers.values())}
    return any(map(_is_dtensor, types - ORDINARY))


@lru_cache(maxsize=256)
def _is_dtensor(cls: type) -> bool:
    return any(base.__name__ == "DTensor" and base.__module__.startswith(SHARDING) for base in cls.__mro__)


@lru_cache(maxsize=4096)
def communicates(func: Any) -> bool:
    """Return whether an operator sends data to other processes or receives data from them."""
    formula = BASE.find(func) if isinstance(func, OpOverload) else None
    return formula is not None and formula.reason == COMMUNICATION


def is_between_processes(func: Any) -> bool:
    """Return whether a function or operator belongs to torch.distributed."""
    if isinstance(func, OpOverload | OpOverloadPacket):
        return _is_operator_between_processes(func)
    # Not cached: func may be a leaf module, and a cache would keep the module and its weights alive.
    return str(getattr(func, "__module__", "")).startswith("torch.distributed.")


@lru_cache(maxsize=4096)
def _is_operator_between_processes(operator: OpOverload | OpOverloadPacket) -> bool:
    return qualified_name(operator).partition("::")[0] in (*BETWEEN_PROCESSES, "fsdp")


def is_gathering() -> bool:
    """Return whether FSDP is now gathering, freeing or reducing a module's parameters or gradients."""
    return frame_in(FSDP_GROUP_FILE) is not None


class Collectives:
    """The process groups of a run's collectives, and the modules that cause them; ``paths`` maps modules to their paths."""

    def __init__(self, paths: Mapping[nn.Module, str]) -> None:
        self._paths = paths

    def group_of(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return a description of the process group of a collective call; {} if the group is not found.

        "group" is the name of the group's mesh dimension, or else the group's own description. If a group has neither, "group" is
        "world" for a group of all processes, otherwise "". "ranks" is the number of processes in the group, and "rank" is this
        process's number in the group.
        """
        names = [argument.name for argument in func._schema.arguments]
        arguments = dict(zip(names, args, strict=False)) | kwargs
        group_argument = next((arguments[name] for name in GROUP_ARGUMENTS if name in arguments), None)
        group, is_world = process_group_of(group_argument)
        if group is None:
            return {}
        description = "" if group.group_desc in NOT_DESCRIBED else group.group_desc.removeprefix(MESH)
        name = self._dimensions.get(group.group_name) or description
        if not name and group.group_desc.startswith(MESH):  # from an equal mesh, for which torch made a separate group
            name = self._dimensions_of_ranks.get(tuple(torch.distributed.get_process_group_ranks(group)), "")
        name = name or ("world" if is_world else "")
        return {"group": name, "ranks": group.size(), "rank": group.rank()}

    @cached_property
    def _dimensions(self) -> dict[str, str]:
        """The names of the mesh dimensions of the model's parameters, by the names of the dimensions' groups."""
        return {group.group_name: name for group, name in self._groups}

    @cached_property
    def _dimensions_of_ranks(self) -> dict[tuple[int, ...], str]:
        """The names of the mesh dimensions of the model's parameters, by the processes in the dimensions' groups."""
        return {tuple(torch.distributed.get_process_group_ranks(group)): name for group, name in self._groups}

    @cached_property
    def _groups(self) -> list[tuple[Any, str]]:
        """The groups and names of the mesh dimensions of the model's parameters."""
        own = [parameter for module in self._paths for parameter in module._parameters.values()]
        meshes = {tensor.device_mesh for tensor in own if tensor is not None and is_sharded(tensor)}  # type: ignore[attr-defined]
        named = [(mesh, name) for mesh in meshes for name in mesh.mesh_dim_names or ()]
        return [(mesh.get_group(name), name) for mesh, name in named]

    def cause(self) -> str | None:
        """Return the path of the module whose parameters FSDP is gathering, or whose gradients FSDP is reducing; None if there is none.

        FSDP may gather parameters ahead of time, in another module's call.
        """
        frame = frame_in(FSDP_GROUP_FILE)
        group = None if frame is None else frame.f_locals.get("self")
        return next((self._paths[module] for module in getattr(group, "modules", ()) if module in self._paths), None)
