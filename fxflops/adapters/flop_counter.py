"""The API of torch.utils.flop_counter based on fxflops: FlopCounterMode, and everything else in that module.

The counts follow ``convention="torch"``. The formulas are the formulas in torch's own registry when the mode is
created. In torch, some kernels of an operator have no formula, although other kernels of the same operator have one: attention on a CPU,
oneDNN's RNNs, fused encoder layers. Unlike the original, this mode counts such kernels too. Backward work is counted in the module whose
gradient is computed, and modules under no_grad raise no error. As in the original, ``cond`` counts the branch with more FLOPs.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import flop_counter
from torch.utils.flop_counter import flop_registry, register_flop_formula

from ..conventions import find_convention
from ..conventions.torch import COUNTED
from ..counting.counts import count_calls
from ..errors import warn
from ..model.pytree import tensors_in
from ..ops import BASE, QUERY
from ..records import Call, Operation
from ..records.tensors import has_own_dispatch, spec_of
from ..torch_internals import (
    HigherOrderOperator,
    TorchDispatchMode,
    current_autograd_node,
    current_graph_task_id,
    triton_kernel_of,
)
from ..trace.autograd_owners import grad_node_of
from ._arguments import lower_bound

__all__ = ["FlopCounterMode", "flop_registry", "register_flop_formula"]

GLOBAL = "Global"
SUFFIXES = ("", "K", "M", "B", "T")
HEADER = ("Module", "FLOP", "% Total")

Counts = dict[str, Counter[Any]]


def __getattr__(name: str) -> Any:
    return getattr(flop_counter, name)


class FlopCounterMode:
    """Count the operators that run in a ``with`` block, forward and backward, by module and by operator.

    >>> with FlopCounterMode(display=False) as counter:  # doctest: +SKIP
    ...     model(x).sum().backward()                    # doctest: +SKIP
    >>> counter.get_total_flops()                        # doctest: +SKIP

    Args:
        mods: not needed; as in the original, passing it causes a warning.
        depth: the number of levels of modules in the table, or None for all levels.
        display: print the table at the end of the block.
        custom_mapping: a dict from operators (``torch.ops.aten.add``) to formulas. A formula is called with the shapes of the
            arguments and with ``out_shape``. A formula with the attribute ``_get_raw`` is called with the tensors themselves
            and with ``out_val``.
        skip_unsupported: if True, higher-order operators and Triton kernels without a formula run, but are not counted and
            cause a warning; Triton kernels with a formula run and are counted. If False, torch applies its own rules to
            higher-order operators, and Triton kernels do not run.
    """

    def __init__(
        self,
        mods: nn.Module | list[nn.Module] | None = None,
        depth: int = 2,
        display: bool = True,
        custom_mapping: dict[Any, Any] | None = None,
        skip_unsupported: bool = False,
    ) -> None:
        if mods is not None:
            warnings.warn("mods argument is not needed anymore, you can stop passing it", stacklevel=2)
        self.flop_counts: Counts = defaultdict(Counter)
        self.depth = depth
        self.display = display
        self.skip_unsupported = skip_unsupported
        self._unsupported: Counter[str] = Counter()
        self._unknown: set[str] = set()
        wrapped: Callable[[Any], Any] = flop_counter.shape_wrapper
        custom = {op: f if getattr(f, "_get_raw", False) else wrapped(f) for op, f in (custom_mapping or {}).items()}
        self.flop_registry = {**flop_registry, **custom}
        self._open = ExitStack()

    def __enter__(self) -> FlopCounterMode:
        self.flop_counts.clear()
        self._unsupported.clear()
        self._unknown.clear()
        self._modules = _Modules()
        self._open.enter_context(register_module_forward_pre_hook(self._modules.enter))
        self._open.enter_context(register_module_forward_hook(self._modules.leave, always_call=True))
        self.mode = self._open.enter_context(_FlopCounterMode(self))
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)
        if self._unknown:
            warn(lower_bound(self._unknown))
        if self.display:
            print(self.get_table(self.depth))

    def get_total_flops(self) -> int:
        """Return the sum of all FLOPs."""
        return sum(self.flop_counts[GLOBAL].values())

    def get_flop_counts(self) -> dict[str, dict[Any, int]]:
        """Return the FLOPs by module and operator: ``{"Global": {aten.addmm: 80}, "Linear": {aten.addmm: 80}}``."""
        return {name: dict(counts) for name, counts in self.flop_counts.items()}

    def get_unsupported_ops(self) -> Counter[str]:
        """Return how often each operator without a formula ran, if ``skip_unsupported`` let it run."""
        return self._unsupported.copy()

    def get_table(self, depth: int | None = None) -> str:
        """Return a table of FLOPs with ``depth`` levels of modules, by default the ``depth`` of the mode."""
        from tabulate import tabulate

        depth = depth or self.depth or 999999
        total = self.get_total_flops()
        names = [name for name in sorted(self.flop_counts) if name != GLOBAL and name.count(".") < depth]
        if all(sum(self.flop_counts[name].values()) < total for name in names) and GLOBAL in self.flop_counts:
            rows = [*self._rows(GLOBAL, 0, total), *(r for name in names for r in self._rows(name, 1, total))]
        else:
            rows = [row for name in names for row in self._rows(name, 0, total)]
        return tabulate(rows or [(GLOBAL, "0", "0%")], HEADER, colalign=("left", "right", "right"))

    def _rows(self, name: str, indent: int, total: int) -> Iterator[tuple[str, str, str]]:
        """Yield the lines of a module: a line with the module's total, then one line for each operator."""
        unit = max(0, min(len(SUFFIXES) - 1, (len(str(total)) - 2) // 3))
        pad, counts = " " * (indent + name.count(".")), self.flop_counts[name]
        for label, flops in ((name, sum(counts.values())), *((f" - {op}", flops) for op, flops in counts.items())):
            share = f"{flops / total:.2%}" if total else "0%"
            yield pad + label, f"{flops / 1000**unit:.3f}{SUFFIXES[unit]}", share

    def _add(self, op: Any, flops: int) -> None:
        for name in self._modules.names():
            self.flop_counts[name][op] += flops


class _FlopCounterMode(TorchDispatchMode):
    """The dispatch mode of a counter. The dispatch mode is a separate class because torch.library registers rules for the class of a mode."""

    supports_higher_order_operators = True

    def __init__(self, counter: FlopCounterMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counter = counter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return self._higher_order(func, args, kwargs)
        formula = BASE.find(func)
        if formula is not None and formula.reason == QUERY:
            return NotImplemented if any(map(has_own_dispatch, types)) else func(*args, **kwargs)
        if func._can_decompose():
            with self:
                return func.decompose(*args, **kwargs)
        out, packet = func(*args, **kwargs), func.overloadpacket
        tool_formula = self.counter.flop_registry.get(packet)
        if tool_formula is not None:
            self.counter._add(packet, tool_formula(*args, **kwargs, out_val=out))
        elif formula is not None and formula.op in COUNTED:
            ran = Call(Operation(formula.op, func, *map(spec_of, (args, kwargs, out))))
            (counted,) = count_calls([ran], find_convention("torch"), BASE, lambda path: nn.Module())
            if counted.flops:
                self.counter._add(packet, counted.flops)
        elif formula is None:
            self.counter._unknown.add(str(packet))
        return out

    def _higher_order(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        counter, is_triton = self.counter, func.name().startswith("triton_kernel_wrapper")
        op = triton_kernel_of(kwargs) if is_triton else func
        formula = counter.flop_registry.get(op)
        if formula is not None:
            out = func(*args, **kwargs) if counter.skip_unsupported or not is_triton else None
            counter._add(op, formula(*args, **kwargs, out_val=out))
            return out
        if func is torch.ops.higher_order.cond:
            return self._larger_branch(*args)
        if not counter.skip_unsupported:
            return None if is_triton else NotImplemented
        name = str(getattr(op, "__name__", op))
        counter._unsupported[name] += 1
        warnings.warn(
            f"no FLOP formula is registered for {name}: {name} and the operators inside it run, but are not counted",
            stacklevel=3,
        )
        return func(*args, **kwargs)

    def _larger_branch(self, _: Any, true: Callable[..., Any], false: Callable[..., Any], operands: Any) -> Any:
        """Run both branches of ``cond`` and count the branch with more FLOPs, like the original, because the condition may be unknown."""
        (out, counts), (_, others) = (self._apart(branch, operands) for branch in (true, false))
        for name in {*counts, *others}:
            for op in {*counts[name], *others[name]}:
                self.counter.flop_counts[name][op] += max(counts[name][op], others[name][op])
        return out

    def _apart(self, branch: Callable[..., Any], operands: Any) -> tuple[Any, Counts]:
        """Run a branch of ``cond``; return the result and the counts of this branch alone."""
        counter, before = self.counter, self.counter.flop_counts
        found: Counts = defaultdict(Counter)
        counter.flop_counts = found
        try:
            with self:
                return branch(*operands), found
        finally:
            counter.flop_counts = before


class _Modules:
    """The running modules. As in the original, a name is the class of the outermost module, followed by attribute names.

    The metadata of each autograd node stores the names of the modules that were running when the node was created. The stored names keep no
    tensor and no node alive.
    """

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._running: list[tuple[nn.Module, str]] = []
        self._thread = threading.get_ident()

    def names(self) -> set[str]:
        """Return the names of the modules that are running, or whose gradients are being computed."""
        node = current_autograd_node() if current_graph_task_id() != -1 else None
        made_in: set[str] = set() if node is None else node.metadata.get(self, set())
        return {GLOBAL, *made_in, *(name for _, name in self._running)}

    def _is_other_thread(self) -> bool:
        return threading.get_ident() != self._thread and current_graph_task_id() == -1

    def enter(self, module: nn.Module, args: Any) -> None:
        if not self._is_other_thread():
            self._mark(args)
            self._running.append((module, self._name(module)))

    def leave(self, module: nn.Module, args: Any, out: Any) -> None:
        if self._is_other_thread() or module not in [each for each, _ in self._running]:
            return
        self._mark(out)
        while self._running.pop()[0] is not module:  # modules above it on the stack raised before their hooks ran
            pass

    def _mark(self, value: Any) -> None:
        """Store the names of the running modules in the autograd nodes of these tensors, and in all earlier nodes in which no names are
        stored yet."""
        names = self.names()
        found: list[Any] = [grad_node_of(tensor) for tensor in tensors_in(value) if tensor.requires_grad]
        while found:
            node = found.pop()
            if node is not None and self not in node.metadata:
                node.metadata[self] = names
                found.extend(earlier for earlier, _ in node.next_functions)

    def _name(self, module: nn.Module) -> str:
        """Return the module's name. Give names to the module and to the modules inside it, except to modules that already have a name."""
        name = self._known.setdefault(module, type(module).__name__)
        for path, part in module.named_modules(prefix=name):
            self._known.setdefault(part, path)
        return name
