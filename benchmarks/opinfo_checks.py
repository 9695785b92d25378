"""The checks of one case: its count agrees with other ways to count it, with torch's counter, and with the allocator."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._ops import HigherOrderOperator
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import FlopCounterMode

import fxflops
from fxflops import Report

from .allocator import Allocated, allocated
from .opinfo_cases import Case, Made

OFF, SCALARS = 0.05, 64
"""The tolerance of a memory check: a share of the allocator's peak, or if more, some bytes for the scalar tensors that torch makes
inside its operators."""
COPIES = 2
"""The size of the dimension that vmap maps over."""


ELEMENTWISE = frozenset(
    """
    add sub mul div pow exp log sqrt rsqrt reciprocal sin cos tanh sigmoid erf abs neg maximum minimum clamp eq ne lt le gt ge
    mm addmm bmm baddbmm mv dot convolution _softmax _log_softmax native_layer_norm native_batch_norm native_group_norm gelu
    silu mse_loss bitwise_and bitwise_or logical_not remainder floor_divide mean var
    """.split()
)
"""Operators that compute each element of their result."""
PRODUCTS = frozenset("mm bmm mv dot".split())
"""Operators of ELEMENTWISE that sum products. If the input has no elements, they compute nothing and return zeros."""
REDUCTIONS = frozenset("sum prod amax amin argmax argmin any all logsumexp".split())
"""Operators that compute only if several elements are combined into one."""
QUERIES = {"aten::_local_scalar_dense", "aten::is_same_size", "aten::equal"}
VERSION = "['version']"


class NoChange(TorchDispatchMode):
    """A dispatch mode that does nothing itself. Under any mode, autograd adds gradients into new tensors."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    """Records the operators that run, and those among them that compute.

    Views are left out: an attribute such as ``x.mT`` runs one, but nobody would call it an operation.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.computing: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = "" if isinstance(func, HigherOrderOperator) else func._schema.name.partition("::")[2]
        elements = out.numel() if isinstance(out, torch.Tensor) else 0
        if name in PRODUCTS and not args[0].numel():
            elements = 0
        if not getattr(func, "is_view", False):
            self.names.append(func.name())
        if elements and (name in ELEMENTWISE or (name in REDUCTIONS and args[0].numel() > elements)):
            self.computing.append(name)
        return out


