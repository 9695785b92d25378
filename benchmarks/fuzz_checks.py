"""Checks of a random net: do counts agree with each other and an independent counter, is memory predicted, is the state unchanged?"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

import fxflops
from fxflops import Report

from .allocator import allocated
from .fuzz_counter import Independent
from .fuzz_nets import checkpoints, made, tick
from .fuzz_runs import (
    Watching,
    difference,
    held_by,
    macs_of,
    operators,
    same,
    stepped,
    tensors,
    totals,
    values,
    written_out,
)
from .fuzz_state import changed, state

SELDOM = ("count again", "analyze recorded", "analyze backward")
"""Each net has only one of these runs, chosen by its seed."""
OFF, SCALARS = 0.05, 64
"""The tolerance for predicted memory: a share of the allocator's peak, or these bytes if they are more. Torch turns a few numbers into
tensors inside its operators."""
OPTIMIZERS = {
    "none": None,
    "neither": None,
    "SGD": partial(torch.optim.SGD, lr=0.0, momentum=0.9),
    "AdamW": partial(torch.optim.AdamW, lr=0.0),
}
ERRORS = (ValueError, RuntimeError, KeyboardInterrupt)
FAULTS = 10
SUMS = "watched: the allocator's peak is the predicted one where a dispatch mode that does nothing is on"
INDICES = "memory: the CPU's max_pool1d makes no indices without gradients"
ROWS = "memory: the mean and deviation of each row that layer_norm makes are not predicted in inference: 8 bytes a row"
MISH = "memory: on meta torch writes mish's backward out, which is one kernel on the devices"
MORE = {
    "Product.apply(": "memory: on meta a view of a tensor that the model makes for itself is predicted as a tensor of its own",
    ".prod(": "memory: torch goes another way through prod's backward where a dispatch mode is on",
    "F.mish(": MISH,
    "nn.Mish(": MISH,
    "func.jvp(": "memory: the zero tangents of weights, which take no memory, are predicted as tensors",
    "MaxPool1d(": INDICES,
    "max_pool1d(": INDICES,
}
"""Why the predicted memory may exceed the allocated memory, by words in the net's text."""
LESS = {
    "old_weight_norm(": "memory: the allocator tells nothing of a free of what was there before it was watched",
    "layer_norm(": ROWS,
    "LayerNorm(": ROWS,
    "nn.RMSNorm(": "memory: rms_norm is predicted as the one kernel that it is on CUDA; the CPU writes it out",
    "ConvTranspose3d(": "memory: the CPU's transposed 3d convolution keeps its result in a storage as large as its input",
}
"""Why the predicted memory may be less than the allocated memory, by words in the net's text."""
DRAW = "torch.rand(()) > 0.5"
DRAWING = ("Dropout", "Transformer", "dropout_p", "preserve_rng_state=False")
BY_CHANCE = "a branch drawn by chance, after dropout, which draws nothing on meta, or in what checkpoint draws anew"
Found = tuple[str, str]
Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


