"""The result of torchinfo's summary: a row for each module call, the sums over the rows, and the printed table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum, unique
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..conventions.torchinfo import in_use, mult_adds, size_of
from ..model.modules import children_of, named_buffers, named_parameters
from ..records import Spec


@unique
class Mode(str, Enum):
    """The mode that the model runs in."""

    TRAIN = "train"
    EVAL = "eval"


@unique
class RowSettings(str, Enum):
    """The settings for rows: which parts the name of a row consists of, and which rows are hidden."""

    DEPTH = "depth"
    VAR_NAMES = "var_names"
    ASCII_ONLY = "ascii_only"
    HIDE_RECURSIVE_LAYERS = "hide_recursive_layers"


@unique
class ColumnSettings(str, Enum):
    """The columns of the table."""

    KERNEL_SIZE = "kernel_size"
    INPUT_SIZE = "input_size"
    OUTPUT_SIZE = "output_size"
    NUM_PARAMS = "num_params"
    PARAMS_PERCENT = "params_percent"
    MULT_ADDS = "mult_adds"
    TRAINABLE = "trainable"


@unique
class Units(str, Enum):
    """The units of counts."""

    AUTO = "auto"
    MEGABYTES = "M"
    GIGABYTES = "G"
    TERABYTES = "T"
    NONE = ""


@unique
class Verbosity(IntEnum):
    """How much is printed: nothing, the table, or the table with the parameters of each layer."""

    QUIET, DEFAULT, VERBOSE = 0, 1, 2


TITLES = {
    ColumnSettings.KERNEL_SIZE: "Kernel Shape",
    ColumnSettings.INPUT_SIZE: "Input Shape",
    ColumnSettings.OUTPUT_SIZE: "Output Shape",
    ColumnSettings.NUM_PARAMS: "Param #",
    ColumnSettings.PARAMS_PERCENT: "Param %",
    ColumnSettings.MULT_ADDS: "Mult-Adds",
    ColumnSettings.TRAINABLE: "Trainable",
}
SCALES = {Units.TERABYTES: 1e12, Units.GIGABYTES: 1e9, Units.MEGABYTES: 1e6, Units.NONE: 1}
RECURSIVE, NONE = "(recursive)", "--"
INDENT = 5


@dataclass(eq=False, repr=False)
class LayerInfo:
    """A row of the table. The row shows a module at its place in the model, or one call of the module.

    ``macs`` are the mult-adds of the parameters of the module and its children. ``children`` are the rows below this row.
    ``is_recursive`` is True if an earlier row has the same module.
    """

    var_name: str
    module: nn.Module
    depth: int
    parent_info: LayerInfo | None = None
    depth_index: int | None = None
    children: list[LayerInfo] = field(default_factory=list)
    executed: bool = False
    is_recursive: bool = False
    input_size: list[Any] = field(default_factory=list)
    output_size: list[Any] = field(default_factory=list)
    output_bytes: int = 0
    macs: int = 0

    def __post_init__(self) -> None:
        module = self.module
        self.layer_id = id(module)
        scripted = isinstance(module, torch.jit.ScriptModule)
        self.class_name = str(module.original_name) if scripted else type(module).__name__
        self.is_leaf_layer = not any(children_of(module))
        kernel = getattr(module, "kernel_size", None)
        self.kernel_size = list(kernel) if isinstance(kernel, Iterable) else kernel
        masks, counted = dict(named_buffers(module)), []
        for name, parameter in named_parameters(module):
            if not is_lazy(parameter):
                used = in_use(name, masks)
                left = parameter.numel() if used == name else int(masks[f"{used}_mask"].sum())
                counted.append((used, left, parameter))  # a pruned parameter counts its unmasked elements
        self._named = [(name, numel) for name, numel, _ in counted]
        self.num_params = sum(numel for _, numel, _ in counted)
        self.trainable_params = sum(numel for _, numel, parameter in counted if parameter.requires_grad)
        self.param_bytes = sum(parameter.element_size() * numel for _, numel, parameter in counted)
        self.inner_layers: dict[str, dict[ColumnSettings, str]] = {}
        for name, numel, parameter in counted:
            if self.parent_info is not None or "." not in name:
                size = list(parameter.shape)
                if name == "weight":
                    size[:2] = reversed(size[:2])
                row = {ColumnSettings.KERNEL_SIZE: str(size), ColumnSettings.NUM_PARAMS: f"├─{numel:,}"}
                self.inner_layers[name] = row
        if self.inner_layers:
            row[ColumnSettings.NUM_PARAMS] = row[ColumnSettings.NUM_PARAMS].replace("├─", "└─")

    def __repr__(self) -> str:
        return f"{self.class_name}: {self.depth}"

    def called(self, args: Any, out: Any, batch_dim: int | None) -> None:
        """Record that the module was called; ``args`` and ``out`` are the specs of the call's arguments and output."""
        self.executed = True
        self.input_size = _shown_size(args, batch_dim)
        self.output_size = _shown_size(out, batch_dim)
        spec = size_of(out)
        size = _with_one(out, list(spec), batch_dim)
        self.output_bytes = math.prod(size) * spec.dtype.itemsize if isinstance(spec, Spec) else 0
        self.macs = mult_adds(self.class_name, self._named, size)

    @property
    def trainable(self) -> str:
        """Whether the parameters are trainable, as text: "True", "False" or "Partial"; "--" if there are no parameters."""
        if self.num_params == 0:
            return NONE
        if self.trainable_params in (0, self.num_params):
            return str(self.trainable_params > 0)
        return "Partial"

    def leftover_params(self) -> int:
        """Return the number of parameters that belong to no row below this row."""
        return self.num_params - sum(child.leftover_params() for child in self._below())

    def leftover_trainable_params(self) -> int:
        """Return the number of trainable parameters that belong to no row below this row."""
        return self.trainable_params - sum(child.leftover_trainable_params() for child in self._below())

    def _below(self) -> Iterable[LayerInfo]:
        return (child for child in self.children if not child.is_recursive)

    def get_layer_name(self, show_var_name: bool, show_depth: bool) -> str:
        """Return ``Linear (fc): 2-1``: the class, the module's name in its parent, the depth, and the row's number at this depth."""
        name = self.class_name
        if show_var_name and self.var_name:
            name += f" ({self.var_name})"
        if show_depth and self.depth > 0:
            name += f": {self.depth}" + ("" if self.depth_index is None else f"-{self.depth_index}")
        return name

    def macs_to_str(self, reached_max_depth: bool) -> str:
        """Return the mult-adds of a leaf as text. For a row at the maximum depth, return the sum over the leaves below the row."""
        if self.macs <= 0 or not (self.is_leaf_layer or reached_max_depth):
            return NONE
        leaves = [self] if self.is_leaf_layer else [child for child in self.children if child.is_leaf_layer]
        return f"{sum(leaf.macs for leaf in leaves):,}"

    def num_params_to_str(self, reached_max_depth: bool) -> str:
        """Return the number of parameters as text. A row leaves out the parameters of its children, unless it is a leaf or at the maximum depth."""
        if self.num_params == 0:
            return NONE
        if self.is_recursive:
            return RECURSIVE
        if reached_max_depth or self.is_leaf_layer:
            return f"{self.num_params:,}" if self.trainable_params else f"({self.num_params:,})"
        leftover = self.leftover_params()
        return f"{leftover:,}" if leftover > 0 else NONE

    def params_percent(self, total_params: int, reached_max_depth: bool, precision: int = 2) -> str:
        """Return the number from :meth:`num_params_to_str` as a share of all parameters."""
        if total_params and self.is_recursive:
            return RECURSIVE
        params = self.num_params if reached_max_depth or self.is_leaf_layer else self.leftover_params()
        if not total_params or not params:
            return f"{'':{INDENT}}{NONE}"
        return f"{params / total_params:>{precision + INDENT}.{precision}%}"


