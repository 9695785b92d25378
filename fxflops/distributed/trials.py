"""Simulate training steps on many meshes at the same time, and check that a few layers give the same results as all layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import RunError
from ..roofline.devices import Device
from .bounds import StepBound, step_bound
from .copies import map_in_copies
from .layers import depths
from .links import Links
from .result import Simulation
from .simulation import Build, simulated

DEPTHS = 2
"""The number of shallow models from which a deep model is extrapolated."""


class Trial(NamedTuple):
    """A step to simulate: the step that ``build`` returns, on a mesh. ``passes`` is the number of passes, if the step takes a number.

    Layers may do the same work in one ``mode`` but not in another, e.g. with checkpoints but not without. So each mode is checked separately.
    """

    mesh: Mapping[str, int]
    build: Build
    passes: int | None = None
    mode: str = ""


class Outcome(NamedTuple):
    """A simulated step and its bound. The bound is None if the step needs more memory than the limit."""

    simulation: Simulation
    bound: StepBound | None


class Trials:
    """Simulate trials for a device. Up to ``processes`` trials are simulated at the same time. ``started`` is called with the number
    of trials that are about to be simulated, ``done`` after each trial.

    With ``layers``, a trial is extrapolated from two models of different depths. The two models show whether all layers add the same
    memory. In each mode, the first trial is also simulated with all layers, to check that work grows linearly with the layers. If the
    results differ, all trials of the mode are simulated with all layers.
    """

    def __init__(
        self,
        device: Device,
        links: Links,
        limit: int | None,
        *,
        differs: Sequence[str] | None = None,
        layers: int | None = None,
        processes: int = 1,
        done: Callable[[], None] = lambda: None,
        started: Callable[[int], None] = lambda number: None,
    ) -> None:
        self._device, self._links, self._limit = device, links, limit
        self._differs, self._layers = differs, layers
        self._processes, self._done, self._started = processes, done, started
        self._few_are_enough: dict[str, bool] = {}

    def outcomes(self, trials: Sequence[Trial]) -> list[Outcome | str]:
        """Return the outcome of each trial, or the reason why the trial failed."""
        if self._layers is None or not depths(self._layers, 1, DEPTHS):  # there is nothing shallower
            return self._run([(trial, 0) for trial in trials])
        first = {trial.mode: trial for trial in reversed(trials) if trial.mode not in self._few_are_enough}
        whole = [(trial, 0) for trial in first.values()]
        shallow = [(trial, DEPTHS if self._few_are_enough.get(trial.mode, True) else 0) for trial in trials]
        results = self._run([*whole, *shallow])
        checks, outcomes = results[: len(whole)], results[len(whole) :]
        for (trial, _), check in zip(whole, checks, strict=True):
            place = next(i for i, each in enumerate(trials) if each is trial)
            self._few_are_enough[trial.mode] = _alike(check, outcomes[place])
            outcomes[place] = outcomes[place] if self._few_are_enough[trial.mode] else check
        again = [
            i
            for i, trial in enumerate(trials)
            if shallow[i][1] and trial is not first.get(trial.mode) and not self._few_are_enough[trial.mode]
        ]
        for i, outcome in zip(again, self._run([(trials[i], 0) for i in again]), strict=True):
            outcomes[i] = outcome
        return outcomes

    def _run(self, jobs: Sequence[tuple[Trial, int]]) -> list[Outcome | str]:
        self._started(len(jobs))
        return map_in_copies(self._one, jobs, self._processes, lambda job: mesh_name(job[0].mesh), self._done)

    def _one(self, job: tuple[Trial, int]) -> Outcome | str:
        trial, shallow = job
        differs = self._differs and [name for name in self._differs if name in trial.mesh]
        try:
            simulation = simulated(
                trial.build,
                trial.mesh,
                differs=differs,
                layers=self._layers,
                shallow=shallow,
                passes=trial.passes,
            )
        except RunError as error:
            return " ".join(str(error).split())
        if self._limit is not None and simulation.max_memory > self._limit:
            return Outcome(simulation, None)
        return Outcome(simulation, step_bound(simulation, self._device, self._links))


def mesh_name(mesh: Mapping[str, int]) -> str:
    """Return the name of a mesh: "dp 8 x tp 2"."""
    return " x ".join(f"{name} {count}" for name, count in mesh.items())


def _alike(whole: Any, shallow: Any) -> bool:
    """Return whether extrapolating from a few layers was possible and gave the same numbers as simulating all layers."""
    ran = isinstance(whole, Outcome) and isinstance(shallow, Outcome)
    return ran and shallow.simulation.layers is not None and whole.simulation.figures == shallow.simulation.figures
