"""torchinfo's API based on fxflops: ``summary``, the statistics that it returns, and the enums of its settings.

The mult-adds follow ``convention="torchinfo"``. As in the original, only the unmasked elements of a pruned weight
count. Unlike the original, ``summary`` counts on the meta device and leaves the model unchanged: the model is not moved
to ``device``, the training flags stay, and lazy parameters have shapes only during the run. Nothing is cached. An
output without tensors is shown as "--"; the original raises an error.
"""

from __future__ import annotations

import copy
import inspect
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

import torch
from torch import nn

from ..api import count
from ..errors import InputError, did_you_mean, errors_of_kind, of_kind, worded
from ..model.inputs import batch_dim_note, checked_model, random_inputs, shapes_in, signature_of, summary_words
from ..model.modules import ByIdentity, parameters_of
from ..model.pytree import replaced
from ..records.tensors import spec_of
from ..torch_internals import DisableTorchFunction
from ..trace.hooks import Hooks
from ._arguments import one_of, refuse_scripts, warn_of_uncounted
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
    """Return a table of the model's module calls, with sizes, parameters and mult-adds. Print the table unless ``verbose`` is 0.

    Args:
        input_size: the shape of the input, or a list of shapes, including the batch dimension unless ``batch_dim`` is given.
        input_data: instead of ``input_size``, a tensor or numpy array, a sequence of positional inputs or a mapping of named
            inputs. If neither ``input_data`` nor ``input_size`` is given, the model does not run, and only its modules and
            parameters are listed.
        batch_dim: the position of the batch dimension, if ``input_size`` does not include it. The batch size is shown as 1.
        cache_forward_pass, device: ignored; they exist for compatibility. A run is cheap, and uses the model's own device.
        col_names: values of :class:`ColumnSettings`; default ("output_size", "num_params").
        col_width: the width of the columns after the first.
        depth: the number of levels of modules to show.
        dtypes: the dtype of each input in ``input_size``: ``torch.long``, or the older ``torch.LongTensor``; default float.
        mode: "eval" (the default) or "train".
        row_settings: values of :class:`RowSettings`; default ("depth",).
        verbose: 0 prints nothing, 1 prints the table, 2 prints the table with the parameters of each layer. The default is 1; in an
            interactive session, 0.
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
        torch.device(device)  # raises an error for an unknown device
    here = next((parameter.device for parameter in parameters_of(model)), torch.device("cpu"))
    if input_size is not None:
        shapes = shapes_in(input_size)
        chosen = [torch.empty(0).type(dtype).dtype for dtype in dtypes or [torch.float] * len(shapes)]
        given: Any = random_inputs(shapes, chosen, batch_dim, here)
        sizes: Any = _as_spelled(input_size)
    else:
        sizes = replaced(input_data, _is_data, lambda data: torch.as_tensor(data).size()) if has_input else []
        given = input_data if device is None else replaced(input_data, torch.is_tensor, lambda tensor: tensor.to(here))
    if has_input:
        if not hasattr(model, "training"):  # torch.jit.freeze has removed the attribute
            refuse_scripts("torchinfo", [model], AttributeError)
        several = given if isinstance(given, (list, tuple)) else [given]
        args, named = ((), {**given, **kwargs}) if isinstance(given, Mapping) else (tuple(several), kwargs)
        chosen_mode = _chosen(Mode, mode or Mode.EVAL).value
        ours, theirs = inspect.signature(summary).parameters, signature_of(model).parameters
        meant = {name: did_you_mean(name, ours, most=1) for name in kwargs if name not in theirs}
        note = "".join(
            f"\n  {name}= was passed to the model's forward{close}" for name, close in meant.items() if close
        )
        with errors_of_kind(RuntimeError), worded(summary_words(model), batch_dim_note(input_size, batch_dim) + note):
            layers = _with_containers(_called(model, args, named, chosen_mode, batch_dim))
    else:
        layers = _with_containers(list(_places(LayerInfo(type(model).__name__, model, 0))))
    _nest(layers)
    formatting = FormattingOptions(depth, verbose, columns, col_width, rows)
    statistics = ModelStatistics(layers, sizes, _bytes(given) if has_input else None, formatting)
    if verbose > Verbosity.QUIET:
        print(statistics)
    return statistics


# The arguments


def _as_spelled(sizes: Sequence[Any]) -> list[Any]:
    """Return the shapes as the statistics show them: a list with the user's shapes. If a single shape is a list, convert it to a tuple."""
    if isinstance(sizes[0], (tuple, list)):
        return [*sizes]
    return [tuple(sizes) if isinstance(sizes, list) else sizes]


def _chosen(settings: type[E], name: str) -> E:
    return settings(one_of(settings.__name__, name, [setting.value for setting in settings]))