def _shown_size(value: Any, batch_dim: int | None) -> list[Any]:
    size = _with_one(value, list(size_of(value)), batch_dim)
    return [size] if isinstance(value, Mapping) and batch_dim is not None else size


def _with_one(value: Any, size: list[int], batch_dim: int | None) -> list[int]:
    """Return the size with 1 in place of the batch size; if the value is a single tensor, return the size unchanged."""
    if batch_dim is None or batch_dim >= len(size) or isinstance(value, Spec):
        return size
    return [*size[:batch_dim], 1, *size[batch_dim + 1 :]]


@dataclass
class FormattingOptions:
    """The settings of the printed table."""

    max_depth: int
    verbose: int
    col_names: Sequence[ColumnSettings]
    col_width: int
    row_settings: set[RowSettings]
    params_units: Units = Units.NONE
    macs_units: Units = Units.AUTO
    layer_name_width: int = 40

    def set_layer_name_width(self, layers: Iterable[LayerInfo]) -> None:
        """Widen the first column to fit the longest name, in steps of :data:`INDENT`."""
        longest = max((len(self._name(layer)) + layer.depth * INDENT + 1 for layer in layers), default=0)
        if longest >= self.layer_name_width:
            self.layer_name_width = math.ceil(longest / INDENT) * INDENT

    def get_total_width(self) -> int:
        """Return the width of a line."""
        return len(self.col_names) * self.col_width + self.layer_name_width

    def format_row(self, name: str, values: Mapping[ColumnSettings, str]) -> str:
        """Return a line of the table."""
        cells = "".join(f"{values.get(column, ''):<{self.col_width}} " for column in self.col_names)
        return f"{name:<{self.layer_name_width}} {cells}".rstrip() + "\n"

    def header_row(self) -> str:
        """Return the line of titles."""
        titles = {RowSettings.VAR_NAMES: " (var_name)", RowSettings.DEPTH: ":depth-idx"}
        shown = "".join(title for setting, title in titles.items() if setting in self.row_settings)
        return self.format_row(f"Layer (type{shown})", TITLES)

    def layers_to_str(self, layers: Iterable[LayerInfo], total_params: int) -> str:
        """Return the rows down to the maximum depth."""
        hidden = RowSettings.HIDE_RECURSIVE_LAYERS in self.row_settings
        shown = (layer for layer in layers if layer.depth <= self.max_depth and not (hidden and layer.is_recursive))
        return "".join(self._row(layer, total_params) for layer in shown)

    def _row(self, layer: LayerInfo, total_params: int) -> str:
        deepest = layer.depth == self.max_depth
        values = {
            ColumnSettings.KERNEL_SIZE: str(layer.kernel_size or NONE),
            ColumnSettings.INPUT_SIZE: str(layer.input_size or NONE),
            ColumnSettings.OUTPUT_SIZE: str(layer.output_size or NONE),
            ColumnSettings.NUM_PARAMS: layer.num_params_to_str(deepest),
            ColumnSettings.PARAMS_PERCENT: layer.params_percent(total_params, deepest),
            ColumnSettings.MULT_ADDS: layer.macs_to_str(deepest),
            ColumnSettings.TRAINABLE: layer.trainable,
        }
        lines = self.format_row(self._branch(layer.depth) + self._name(layer), values)
        if self.verbose == Verbosity.VERBOSE:
            branch = self._branch(layer.depth + 1)
            lines += "".join(self.format_row(branch + name, row) for name, row in layer.inner_layers.items())
        return lines

    def _name(self, layer: LayerInfo) -> str:
        return layer.get_layer_name(RowSettings.VAR_NAMES in self.row_settings, RowSettings.DEPTH in self.row_settings)

    def _branch(self, depth: int) -> str:
        ascii_only = RowSettings.ASCII_ONLY in self.row_settings
        bar, corner, first = ("|    ", "+ ", "+ ") if ascii_only else ("│    ", "└─", "├─")
        return "" if depth == 0 else first if depth == 1 else bar * (depth - 1) + corner


