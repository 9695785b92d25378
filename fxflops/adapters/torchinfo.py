"""torchinfo's names over fxflops: ``summary``, the statistics it returns and the enums of its settings.

The mult-adds are of ``convention="torchinfo"``; of a pruned weight, here too, what its mask leaves. Unlike the original
the model runs on meta, where it is and as it was: it is neither moved to ``device`` nor trained, and parameters without a
shape get theirs in a copy; nothing is cached; an output that is no tensor and has none is shown as "--", where it raises.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..api import count
from ..errors import InputError, errors_of_kind, of_kind
from ..model.inputs import checked_model
from ..model.pytree import replaced
from ..records import spec_of
from ..torch_internals import DisableTorchFunction
from ..trace.leaves import Hooks
from .torchinfo_statistics import (
    ColumnSettings,
    FormattingOptions,
    LayerInfo,
    Mode,
    ModelStatistics,
    RowSettings,
    Units,
    Verbosity,
)

__all__ = ["ColumnSettings", "Mode", "ModelStatistics", "RowSettings", "Units", "Verbosity", "summary"]

E = TypeVar("E", bound=Enum)
NEEDS_INPUT = {ColumnSettings.INPUT_SIZE, ColumnSettings.OUTPUT_SIZE, ColumnSettings.MULT_ADDS}


def summary(
    model: nn.Module,
    input_size: Sequence[Any] | None = None,
    input_data: Any = None,
    batch_dim: int | None = None,
    cache_forward_pass: bool | None = None,
    col_names: Iterable[str] | None = None,
    col_width: int = 25,
    depth: int = 3,
    device: torch.device | str | None = None,
    dtypes: Sequence[Any] | None = None,
    mode: str | None = None,
    row_settings: Iterable[str] | None = None,
    verbose: int | None = None,
    **kwargs: Any,
) -> ModelStatistics:
    """The model's calls of modules, with sizes, parameters and mult-adds: returned, and printed unless ``verbose`` is 0.

    Args:
        input_size: the shape of the input, or several, batches included unless there is a ``batch_dim``.
        input_data: instead of it, a tensor or numpy array, a sequence of positional inputs or a mapping of named ones.
            Without either the model does not run: there are its modules and parameters alone.
        batch_dim: the dimension of the batch, which the sizes then do not have; shown as 1.
        cache_forward_pass, device: taken for the original's sake; a run costs little, and it is made where the model is.
        col_names: of :class:`ColumnSettings`; default ("output_size", "num_params").
        col_width, depth: of the columns after the first; how many levels of modules to show.
        dtypes: of the inputs of ``input_size``: ``torch.long`` or, as they were once called, ``torch.LongTensor``; default float.
        mode: "eval" (the default) or "train".
        row_settings: of :class:`RowSettings`; default ("depth",).
        verbose: 0 prints nothing, 1 the table, 2 with each layer's parameters; default 1, at a prompt of Python 0.
        kwargs: inputs by name.
    """
    model = checked_model(model, AttributeError, TypeError)
    has_input = input_data is not None or input_size is not None
    shown = ("output_size", "num_params") if has_input else ("num_params",)
    columns = tuple(_chosen(ColumnSettings, name) for name in (shown if col_names is None else col_names))
    rows = {_chosen(RowSettings, name) for name in (("depth",) if row_settings is None else row_settings)}
    if verbose is None:
        verbose = 0 if getattr(sys, "ps1", None) else 1
    _check(input_size, input_data, columns, col_width, verbose)
    if device is not None:
        torch.device(device)  # which refuses what is none
    here = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if input_size is not None:
        sizes: Any = _sizes(input_size)
        given: Any = _made(sizes, dtypes or [torch.float] * len(sizes), batch_dim, here)
    else:
        sizes = replaced(input_data, _is_data, lambda data: torch.as_tensor(data).size()) if has_input else []
        given = input_data if device is None else replaced(input_data, _is_tensor, lambda tensor: tensor.to(here))
    if has_input:
        several = given if isinstance(given, (list, tuple)) else [given]
        args, named = ((), {**given, **kwargs}) if isinstance(given, Mapping) else (tuple(several), kwargs)
        chosen_mode = _chosen(Mode, mode or Mode.EVAL).value
        with errors_of_kind(RuntimeError):
            layers = _with_containers(_called(_with_shapes(model, args, named), args, named, chosen_mode, batch_dim))
    else:
        layers = list(_places(LayerInfo(type(model).__name__, model, 0)))
        _mark_recursive(layers)
    _nest(layers)
    formatting = FormattingOptions(depth, verbose, columns, col_width, rows)
    statistics = ModelStatistics(layers, sizes, _bytes(given) if has_input else None, formatting)
    if verbose > Verbosity.QUIET:
        print(statistics)
    return statistics


# The arguments


def _chosen(settings: type[E], name: str) -> E:
    try:
        return settings(name)
    except ValueError:
        known = ", ".join(repr(setting.value) for setting in settings)
        raise of_kind(InputError(f"unknown {settings.__name__} {name!r}: one of {known}"), ValueError) from None


def _check(input_size: Any, input_data: Any, columns: Iterable[ColumnSettings], col_width: int, verbose: int) -> None:
    with errors_of_kind(ValueError):
        if col_width <= 0:
            raise InputError(f"col_width must be greater than 0, not {col_width}")
        if verbose not in (0, 1, 2):
            raise InputError(f"verbose must be 0 (nothing), 1 (the table) or 2 (with parameters), not {verbose!r}")
        if input_data is None and input_size is None and NEEDS_INPUT.intersection(columns):
            needing = ", ".join(column.value for column in columns if column in NEEDS_INPUT)
            raise InputError(f"the columns {needing} need a run: give input_data or input_size")
    if input_data is not None and input_size is not None:
        raise of_kind(InputError("give input_data or input_size, not both"), RuntimeError)


def _sizes(given: Sequence[Any]) -> list[Sequence[int]]:
    """The shapes of several inputs, of whichever spelling: ``(1, 3)``, ``[1, 3]``, ``[(1, 3), (2,)]`` or with tuples."""
    if not isinstance(given, (list, tuple)):
        wrong = f"input_size must be a shape or several, such as (1, 3, 224, 224), not {given!r}"
        raise of_kind(InputError(wrong), TypeError)
    flat = list(_flat(given))
    if not flat or any(not isinstance(size, int) or size <= 0 for size in flat):
        raise of_kind(InputError(f"input_size must have whole numbers above 0, not {given!r}"), ValueError, TypeError)
    return [tuple(given)] if isinstance(given[0], int) else list(given)


def _flat(sizes: Any) -> Iterator[Any]:
    for size in sizes:
        yield from _flat(size) if isinstance(size, (list, tuple)) else (size,)


def _made(
    sizes: Sequence[Any], dtypes: Sequence[Any], batch_dim: int | None, device: torch.device
) -> list[torch.Tensor]:
    """Inputs of these shapes: numbers from 0 to 1, cut to the dtype."""
    generator = torch.Generator().manual_seed(0)
    made = [torch.rand(*size, generator=generator) for size in sizes]
    if batch_dim is not None:
        made = [tensor.unsqueeze(batch_dim) for tensor in made]
    return [tensor.to(device).type(dtype).to(device) for tensor, dtype in zip(made, dtypes, strict=False)]


def _bytes(data: Any) -> int:
    """Of the storages of all tensors in it, as Python objects."""
    if _is_data(data):
        return sys.getsizeof(torch.as_tensor(data).untyped_storage())
    parts = data.values() if isinstance(data, Mapping) else data if isinstance(data, (list, tuple)) else ()
    return sum(map(_bytes, parts))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_data(value: Any) -> bool:
    """A tensor, or an array of numpy."""
    return _is_tensor(value) or hasattr(value, "__array_interface__")


def _with_shapes(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    """The model; where parameters have no shape before the first run, a copy that has run."""
    lazy = [tensor for tensor in (*model.parameters(), *model.buffers()) if is_lazy(tensor)]
    if not lazy:
        return model
    again = {id(each): type(each)(device=each.device, dtype=each.dtype) for each in lazy}  # type: ignore[call-arg]
    model = copy.deepcopy(model, again)
    with torch.no_grad():
        model(*args, **kwargs)
    return model


# The rows


def _places(place: LayerInfo) -> Iterator[LayerInfo]:
    """A row for this place and each in it where a module stands, in the order of the model."""
    yield place
    for name, child in place.module._modules.items():
        if child is not None:
            yield from _places(LayerInfo(name, child, place.depth + 1, place))


def _called(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    mode: str,
    batch_dim: int | None,
) -> list[LayerInfo]:
    """A row for each call of a module in a run, in the order in which they begin, at the last place where it stands.

    Those of scripted modules, which tell no calls, come first.
    """
    places = list(_places(LayerInfo(type(model).__name__, model, 0)))
    place_of = {place.module: place for place in places if not isinstance(place.module, torch.jit.ScriptModule)}
    scripted = [place for place in places if isinstance(place.module, torch.jit.ScriptModule)]
    rows, running = list(scripted), list[LayerInfo]()

    thread = threading.get_ident()

    def enter(module: nn.Module, *_: Any) -> None:
        if threading.get_ident() != thread:
            return
        if module is model:  # it may run again, where meta will not do
            rows[:], running[:] = scripted, []
        rows.append(copy.copy(place_of[module]))
        running.append(rows[-1])

    def leave(module: nn.Module, args: Any, kwargs: Any, out: Any = None) -> None:
        if threading.get_ident() != thread:
            return
        with DisableTorchFunction():
            running.pop().called(_specs(args), _specs(out), batch_dim)

    hooks = Hooks()
    hooks.attach(place_of, enter, leave)
    try:
        count(model, args, kwargs, mode=mode, convention="torchinfo")
    finally:
        hooks.detach()
    _mark_recursive(rows)
    return rows


def _specs(value: Any) -> Any:
    """The value as specs; in place of an object that bundles tensors (torchvision's ImageList) the ``tensors`` of it."""
    if hasattr(value, "tensors"):
        return _specs(value.tensors)
    if isinstance(value, (tuple, list)):
        return tuple(map(_specs, value))
    if isinstance(value, Mapping):
        return {key: _specs(part) for key, part in value.items()}
    return spec_of(torch.as_tensor(value) if _is_data(value) else value)


def _mark_recursive(rows: Iterable[LayerInfo]) -> None:
    """Of several rows of one module, all but the first."""
    met: set[int] = set()
    for row in rows:
        row.is_recursive = row.layer_id in met
        met.add(row.layer_id)


def _with_containers(rows: Sequence[LayerInfo]) -> list[LayerInfo]:
    """The rows, with those of containers that are not called themselves (ModuleList ...) before what is called in them."""
    met = {row.layer_id for row in rows}
    shown: list[LayerInfo] = []
    open_at: dict[int, LayerInfo] = {}
    for row in rows:
        for container in _above(row):
            if container.depth not in open_at or open_at[container.depth].module is not container.module:
                container.is_recursive = container.layer_id in met
                met.add(container.layer_id)
                shown.append(container)
                open_at[container.depth] = container
        open_at = {depth: each for depth, each in open_at.items() if depth < row.depth} | {row.depth: row}
        shown.append(row)
    return shown


def _above(row: LayerInfo) -> list[LayerInfo]:
    """The places that a row stands in, from the outermost, without the model itself."""
    parent = row.parent_info
    return [] if parent is None or parent.depth == 0 else [*_above(parent), parent]


def _nest(rows: Sequence[LayerInfo]) -> None:
    """Number the rows of each depth, and give each those below it."""
    numbers: dict[int, int] = {}
    for i, row in enumerate(rows):
        numbers[row.depth] = row.depth_index = numbers.get(row.depth, 0) + 1
        end = next((j for j in range(i + 1, len(rows)) if rows[j].depth <= row.depth), len(rows))
        row.children = list(rows[i + 1 : end])