def _check(input_size: Any, input_data: Any, columns: Iterable[ColumnSettings], col_width: int, verbose: int) -> None:
    with errors_of_kind(ValueError):
        if col_width <= 0:
            raise InputError(f"col_width must be greater than 0; got {col_width}")
        if verbose not in (0, 1, 2):
            raise InputError(
                f"verbose must be 0 (nothing), 1 (the table) or 2 (the table with parameters); got {verbose!r}"
            )
        if input_data is None and input_size is None and NEEDS_INPUT.intersection(columns):
            needing = ", ".join(column.value for column in columns if column in NEEDS_INPUT)
            raise InputError(f"the columns {needing} need a run of the model: give input_data or input_size")
    if input_data is not None and input_size is not None:
        raise of_kind(InputError("give input_data or input_size, not both"), RuntimeError)


def _bytes(data: Any) -> int:
    """Return the number of bytes of all tensors in the data, as sys.getsizeof returns for their storages."""
    if _is_data(data):
        return sys.getsizeof(torch.as_tensor(data).untyped_storage())
    parts = data.values() if isinstance(data, Mapping) else data if isinstance(data, (list, tuple)) else ()
    return sum(map(_bytes, parts))


def _is_data(value: Any) -> bool:
    """Return True for a tensor or a numpy array."""
    return isinstance(value, torch.Tensor) or hasattr(value, "__array_interface__")


# The rows


def _places(place: LayerInfo) -> Iterator[LayerInfo]:
    """Yield a row for this module and for each module inside it, in the order in which the modules are defined. A shared module has several rows."""
    yield place
    for name, child in place.module._modules.items():
        if child is not None:
            yield from _places(LayerInfo(name, child, place.depth + 1, place))


def _called(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], mode: str, batch_dim: int | None
) -> list[LayerInfo]:
    """Return a row for each module call in a run, in the order in which the calls start.

    A shared module is shown at the last of its places in the model. Scripted modules come first, because their calls cannot be
    hooked.
    """
    place_of = ByIdentity[LayerInfo]()
    rows, running, thread = list[LayerInfo](), list[LayerInfo](), threading.get_ident()

    def start() -> None:
        places = list(_places(LayerInfo(type(model).__name__, model, 0)))
        place_of.update((place.module, place) for place in places)
        rows[:] = [place for place in places if isinstance(place.module, torch.jit.ScriptModule)]
        running.clear()

    def enter(module: nn.Module, *_: Any) -> None:
        if threading.get_ident() != thread:
            return
        if module is model:  # the model runs again if a run on meta fails, or once lazy parameters have shapes
            start()
        rows.append(copy.copy(place_of[module]))
        running.append(rows[-1])

    def leave(module: nn.Module, args: Any, kwargs: Any, out: Any = None) -> None:
        if threading.get_ident() != thread:
            return
        with DisableTorchFunction():
            running.pop().called(_specs(args), _specs(out), batch_dim)

    start()
    hooks = Hooks()
    hooks.attach([module for module in place_of if not isinstance(module, torch.jit.ScriptModule)], enter, leave)
    try:
        warn_of_uncounted(count(model, args, kwargs, mode=mode, convention="torchinfo"))
    finally:
        hooks.detach()
    return rows


def _specs(value: Any) -> Any:
    """Replace the tensors in a value by specs. If an object has an attribute ``tensors`` (as torchvision's ImageList has), the specs of
    these tensors replace the object."""
    if hasattr(value, "tensors"):
        return _specs(value.tensors)
    if isinstance(value, (tuple, list)):
        return tuple(map(_specs, value))
    if isinstance(value, Mapping):
        return {key: _specs(part) for key, part in value.items()}
    return spec_of(torch.as_tensor(value) if _is_data(value) else value)


def _with_containers(rows: Sequence[LayerInfo]) -> list[LayerInfo]:
    """Insert a row for each container that is never called (e.g. a ModuleList), before the rows of the modules inside it.

    All rows of a module except its first are marked as recursive.
    """
    met: set[int] = set()
    for row in rows:
        row.is_recursive = row.layer_id in met
        met.add(row.layer_id)
    shown: list[LayerInfo] = []
    open_at: dict[int, LayerInfo] = {}  # by depth, the last row and the rows of the modules around it
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
    """Return the rows of the modules that contain a row's module, outermost first, but not the model's row."""
    parent = row.parent_info
    return [] if parent is None or parent.depth == 0 else [*_above(parent), parent]


def _nest(rows: Sequence[LayerInfo]) -> None:
    """Give each row its number among the rows of the same depth, and set each row's ``children`` to the rows one level below it."""
    numbers: dict[int, int] = {}
    for i, row in enumerate(rows):
        numbers[row.depth] = row.depth_index = numbers.get(row.depth, 0) + 1
        end = next((j for j in range(i + 1, len(rows)) if rows[j].depth <= row.depth), len(rows))
        row.children = list(rows[i + 1 : end])