class ModelStatistics:
    """The rows of a model and the sums over all rows, printed as a table. ``total_input`` is None if the model was not run."""

    def __init__(
        self,
        summary_list: list[LayerInfo],
        input_size: Any,
        total_input_size: int | None,
        formatting: FormattingOptions,
    ) -> None:
        self.summary_list = summary_list
        self.input_size = input_size
        self.total_input = total_input_size
        self.formatting = formatting
        leaves = [layer for layer in summary_list if layer.is_leaf_layer]
        first_met = [layer for layer in summary_list if not layer.is_recursive]
        self.total_mult_adds = sum(layer.macs for layer in leaves)
        # Add the bytes of each output twice: once for the output itself, and once for its gradient.
        self.total_output_bytes = 2 * sum(layer.output_bytes for layer in leaves if layer.num_params > 0)
        self.total_param_bytes = sum(layer.param_bytes for layer in first_met if layer.is_leaf_layer)
        # Leftover parameters of a row belong to no row below it. A leaf has no rows below it, so all its parameters are leftover.
        self.total_params = sum(max(layer.leftover_params(), 0) for layer in first_met)
        self.trainable_params = sum(max(layer.leftover_trainable_params(), 0) for layer in first_met)
        formatting.set_layer_name_width(summary_list)

    def __repr__(self) -> str:
        options, divider = self.formatting, "=" * self.formatting.get_total_width()
        counts = {
            "Total params": self.total_params,
            "Trainable params": self.trainable_params,
            "Non-trainable params": self.total_params - self.trainable_params,
        }
        rows = options.layers_to_str(self.summary_list, self.total_params)
        lines = [divider, options.header_row() + divider, rows + divider]
        lines += [name + self.format_output_num(count, options.params_units) for name, count in counts.items()]
        if self.input_size:
            sizes = self.total_input or 0, self.total_output_bytes, self.total_param_bytes
            names = "Input size", "Forward/backward pass size", "Params size", "Estimated Total Size"
            lines += [f"Total mult-adds{self.format_output_num(self.total_mult_adds, options.macs_units)}", divider]
            for name, size in zip(names, (*sizes, sum(sizes)), strict=True):
                lines.append(f"{name} (MB): {self.to_megabytes(size):0.2f}")
        return "\n".join([*lines, divider])

    @staticmethod
    def float_to_megabytes(num: float) -> float:
        """Return the size in megabytes of ``num`` floats with 4 bytes each."""
        return num * 4 / 1e6

    @staticmethod
    def to_megabytes(num: float) -> float:
        """Return a number of bytes in megabytes."""
        return num / 1e6

    @staticmethod
    def to_readable(num: float, units: Units = Units.AUTO) -> tuple[Units, float]:
        """Return a unit and the count in this unit. For AUTO, the unit is T, G or M, depending on the count."""
        if units == Units.AUTO:
            units = Units.TERABYTES if num >= 1e12 else Units.GIGABYTES if num >= 1e9 else Units.MEGABYTES
        return units, num / SCALES[units]

    @staticmethod
    def format_output_num(num: float, units: Units) -> str:
        """Return the text that follows the name of a count: ``" (M): 1.82"``, or ``": 1,820"`` without a unit."""
        units, scaled = ModelStatistics.to_readable(num, units)
        unit = "" if units == Units.NONE else f" ({units.value})"
        return f"{unit}: {int(scaled):,d}" if float(scaled).is_integer() else f"{unit}: {scaled:,.2f}"