class Checked:
    """The checks of one net. ``found`` are disagreements, each with its kind; ``notes`` say why checks were skipped or relaxed."""

    def __init__(self, text: str, seed: int, faults: bool = False) -> None:
        self.text = text
        self.seed = seed
        self.found: list[Found] = []
        self.notes: list[str] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._all(faults)

    def make(self, kept: bool = False) -> Made:
        """Build the net again. Gradients are cleared unless ``kept``, because a count starts without gradients."""
        model, args, kwargs = made(self.text, self.seed)
        if not kept:
            model.zero_grad()
        return model, args, kwargs

    def say(self, kind: str, *values: Any) -> None:
        if DRAW in self.text and any(word in self.text for word in DRAWING) and not kind.startswith("state"):
            self.notes.append(BY_CHANCE)
            return
        self.found.append((kind, " ".join(map(str, values))))

    def _all(self, faults: bool) -> None:
        truth = self._truth(backward=False)
        if truth is None:
            self.notes.append("does not run")
            return
        learned = self._truth(backward=True)
        model, args, kwargs = self.make(kept=True)
        reports: dict[str, Report] = {}
        ways = {
            "count": lambda: fxflops.count(model, args, kwargs),
            "count again": lambda: fxflops.count(model, args, kwargs),
            "analyze": lambda: fxflops.analyze(model, args, kwargs, repeats=0, progress=False),
            "analyze recorded": lambda: fxflops.analyze(model, args, kwargs, repeats=0, progress=False, trace="record"),
        }
        if learned is not None:
            ways["count backward"] = lambda: fxflops.count(model, args, kwargs, mode="train", backward=True)
            ways["analyze backward"] = lambda: fxflops.analyze(
                model, args, kwargs, mode="train", backward=True, repeats=0, progress=False
            )
        for name, way in ways.items():
            if name in SELDOM and (self.seed + [*SELDOM].index(name)) % len(SELDOM):
                continue
            if name == "analyze recorded" and "symbolic" not in getattr(reports.get("analyze"), "trace", "symbolic"):
                continue
            report = self._held(name, way, model, (args, kwargs))
            if report is not None:
                reports[name] = report
            elif self.found and self.found[-1][0].startswith("state"):
                model, args, kwargs = self.make(kept=True)
        reports |= self._profiled(learned is not None)
        self._agree(reports, truth, learned)
        self._sums(reports)
        self._memory(reports, learned is not None)
        if faults:
            self._faults(learned is not None)

    def _truth(self, backward: bool) -> Independent | None:
        """Run the net under the independent counter and return the counter; None if the net raises or has no result to differentiate."""
        with checkpoints("recounted"):
            model, args, kwargs = self.make()
        model.train(backward)
        with Independent() as counter:
            try:
                with torch.set_grad_enabled(backward):
                    out = model(*args, **kwargs)
                counter.forward = counter.macs
                if backward:
                    roots = [t for t in tensors(out) if t.requires_grad]
                    if not roots:
                        return None
                    torch.autograd.backward(roots, [t.new_ones(()).expand_as(t) for t in roots])
            except Exception as error:
                self.notes.append(
                    f"{'training' if backward else 'inference'} raises {type(error).__name__}: {str(error)[:100]}"
                )
                return None
        return counter

    def _held(self, name: str, way: Callable[[], Report], model: nn.Module, inputs: Any) -> Report | None:
        """Return the report of a count or analysis, None if it raises. Check that the state is the same before and after."""
        torch.manual_seed(self.seed)
        random.seed(self.seed)
        before = state(model, inputs)
        try:
            report = way()
        except Exception as error:
            self.say(f"{name} raises", type(error).__name__, str(error)[:600])
            report = None
        difference = changed(before, state(model, inputs))
        if difference:
            self.say(f"state after {name}", difference[:600])
        return report

    def _profiled(self, backward: bool) -> dict[str, Report]:
        """Return the reports of profile(). Check that the net has the same outputs, and leaves the same state, as without profile()."""
        reports = {}
        for name, training in [("profile", False), *([("profile backward", True)] if backward else [])]:
            after, results = [], []
            for watched in (True, False):
                model, args, kwargs = self.make()
                model.train(training)
                torch.manual_seed(self.seed)
                random.seed(self.seed)
                with torch.set_grad_enabled(training), written_out():
                    try:
                        if watched:
                            with fxflops.profile(model) as p:
                                results.append(stepped(model, args, kwargs, training))
                            reports[name] = p.report
                        else:
                            results.append(stepped(model, args, kwargs, training))
                    except Exception as error:
                        if watched:
                            self.say(f"{name} raises", type(error).__name__, str(error)[:600])
                        break
                after.append(values(model, (args, kwargs)))
            for what, pair in (("output", results), ("state afterwards", after)):
                if len(after) == 2 and not same(*pair):
                    if same(*pair, close=True):
                        self.notes.append(f"{name}: {what} the same but for rounding")
                    else:
                        self.say(f"{name}: another {what}", difference(*pair))
        return reports

    def _agree(self, reports: dict[str, Report], truth: Independent, learned: Independent | None) -> None:
        for name, report in reports.items():
            counter = learned if "backward" in name else truth
            assert counter is not None
            if not report.complete:
                self.say(f"{name} incomplete", [(m.op, m.reason) for m in report.missing])
                continue
            if counter.undefined:
                self.notes.append(f"MACs not defined: {', '.join(sorted(counter.undefined))}")
                continue
            nested = (
                report.total_macs < counter.forward and "autograd.grad(" in self.text and "checkpoint(" in self.text
            )
            if nested:  # a gradient taken in the forward recomputes there what checkpoint has dropped
                self.notes.append("recomputation inside the forward")
            elif report.total_macs != counter.forward:
                self.say(f"MACs of {name}", report.total_macs, "counter", counter.forward)
            if "backward" in name:
                back = macs_of(report, "backward") + macs_of(report, "recompute") + report.total_macs
                if back != counter.macs:
                    self.say(f"all MACs of {name}", back, "counter", counter.macs)
            elif truth.flops is not None and report.total_flops != truth.flops:
                self.say(f"FLOPs of {name}", report.total_flops, "textbook", truth.flops)
        for family in (
            ("count", "count again", "analyze", "analyze recorded", "profile"),
            ("count backward", "analyze backward", "profile backward"),
        ):
            present = [(name, totals(reports[name])) for name in family if name in reports]
            for name, figures in present[1:]:
                if figures != present[0][1]:
                    apart = {k: (present[0][1][k], v) for k, v in figures.items() if present[0][1][k] != v}
                    self.say(f"{name} is not {present[0][0]}", apart, operators(reports[present[0][0]], reports[name]))
        if "count again" in reports and reports["count again"].max_memory != reports["count"].max_memory:
            self.say("memory counted again", reports["count"].max_memory, reports["count again"].max_memory)

    def _sums(self, reports: dict[str, Report]) -> None:
        for name, report in reports.items():
            phases = ["forward", *(["backward"] if "backward" in name else [])]
            for phase in phases:
                total = report.total_flops if phase == "forward" else report.total_backward_flops
                modules, operators_ = report.by_module(phase=phase), report.by_operator(phase=phase)
                own = sum(row.own.flops for row in modules.values())
                rows = sum(row.total.flops for row in operators_.values())
                if not total == modules[""].total.flops == own == rows:
                    self.say(f"sums of {name}, {phase}", total, modules[""].total.flops, own, rows)

    def _memory(self, reports: dict[str, Report], backward: bool) -> None:
        if "in_thread" in self.text:
            return
        # The checkpoints of the allocator's run do not keep the generator's state, so the recomputation may draw another branch.
        if "checkpoint(" in self.text and "torch.rand(())" in self.text:
            return
        predicted = {"inference": reports.get("count"), "training": reports.get("count backward")}
        for way, report in predicted.items():
            if report is None:
                continue
            self._near(way, report, way == "training", None)
        name = [*OPTIMIZERS][self.seed % len(OPTIMIZERS)]
        model, args, kwargs = self.make()
        if "count backward" in reports and OPTIMIZERS[name] is not None and [*model.parameters()]:
            optimizer = OPTIMIZERS[name](model.parameters())  # type: ignore[misc]
            torch.manual_seed(self.seed)
            report = self._held(
                f"count {name}",
                lambda: fxflops.count(model, args, kwargs, mode="train", backward=True, optimizer=optimizer),
                model,
                (args, kwargs),
            )
            if report is not None:
                self._near(f"training with {name}", report, True, name)

    def _near(self, way: str, report: Report, training: bool, name: str | None) -> None:
        predicted, held = report.max_memory, self._allocated(training, name)
        if held is None or abs(predicted - held) <= max(OFF * held, SCALARS):
            return
        summed = self._allocated(training, name, Watching())
        if summed is not None and abs(predicted - summed) <= max(OFF * summed, SCALARS):
            self.notes.append(SUMS)
            return
        known = MORE if predicted > held else LESS
        causes = [cause for part, cause in known.items() if part in self.text]
        if causes:
            self.notes += causes
            return
        self.say(
            f"memory of {way}",
            predicted,
            "allocated",
            held,
            f"({predicted / held - 1:+.1%}), {report.trace}, watched {summed}",
        )

    def _allocated(self, training: bool, name: str | None, mode: Any = None) -> int | None:
        """Return the allocator's peak without workspaces; parameters, inputs and the optimizer's state are included."""
        with checkpoints("forgetful"):
            model, args, kwargs = self.make()
        model.train(training)
        optimizer = OPTIMIZERS[name](model.parameters()) if name else None  # type: ignore[misc]
        if optimizer is not None:
            with checkpoints("forgetful"):
                first, args_, kwargs_ = self.make()
            stepped(first.train(), args_, kwargs_, True)
            learned = dict(first.named_parameters())
            for name_, parameter in model.named_parameters():
                parameter.grad = None if learned[name_].grad is None else torch.zeros_like(parameter)
            optimizer.step()
            optimizer.zero_grad()
        before = held_by(model, (args, kwargs), optimizer)

        def run() -> None:
            with torch.set_grad_enabled(training), written_out(), mode or nullcontext():
                out = stepped(model, args, kwargs, training)
                if optimizer is not None:
                    optimizer.step()
                del out

        torch.manual_seed(self.seed)
        random.seed(self.seed)
        try:
            return allocated(run, before).held
        except Exception as error:
            self.notes.append(f"allocator: {type(error).__name__}")
            return None

    def _faults(self, backward: bool) -> None:
        """Raise an error at random calls, and check that the state is unchanged.

        Another error must not take its place, and a KeyboardInterrupt must not be swallowed.
        """
        rng = random.Random(self.seed)
        ways: list[tuple[str, Callable[..., Any]]] = [
            ("count", fxflops.count),
            ("analyze", partial(fxflops.analyze, repeats=0, progress=False)),
            ("analyze recorded", partial(fxflops.analyze, repeats=0, progress=False, trace="record")),
        ]
        if backward:
            ways.append(("count backward", partial(fxflops.count, mode="train", backward=True)))
            ways.append(
                ("analyze backward", partial(fxflops.analyze, mode="train", backward=True, repeats=0, progress=False))
            )
        for _ in range(FAULTS):
            name, way = rng.choice(ways)
            model, args, kwargs = self.make()
            with tick.armed(None):
                try:
                    way(model, args, kwargs)
                except Exception:
                    continue  # another check reports this
                calls = tick.calls
            model, args, kwargs = self.make()
            at, error = rng.randint(1, calls), rng.choice(ERRORS)
            before = state(model, (args, kwargs))
            raised: type[BaseException] | None = None
            with tick.armed(at, error):
                try:
                    way(model, args, kwargs)
                except BaseException as caught:
                    raised = type(caught)
                    if not isinstance(caught, error):
                        self.say(
                            f"fault in {name}",
                            f"{error.__name__} at {at} of {calls} came as {raised.__name__}: {str(caught)[:300]}",
                        )
                    del caught
            if raised is None and error is KeyboardInterrupt:
                self.say(f"fault in {name}", f"{error.__name__} at {at} of {calls} is swallowed")
            told = changed(before, state(model, (args, kwargs)))
            if told:
                self.say(f"state after a fault in {name}", f"{error.__name__} at {at} of {calls}:", told[:600])