class Checked:
    """The results of checking one case: ``made`` counts the checks by kind, ``found`` has the disagreements, ``listed`` the operators
    that a report lists as missing."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.made: Counter[str] = Counter()
        self.found: list[tuple[str, str]] = []
        self.listed: set[str] = set()
        if self._runs(case.make) is None:
            self.made["does not run"] += 1
            return
        if case.optimizer is not None:
            self._steps(case.optimizer)
            return
        report = self._count("count", case.make)
        if report is None:
            return
        self._nothing_silent(report)
        self._same_by_analyze(report, backward=False)
        self._spellings(report)
        self._products(report, backward=False)
        self._memory(report, backward=False)
        if case.learns:
            self._backward()
        if case.maps:
            self._mapped(report)
        self._autocast(report)

    def _check(self, kind: str, holds: bool, *what: Any) -> None:
        self.made[kind] += 1
        if not holds:
            self.found.append((kind, " ".join(map(str, what))[:400]))

    def _count(self, kind: str, make: Callable[[], Made], way: Any = fxflops.count, **options: Any) -> Report | None:
        """Return a report, and check that the call changed nothing. If it raises, record that and return None."""
        model, args, kwargs = make()
        if options.get("backward"):
            _learn((model, args, kwargs))
        torch.default_generator.manual_seed(0)
        before = state(model, args, kwargs)
        try:
            report: Report = way(model, args, kwargs, mode="as_is", **options)
        except Exception as error:
            self._check(f"{kind} raises", False, type(error).__name__, " ".join(str(error).split()))
            return None
        self._unchanged(kind, before, model, args, kwargs)
        self.listed |= {missing.op for missing in report.missing}
        return report

    def _unchanged(self, kind: str, before: dict[str, Any], *given: Any) -> None:
        parts = difference(before, *given)
        versions = [part for part in parts if part.endswith(VERSION)]
        self._check(f"nothing changed by {kind}", len(versions) == len(parts), parts)
        self._check(f"versions as before {kind}", not versions, versions)

    def _runs(self, make: Callable[[], Made], backward: bool = False) -> Operators | None:
        """Run the case without fxflops and return its operators; None if it raises, or if a backward pass has nothing to do."""
        try:
            model, args, kwargs = make()
            if backward:
                _learn((model, args, kwargs))
            with Operators() as operators, torch.set_grad_enabled(backward):
                out = model(*args, **kwargs)
                if backward:
                    if not roots(out):
                        return None
                    back(out)
        except Exception:
            return None
        return operators

    def _nothing_silent(self, report: Report) -> None:
        """If operators run, the report must have calls. If some of them compute, it must count something or list it as missing."""
        total = report.total_flops + report.total_int_ops + report.total_macs
        operators = self._runs(self.case.make)
        assert operators is not None
        self._check("a call for what runs", bool(report.calls) or not {*operators.names} - QUERIES, operators.names[:5])
        self._check(
            "no silent zero", bool(total) or not report.complete or not operators.computing, operators.computing[:5]
        )

    def _same_by_analyze(self, report: Report, backward: bool) -> None:
        kind = "analyze backward" if backward else "analyze"
        options = {"backward": True} if backward else {}
        other = self._count(kind, self.case.make, fxflops.analyze, repeats=0, progress=False, **options)
        if other is not None:
            self._check(f"{kind} is count", totals(report) == totals(other), apart(report, other))

    def _spellings(self, report: Report) -> None:
        for name, make in self.case.spellings.items():
            if self._runs(make) is None:
                continue
            other = self._count(f"count {_kind(name)}", make)
            if other is not None:
                same = totals(report) == totals(other)
                self._check(f"spelling {_kind(name)}", same, name, apart(report, other))

    def _products(self, report: Report, backward: bool) -> None:
        """MACs must equal the MACs that torch's own counter finds on meta, if it finds any."""
        model, args, kwargs = self.case.make()
        model, args, kwargs = model.to("meta"), *tree_map_only(torch.Tensor, lambda t: t.to("meta"), (args, kwargs))
        if backward:
            _learn((model, args, kwargs))
        try:
            with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(backward):
                out = model(*args, **kwargs)
                if backward:
                    back(out)
        except Exception:
            return
        macs = counter.get_total_flops() // 2
        if macs:
            complexes = any(isinstance(t, torch.Tensor) and t.is_complex() for t in tree_leaves((args, kwargs, out)))
            ours = report.total_macs + (report.total_backward_macs or 0 if backward else 0)
            kind = "MACs backward" if backward else "MACs"
            self._check(f"{kind} of FlopCounterMode", ours == macs * (4 if complexes else 1), ours, "torch", macs)

    def _memory(self, report: Report, backward: bool) -> None:
        """The peak must be near the allocator's, with or without workspaces: a mode sees the operators that allocate some of them.

        For a backward pass, the peak under a dispatch mode is accepted too. Functions that torch would compile outside a mode are
        measured only under one, because the compiler's own memory is not the model's.
        """
        kind = "memory backward" if backward else "memory"
        truth = self._allocated(backward, NoChange() if self.case.compiles else contextlib.nullcontext())
        if truth is None:
            return
        within = self._allocated(backward, NoChange()) if backward and not _is_near(report.max_memory, truth) else None
        near = any(_is_near(report.max_memory, each) for each in (truth, within) if each is not None)
        inside = "" if within is None else f"within a mode {within.held}"
        self._check(kind, near, report.max_memory, "allocated", truth.held, "workspace", truth.workspace, inside)

    def _allocated(self, backward: bool, mode: Any) -> Allocated | None:
        """Return the allocator's peaks of a run; None if a tensor has no storage, or if the run raises."""
        model, args, kwargs = self.case.make()
        if backward:
            _learn((model, args, kwargs))
        held = [*model.parameters(), *model.buffers(), *_tensors((args, kwargs))]
        try:
            before = sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in held}.values())
        except (RuntimeError, NotImplementedError, ValueError):  # sparse and lazy tensors have no storage
            return None
        outs = []

        def run() -> None:
            with torch.set_grad_enabled(backward), mode:
                outs.append(model(*args, **kwargs))
                if backward:
                    back(outs[0])

        try:
            return allocated(run, before)
        except Exception:  # some higher-order operators run only under a mode: outside one, torch compiles them
            return None

    def _backward(self) -> None:
        if self._runs(self.case.make, backward=True) is None:
            return
        report = self._count("count backward", self.case.make, backward=True)
        if report is None:
            return
        self._same_by_analyze(report, backward=True)
        self._products(report, backward=True)
        self._memory(report, backward=True)

    def _mapped(self, report: Report) -> None:
        """Under vmap, MACs must be COPIES times the MACs of one call. FLOPs may differ, because vmap decomposes some operators."""

        def make() -> Made:
            model, args, kwargs = self.case.make()
            return _Mapped(model), tuple(torch.stack([arg] * COPIES) for arg in args), kwargs

        if not self.case.make()[1] or self._runs(make) is None:
            return
        other = self._count("count vmap", make)
        if other is not None and other.complete and report.complete:
            self._check("vmap", other.total_macs == COPIES * report.total_macs, report.total_macs, other.total_macs)

    def _autocast(self, report: Report) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            if self._runs(self.case.make) is None:
                return
            other = self._count("count autocast", self.case.make)
        if other is not None:
            self._check("autocast", totals(report) == totals(other), apart(report, other))

    def _steps(self, optimizer: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
        """Check an optimizer's step: count and profile must agree on its FLOPs, and a count must not change anything."""
        model, args, kwargs = self.case.make()
        ours = optimizer(model)

        def step() -> Any:
            ours.zero_grad()
            loss = model(*args, **kwargs).square().sum()
            loss.backward()
            return loss

        try:
            ours.step(step)
        except Exception:
            self.made["does not run"] += 1
            return
        step()
        before = state(model, args, kwargs, ours)
        try:
            counted = fxflops.count(model, args, kwargs, backward=True, optimizer=ours)
        except Exception as error:
            self._check("count optimizer raises", False, type(error).__name__, " ".join(str(error).split()))
            return
        self._unchanged("count optimizer", before, model, args, kwargs, ours)
        self.listed |= {missing.op for missing in counted.missing}
        with fxflops.profile(model, optimizer=ours) as profiled:
            ours.step()
        flops = counted.total_optimizer_flops, profiled.report.total_optimizer_flops
        self._check("profile is count, of an optimizer", flops[0] == flops[1], *flops)
        self._check("an optimizer counts", bool(flops[0]) or not counted.complete, *flops)


class _Mapped(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: torch.Tensor) -> Any:
        return torch.vmap(self.model, randomness="different")(*tensors)


def _kind(spelling: str) -> str:
    """Return the kind of a spelling; "alias" for any name that is not one of the other kinds."""
    for kind in ("operator in place", "in place", "operator", "method", "out="):
        if spelling == kind or spelling.startswith(f"{kind} ") or spelling.endswith(f" {kind}"):
            return kind
    return "alias"


def _learn(made: Any) -> None:
    """Make the floating-point and complex inputs require gradients."""
    _, args, kwargs = made
    for tensor in tree_leaves((args, kwargs)):
        if isinstance(tensor, torch.Tensor) and (tensor.is_floating_point() or tensor.is_complex()):
            tensor.requires_grad_()


def roots(out: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]


def back(out: Any) -> None:
    """Run the backward pass from all results. Each gradient is a single 1 expanded to the result's shape, as after ``sum()``."""
    with contextlib.suppress(IndexError):
        torch.autograd.backward(roots(out), [t.new_ones(()).expand_as(t) for t in roots(out)])


def totals(report: Report) -> dict[str, Any]:
    names = "total_flops", "total_macs", "total_int_ops", "total_backward_flops", "total_backward_macs", "complete"
    return {name: getattr(report, name) or 0 for name in names}


def apart(one: Report, other: Report) -> dict[str, Any]:
    """Return the totals that differ between two reports, as pairs."""
    ours, theirs = totals(one), totals(other)
    return {name: (count, theirs[name]) for name, count in ours.items() if count != theirs[name]}


def state(model: nn.Module, args: Any, kwargs: Any, optimizer: Any = None) -> dict[str, Any]:
    """Return the state that a count must not change: bits, versions and gradients of all tensors, and the generator's state."""
    given = [*model.named_parameters(), *model.named_buffers(), *enumerate(_tensors((args, kwargs)))]
    if optimizer is not None:
        given += [(f"state {i}", t) for i, t in enumerate(_tensors([*optimizer.state.values()]))]
    tensors = {str(name): _bits(tensor) for name, tensor in given}
    return {**tensors, "generator": torch.get_rng_state().numpy().tobytes(), "training": model.training}


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _bits(tensor: torch.Tensor) -> Any:
    if is_lazy(tensor):
        return id(tensor), None, None, "not initialized", None
    grad = tensor.grad if tensor.is_leaf else None
    held = tensor.detach()
    held = held if held.layout is torch.strided else held.to_dense()
    if held.is_quantized or held.is_nested:
        contents: Any = str(held)
    else:
        flat = held.resolve_conj().resolve_neg().contiguous().flatten()
        contents = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return id(tensor), tuple(tensor.shape), tensor._version, contents, None if grad is None else _bits(grad)


def difference(before: dict[str, Any], *given: Any) -> list[str]:
    """Return the names of all tensors that have changed, each with the parts that changed."""
    after = state(*given)
    parts = ("identity", "shape", "version", "bits", "gradient")
    return [
        f"{name}: {[part for part, a, b in zip(parts, value, after[name], strict=False) if a != b]}"
        if isinstance(value, tuple)
        else str(name)
        for name, value in before.items()
        if value != after[name]
    ]


def _is_near(predicted: int, truth: Allocated) -> bool:
    return truth.held - max(OFF * truth.held, SCALARS) <= predicted <= truth.peak + max(OFF * truth.peak, SCALARS)
