"""Choose the modules to checkpoint, so that a step fits into memory and recomputes as few FLOPs as possible.

First, the effect of checkpointing each module is measured by counts. If there are few modules, each is checkpointed and counted
alone. If there are many modules, modules that are not inside each other are checkpointed and counted together. So the number of counts is
about the depth of the model. Each count is compared, call by call, with a count without checkpoints. The comparison shows how much
checkpointing a module lowers the live bytes at each moment, and how high the live bytes rise while the module is recomputed.

After these counts, the peak of any set of modules is estimated. If no module of the set is inside another module of the set, the changes in
live bytes add up. The estimate is exact unless two modules hold the same tensor. So the chosen set is always counted too.

If a checkpointed module is inside another checkpointed module, checkpointing the inner module matters only while the outer module is
recomputed. The inner module is then recomputed a second time.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, combinations
from operator import itemgetter
from typing import NamedTuple

import torch

from ..meters.history import History, triples
from ..records import BACKWARD, RECOMPUTE

SMALL = 12
"""The largest number of modules for which each module is counted alone and all sets (up to 4,096) are compared. With more modules, groups of
similar modules are counted."""
MANY = 100
"""The largest number of modules for which sets are grown in several ways. With more modules, several ways would take longer than the counts."""
GROUPS = 24
"""The largest number of groups to count. The groups that hold the most bytes at the peak come first."""
SLACK = 1.05
"""Sets are counted if their estimated peak is at most this share of the memory. The share is above 1 because estimates can be too high if two
modules hold the same tensor."""
DOUBTFUL_ABOVE = 1.01
"""Like :data:`SLACK`, for estimates that are corrected by the count of a similar set."""
TRIFLE = 0.01
"""Modules with less than this share of a plan's recomputation are dropped first, if the plan fits without them."""
TOGETHER = 512
"""The largest number of modules to count together."""
DOUBTFUL = 24
"""The largest number of sets to count although their estimated peaks do not fit. ``MOST_COUNTS`` is the largest number of counts in a search,
without the counts of groups."""
MOST_COUNTS = 40
AT_ONCE = 512
"""The number of sets that are compared in one batch."""
ALIKE, MOST_TRIED = 8, 512
"""The largest numbers of sets to estimate when looking for a cheaper set: sets with the same FLOPs, and sets in total."""
NEARBY = (1.08, 1.06, 1.04, 1.02, 1.0, 0.98, 0.96)
"""If no set fits, sets are grown until they fit into these shares of the memory."""
HALVINGS = 8
"""The number of bisection steps in the search for the smallest peak."""
WORTHWHILE = 0.001
"""The least share of a set's FLOPs that a change of the set must save."""
NEVER = -(2**62)
"""A number of bytes below any other, for a maximum that must ignore it."""


class Ticks(NamedTuple):
    """The calls of a run that change the live bytes (ticks), in order.

    - ``keys``: for each call, a key that identifies the same call in other runs: phase, path, operator, occurrence.
    - ``peaks``: the peak of live bytes during each call.
    - ``after``: the live bytes after each call.
    """

    keys: Sequence[tuple[str, str, str, int]]
    peaks: Sequence[int]
    after: Sequence[int]


def ticks_of(history: History) -> Ticks:
    """Return the calls in a history that change the live bytes."""
    peaks, after = dict[int, int](), dict[int, int]()
    live = 0
    for _, nbytes, number in triples(history.changes):
        live += nbytes
        if number >= 0:
            peaks[number], after[number] = max(peaks.get(number, live), live), live
    seen = dict[tuple[str, str, str], int]()
    keys = list[tuple[str, str, str, int]]()
    numbers = sorted(peaks)
    for number in numbers:
        call = history.calls[number] if number < len(history.calls) else None
        key = ("", "", "") if call is None else (call.phase, call.path, call.op)
        seen[key] = seen.get(key, 0) + 1
        keys.append((*key, seen[key]))
    return Ticks(keys, [peaks[number] for number in numbers], [after[number] for number in numbers])


class Trial(NamedTuple):
    """A counted step in which ``modules`` are checkpointed.

    - ``peak``: the peak in bytes.
    - ``recompute_flops``: the FLOPs that the step recomputes.
    - ``recomputed``: the recomputed FLOPs by module path.
    - ``ticks``: the calls that change the live bytes.
    """

    modules: tuple[str, ...]
    peak: int
    recompute_flops: int
    recomputed: Mapping[str, int]
    ticks: Ticks

    @property
    def allocated(self) -> int:
        """The peak of the live bytes in tensors, without the allocator's unused memory."""
        return max(self.ticks.peaks, default=0)


class Point(NamedTuple):
    """A point of the curve of peak memory and recomputation. The point has the peak in bytes and the recomputed FLOPs of a step in which
    ``modules`` are checkpointed."""

    peak: int
    recompute_flops: int
    modules: tuple[str, ...]


@dataclass
class Effect:
    """The effect of checkpointing one module.

    - ``flops``: the FLOPs that are recomputed.
    - ``change``: the change of live bytes at each tick of the step.
    - ``recomputed``: pairs of a tick and the peak of live bytes while the module is recomputed just before this tick, if only this
      module is checkpointed.
    - ``starts``: the tick before which the module is first recomputed. Checkpointing modules inside this module has an effect from
      this tick on.
    """

    name: str
    flops: int
    change: list[int]
    recomputed: list[tuple[int, int]]
    starts: int


class NothingFits(Exception):
    """Raised if no set of modules fits. ``least`` is the trial with the smallest peak."""

    def __init__(self, least: Trial) -> None:
        super().__init__(least)
        self.least = least


class Search:
    """The search for the best set of modules to checkpoint.

    - ``count``: a function that counts a step with a set of modules checkpointed. It returns None if they cannot be checkpointed.
    - ``names``: the modules that may be checkpointed, in the order in which the forward calls them.
    - ``calls``: the number of calls of each module.
    - ``held``: by module, the bytes of activations that the module itself, without submodules, makes and that are alive at the step's peak.
    - ``as_others``: modules that are not checkpointed because a similar module cannot be checkpointed, mapped to this similar module.

    The effects of modules are counted when a search first gets a memory limit that the step exceeds. Later searches reuse the effects.
    """

    def __init__(
        self,
        count: Callable[[Iterable[str]], Trial | None],
        names: Sequence[str],
        calls: Mapping[str, int],
        held: Mapping[str, int],
    ) -> None:
        self._count = count
        self._names = names
        self._calls = calls
        self._held = held
        self._place = {name: place for place, name in enumerate(names)}
        self.trials: dict[frozenset[str], Trial | None] = {}
        base = self._trial(())
        assert base is not None
        self.base = base
        self.as_others: dict[str, str] = {}
        self._limit = self._memory = 0

    @cached_property
    def effects(self) -> list[Effect]:
        """The effects of all modules whose checkpoints lower the live bytes at any time."""
        self._timeline = _Timeline(self.base)
        found = list[Effect]()
        for together in self._counted_together(self._groups(self._names)):
            found += self._effects_of(together)
        return sorted(found, key=lambda effect: self._place[effect.name])

    @cached_property
    def _levels(self) -> _Levels:
        return _Levels(self._timeline.peaks, self.effects)

    def least_recomputation(self, memory: int) -> Trial:
        """Return the trial with the fewest recomputed FLOPs among those that fit into ``memory`` bytes. Raise NothingFits if no trial fits."""
        self._limit = memory
        # The allocator reserves more bytes than are allocated. Assume that this difference is the same for every set of modules.
        self._memory = memory - (self.base.peak - self.base.allocated)
        if self._fits(self.base):
            return self.base
        if not self.effects:
            raise NothingFits(self.base)
        found = self._by_all_sets() if len(self.effects) <= SMALL else self._by_steps()
        if found is None:
            least = self._smallest()
            if not self._fits(least):
                raise NothingFits(least)
            self._with_fewer(least)
        fitting = [trial for trial in self.trials.values() if trial is not None and self._fits(trial)]
        return min(fitting, key=lambda trial: (trial.recompute_flops, len(trial.modules), trial.peak))

    def _fits(self, trial: Trial) -> bool:
        return trial.peak <= self._limit

    def _trial(self, names: Iterable[str]) -> Trial | None:
        key = frozenset(names)
        if key not in self.trials:
            self.trials[key] = self._count(sorted(key, key=self._place.__getitem__))
        return self.trials[key]

    def _groups(self, names: Sequence[str]) -> list[list[str]]:
        """Group the modules whose effects are counted. If there are few modules, each module is a group. If there are many modules, those
        whose names differ only in numbers form a group."""
        if len(names) <= SMALL:
            return [[name] for name in names]
        groups = dict[str, list[str]]()
        for name in names:
            groups.setdefault(self._kind(name), []).append(name)

        def bytes_of(group: list[str]) -> int:
            return sum(nbytes for path, nbytes in self._held.items() if any(_is_in(path, name) for name in group))

        by_bytes = sorted(groups.values(), key=lambda group: (-bytes_of(group), len(group)))
        return [group for group in by_bytes if bytes_of(group)][:GROUPS]

    def _kind(self, name: str) -> str:
        """Return a key that similar modules share. A module that is called more than once has its own key."""
        return re.sub(r"\d+", "*", name) + ("" if self._calls[name] == 1 else name)

    def _counted_together(self, groups: Sequence[list[str]]) -> list[list[str]]:
        """Merge groups that can be counted together. In a merged group, no module may be inside another module of the group."""
        merged = list[list[str]]()
        for group in groups:
            alone = len(self._names) <= SMALL or any(self._calls[name] > 1 for name in group)
            place = next((other for other in merged if not alone and self._may_join(group, other)), None)
            if place is None:
                merged.append([*group])
            else:
                place += group
        return merged

    def _may_join(self, group: Sequence[str], others: Sequence[str]) -> bool:
        if len(group) + len(others) > TOGETHER or any(self._calls[other] > 1 for other in others):
            return False
        inside = {*group}, {*others}
        return not any(
            around in there for here, there in (inside, inside[::-1]) for name in here for around in _around(name)
        )

    def _effects_of(self, group: list[str]) -> list[Effect]:
        """Return the effects of modules that are not nested. One count is enough if all of the modules can be checkpointed.

        If some cannot be checkpointed, one module of each kind is tried alone. If this module cannot be checkpointed either, all modules of
        this kind are left out.
        """
        trial = self._trial(group)
        if trial is not None:
            return [effect for effect in self._timeline.effects(trial, group) if min(effect.change, default=0) < 0]
        if len(group) == 1:
            return []
        kinds = dict[str, list[str]]()
        for name in group:
            kinds.setdefault(self._kind(name), []).append(name)
        possible = list[str]()
        for first, *others in kinds.values():
            if self._trial([first]) is None:
                self.as_others |= dict.fromkeys(others, first)
            else:
                possible += [first, *others]
        if len(possible) < len(group):
            return self._effects_of(possible) if possible else []
        # The first module of each kind can be checkpointed, but the whole group cannot.
        # So some other module of the group cannot be checkpointed. Halve the group to find this module.
        half = len(group) // 2
        return [*self._effects_of(group[:half]), *self._effects_of(group[half:])]

    def _by_all_sets(self) -> Trial | None:
        """Compare all sets of a few modules and return the best trial. Sets with fewer recomputed FLOPs are counted first."""
        doubtful = 0
        numbers = range(len(self.effects))
        sets = [chosen for size in range(1, len(self.effects) + 1) for chosen in combinations(numbers, size)]
        best: Trial | None = None
        for chosen in sorted(sets, key=lambda chosen: (self._levels.flops(chosen), len(chosen))):
            if best is not None and self._levels.flops(chosen) >= best.recompute_flops:
                break
            estimate = self._levels.peak(chosen)
            if estimate > self._memory * SLACK:
                continue
            if estimate > self._memory:
                doubtful += 1
                if doubtful > DOUBTFUL:
                    continue
            trial = self._trial(self.effects[number].name for number in chosen)
            if (
                trial is not None
                and self._fits(trial)
                and (best is None or trial.recompute_flops < best.recompute_flops)
            ):
                best = trial
        return best

    def _by_steps(self) -> Trial | None:
        """Return a trial for many modules. The trial's set of modules is first grown, by adding the modules that lower the excess over the
        memory limit most per FLOP, and then improved."""
        memory, best = self._memory, None
        for _ in range(MOST_COUNTS // 4):
            chosen = self._chosen(memory)
            if chosen is None:
                break
            trial = self._trial(self.effects[number].name for number in chosen)
            if trial is None:
                break
            if self._fits(trial):
                best = trial
                break
            # The set exceeds the limit by ``too_much`` bytes, because its estimate was too low or because more reserved memory is unused.
            # Look for a set whose estimate is lower by this many bytes.
            too_much = max(trial.allocated - self._memory, trial.peak - self._limit, 1)
            memory = min(memory, self._levels.peak(chosen)) - too_much
        return self._with_fewer(best) if best is not None else None

    def _chosen(self, memory: int) -> tuple[int, ...] | None:
        levels, found = self._levels, []
        for weight in (1.0, 0.5, 2.0) if len(self.effects) <= MANY else (1.0,):
            grown = levels.grown(memory, weight)
            if grown is not None:
                found.append(levels.improved(grown, memory))
        return min(found, key=levels.flops, default=None)

    def _with_fewer(self, trial: Trial) -> Trial:
        """Return a trial with fewer modules that still fits. Counts show that it fits, even if its estimated peak is too high."""
        number_of = {effect.name: number for number, effect in enumerate(self.effects)}
        chosen, smaller = [number_of[name] for name in trial.modules if name in number_of], list[list[int]]()
        # Estimates include only tensors. Assume that the peak of a similar set exceeds the estimate by the same amount as in this trial.
        above = trial.peak - self._levels.peak(chosen)
        highest = max(self._limit * DOUBTFUL_ABOVE, trial.peak)

        def may_fit(numbers: Sequence[int]) -> bool:
            return self._levels.peak(numbers) + above <= highest

        # First drop all modules whose recomputation has very few FLOPs, since the remaining modules may save enough memory.
        needed = [number for number in chosen if self._levels.flops([number]) > TRIFLE * trial.recompute_flops]
        if 0 < len(needed) < len(chosen) and may_fit(needed):
            without = self._trial(self.effects[number].name for number in needed)
            if without is not None and self._fits(without):
                trial, chosen = without, needed
        # Then drop the other modules one after the other. Every drop raises the peak, so bisection has to count only a few sets.
        while len(smaller) < DOUBTFUL:
            sets = [[other for other in chosen if other != number] for number in chosen]
            likely = [each for each in sets if may_fit(each)]
            if not likely:
                break
            chosen = min(likely, key=self._levels.flops)
            smaller.append(chosen)
        fewest, too_few = -1, len(smaller)
        if smaller and trial.recompute_flops - self._levels.flops(smaller[-1]) < WORTHWHILE * trial.recompute_flops:
            return trial
        while too_few - fewest > 1:
            middle = (fewest + too_few) // 2
            without = self._trial(self.effects[number].name for number in smaller[middle])
            if without is not None and self._fits(without):
                fewest, trial = middle, without
            else:
                too_few = middle
        return trial

    def _smallest(self) -> Trial:
        """Count the sets with the smallest estimated peaks. Return the trial with the smallest peak, among these and all earlier trials."""
        levels = self._levels
        if len(self.effects) <= SMALL:
            numbers = range(len(self.effects))
            sets: list[Sequence[int]] = [
                each for size in range(1, len(self.effects) + 1) for each in combinations(numbers, size)
            ]
            for chosen in sorted(sets, key=lambda each: (levels.peak(each), levels.flops(each)))[: DOUBTFUL // 2]:
                self._trial(self.effects[number].name for number in chosen)
        else:
            for chosen in levels.smallest():
                self._trial(self.effects[number].name for number in chosen)
            # Also try sets with slightly more bytes in tensors, because the allocator's segments may take fewer bytes with such a set.
            for share in NEARBY:
                chosen = levels.grown(int(share * self._memory), 1.0) or ()
                self._trial(self.effects[number].name for number in chosen)
        trials = [trial for trial in self.trials.values() if trial is not None]
        return min(trials, key=lambda trial: (trial.peak, trial.recompute_flops, len(trial.modules)))


def curve(trials: Iterable[Trial | None], best: Trial) -> tuple[Point, ...]:
    """Return the Pareto front of the trials by peak and recomputation, the highest peak first.

    The front always contains the best trial. The best trial stays in the front even if another trial, with more modules and equal
    recomputation, has a lower peak.
    """
    points = list[Point]()
    counted = [trial for trial in trials if trial is not None]
    for trial in sorted(
        counted, key=lambda each: (each.recompute_flops, each is not best, each.peak, len(each.modules))
    ):
        if not points or trial.peak < points[-1].peak:
            points.append(Point(trial.peak, trial.recompute_flops, trial.modules))
    return tuple(points)


class _Timeline:
    """The live bytes of a step without checkpoints. A tick is a call that changes the live bytes; ``peaks`` has the peak of each tick."""

    def __init__(self, trial: Trial) -> None:
        keys, self.peaks, self._after = trial.ticks
        self._ticks = {key: tick for tick, key in enumerate(keys)}
        self._paths = [path for _, path, _, _ in keys]
        self._phases = [phase for phase, _, _, _ in keys]
        # The number of the first tick in the backward pass.
        self._turn = next((tick for tick, phase in enumerate(self._phases) if phase == BACKWARD), len(keys))

    def effects(self, trial: Trial, group: list[str]) -> list[Effect]:
        """In a trial, the modules in ``group`` were checkpointed together. Return the effect of each of these modules."""
        change, left = [0] * len(self.peaks), [0] * len(self.peaks)
        seen = [False] * len(self.peaks)
        extra = list[tuple[str, int, int]]()
        waiting = list[tuple[str, int]]()
        for key, peak, after in zip(*trial.ticks, strict=True):
            tick = self._ticks.get(key)
            phase, path, *_ = key
            if tick is None or phase == RECOMPUTE:
                waiting.append((path, peak))
                continue
            extra += [(path, tick, high) for path, high in waiting]
            waiting.clear()
            change[tick], left[tick], seen[tick] = peak - self.peaks[tick], after - self._after[tick], True
        for tick in range(1, len(change)):
            if not seen[tick]:
                change[tick], left[tick] = change[tick - 1], left[tick - 1]
        flops = {name: sum(n for path, n in trial.recomputed.items() if _is_in(path, name)) for name in group}
        if len(group) == 1:
            (name,) = group
            return [self._effect(name, trial.recompute_flops, change, [(tick, high) for _, tick, high in extra])]
        return self._apart(group, change, left, extra, flops)

    def _apart(
        self,
        group: list[str],
        change: list[int],
        left: list[int],
        extra: list[tuple[str, int, int]],
        flops: dict[str, int],
    ) -> list[Effect]:
        """If a trial checkpoints several modules together, split its changes of live bytes into the effects of the single modules.

        ``change`` has the changes of live bytes at the peaks of the ticks, and ``left`` has the changes after the ticks. In the forward,
        each module gets the changes from its own first call to the first call of the next module. A module's changes include the bytes that
        the module's last call frees at its end. In the backward, these changes end in reverse order.

        A module may save more bytes when the forward ends, since autocast keeps its cast copies of weights until then. The backward shows
        how large the final saving is.
        """
        first, back = dict[str, int](), dict[str, int]()
        for tick, (path, phase) in enumerate(zip(self._paths, self._phases, strict=True)):
            owner = next((name for name in group if _is_in(path, name)), None)
            if owner is not None:
                (back if phase == BACKWARD else first).setdefault(owner, tick)
        order = sorted((name for name in group if name in first and name in back), key=first.__getitem__)
        turn = self._turn
        effects, before = [], 0
        for i, name in enumerate(order):
            begins, ends = first[name], first[order[i + 1]] if i + 1 < len(order) else turn
            settled = left[max(ends - 1, begins)] - before
            released, over = back[name], back[order[i - 1]] if i else len(change)
            before_in_backward = left[over - 1]
            own = [0] * len(change)
            own[begins:ends] = [each - before for each in change[begins:ends]]
            own[ends:turn] = [settled] * max(turn - ends, 0)
            own[turn:released] = [left[released - 1] - before_in_backward] * max(released - turn, 0)
            own[released:over] = [each - before_in_backward for each in change[released:over]]
            high = [(tick, peak - before_in_backward) for path, tick, peak in extra if _is_in(path, name)]
            effects.append(self._effect(name, flops[name], own, high))
            before += settled
        return effects

    def _effect(self, name: str, flops: int, change: list[int], recomputed: list[tuple[int, int]]) -> Effect:
        starts = min((tick for tick, _ in recomputed if tick >= self._turn), default=len(change))
        return Effect(name, flops, change, recomputed, starts)


class _Levels:
    """Estimate the peaks of sets of modules. A set is a sequence of indices of ``effects``. Levels are live bytes."""

    def __init__(self, peaks: Sequence[int], effects: Sequence[Effect]) -> None:
        self._effects = effects
        self._cost = [effect.flops for effect in effects]
        names = [effect.name for effect in effects]
        self._around = [
            {other for other, around in enumerate(names) if other != number and _is_in(name, around)}
            for number, name in enumerate(names)
        ]
        self._inside = [
            {other for other in range(len(names)) if number in self._around[other]} for number in range(len(names))
        ]
        # Ticks share a column if each module changes memory by the same bytes at all these ticks. The column has the highest peak of its ticks.
        # Ticks before and after a module's first recomputation never share a column: modules inside this module save memory only afterwards.
        starts = sorted({effect.starts for effect in effects})
        columns, column_of, base = dict[tuple[int, ...], int](), list[int](), list[int]()
        for tick, row in enumerate(zip(*(effect.change for effect in effects), strict=True)):
            key = bisect_right(starts, tick), *row
            column = columns.setdefault(key, len(columns))
            column_of.append(column)
            if column == len(base):
                base.append(peaks[tick])
            base[column] = max(base[column], peaks[tick])
        self._base = torch.tensor(base, dtype=torch.int64)
        self._change = torch.tensor([key[1:] for key in columns], dtype=torch.int64).reshape(len(base), len(effects)).T
        self._start = [column_of[effect.starts] if effect.starts < len(column_of) else len(base) for effect in effects]
        self._least = [int(row.min()) for row in self._change]
        # For each module: the columns in which the module is recomputed, and the peaks in these columns.
        recomputed = list[dict[int, int]]()
        for effect in effects:
            highest = dict[int, int]()
            for tick, peak in effect.recomputed:
                highest[column_of[tick]] = max(highest.get(column_of[tick], peak), peak)
            recomputed.append(highest)
        numbers = [len(each) for each in recomputed]
        self._own = [slice(end - number, end) for number, end in zip(numbers, accumulate(numbers), strict=True)]
        self._own_columns = torch.tensor([column for each in recomputed for column in each], dtype=torch.int64)
        self._own_peaks = torch.tensor([peak for each in recomputed for peak in each.values()], dtype=torch.int64)
        self._owners = torch.arange(len(numbers)).repeat_interleave(torch.tensor(numbers, dtype=torch.int64))

    def flops(self, chosen: Iterable[int]) -> int:
        return sum(self._cost[number] for number in chosen)

    def peak(self, chosen: Iterable[int]) -> int:
        """Return the estimated peak if these modules are checkpointed."""
        return int(self._levels([*chosen]).max())

    def _levels(self, chosen: Sequence[int]) -> torch.Tensor:
        """Return the live bytes in each column. The live bytes while modules are recomputed come after them."""
        rows = self._rows(chosen)
        change = rows.sum(0)
        return torch.cat([self._base + change, self._recomputed(chosen, rows, change)[1]])

    def _begins(self, number: int, chosen: Iterable[int]) -> int:
        """Return the first column in which checkpointing a module has an effect. At this column, the recomputation of all chosen modules
        around the module has begun."""
        return max((self._start[other] for other in self._around[number].intersection(chosen)), default=0)

    def _rows(self, chosen: Sequence[int]) -> torch.Tensor:
        """Return the change of live bytes by each of these modules, in each column."""
        rows = self._change[[*chosen]]
        for place, number in enumerate(chosen):
            if begins := self._begins(number, chosen):
                rows[place, :begins] = 0
        return rows

    def _recomputed(
        self, chosen: Sequence[int], rows: torch.Tensor, change: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, list[slice]]:
        """Return three things: the columns in which chosen modules are recomputed, the live bytes in these columns, and each module's slice
        of the columns and the bytes.

        ``rows`` are the changes by each of the modules, ``change`` is the sum of ``rows``.
        """
        own = [self._own[number] for number in chosen]
        numbers = [each.stop - each.start for each in own]
        which = torch.tensor([place for each in own for place in range(each.start, each.stop)], dtype=torch.int64)
        owner = torch.arange(len(own)).repeat_interleave(torch.tensor(numbers, dtype=torch.int64))
        columns = self._own_columns[which]
        levels = self._own_peaks[which] + change[columns] - rows[owner, columns]
        places = [slice(end - size, end) for size, end in zip(numbers, accumulate(numbers), strict=True)]
        for place, number in zip(places, chosen, strict=True):
            for inner in self._inside[number].intersection(chosen):
                # While the outer module is recomputed, assume that the inner module saves as many bytes as in its largest call of the run.
                levels[place] += self._least[inner] - rows[chosen.index(inner), columns[place]]
            for around in self._around[number].intersection(chosen):
                levels[place] -= rows[chosen.index(around), columns[place]]
        return columns, levels, places

    def _excess(self, chosen: Sequence[int], memory: int) -> int:
        return int((self._levels(chosen) - memory).clamp(min=0).sum())

    def _levels_with_each(self, chosen: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the levels of the sets :meth:`_with`\\ (chosen, number), for all modules ``number`` at once.

        The first two results have one row per module. The first result has the live bytes at each column. The second result has the live
        bytes while chosen modules are recomputed. The third result lists, for every module in turn (see :attr:`_owners`), the live
        bytes while the added module itself is recomputed. Ignore the rows of modules that are already chosen.
        """
        rows = self._rows(chosen)
        change = rows.sum(0)
        row_of = dict(zip(chosen, rows, strict=True))
        columns, recomputed, places = self._recomputed(chosen, rows, change)
        place_of = dict(zip(chosen, places, strict=True))
        added = self._change.clone()
        inner = [inside.intersection(chosen) for inside in self._inside]
        outer = [around.intersection(chosen) for around in self._around]
        nested = [number for number in range(len(added)) if inner[number] or outer[number]]
        for number in nested:
            if begins := self._begins(number, chosen):
                added[number, :begins] = 0
            for left_out in inner[number]:
                added[number] -= row_of[left_out]
        others = recomputed + added[:, columns]
        own = self._own_peaks + change[self._own_columns]
        for number in nested:
            place = self._own[number]
            for around in outer[number]:
                saved = self._least[number] - sum(self._least[left_out] for left_out in inner[number])
                others[number, place_of[around]] = recomputed[place_of[around]] + saved
            for left_out in inner[number]:
                others[number, place_of[left_out]] = NEVER
            for other in (*inner[number], *outer[number]):
                own[place] -= row_of[other][self._own_columns[place]]
        return self._base + change + added, others, own

    def _excess_with_each(self, chosen: Sequence[int], memory: int) -> list[int]:
        columns, others, own = ((levels - memory).clamp(min=0) for levels in self._levels_with_each(chosen))
        excess: list[int] = (columns.sum(1) + others.sum(1)).index_add(0, self._owners, own).tolist()
        return excess

    def _peak_with_each(self, chosen: Sequence[int]) -> list[int]:
        columns, others, own = self._levels_with_each(chosen)
        peaks = torch.cat([columns, others], 1).amax(1).scatter_reduce(0, self._owners, own, "amax")
        return [int(peak) for peak in peaks]

    def grown(self, memory: int, weight: float) -> tuple[int, ...] | None:
        """Add modules one by one until the estimated peak fits into ``memory``. Return the modules; None if no such set is found.

        The next module to add is the one with the largest ratio of removed excess (live bytes above ``memory``) to its FLOPs to the power
        of ``weight``. Modules with equal FLOPs are added in one step, as long as they remove at most half of the excess together.
        """
        if self._floor() > memory:
            return None
        chosen = list[int]()
        excess = self._excess(chosen, memory)
        while excess:
            by_worth = list[tuple[float, int, int]]()
            for number, left in enumerate(self._excess_with_each(chosen, memory)):
                if number not in chosen and left < excess:
                    price = max(self._cost[number] - self.flops(self._inside[number].intersection(chosen)), 0) + 1
                    by_worth.append((-(excess - left) / price**weight, number, excess - left))
            if not by_worth:
                return None
            by_worth.sort()  # the module that saves most per FLOP first; if equal, by index
            _, best, taken = by_worth[0]
            chosen = some = self._with(chosen, best)
            for _, number, saved in by_worth[1:]:
                is_like_best = self._cost[number] == self._cost[best] and 2 * (taken + saved) <= excess
                if is_like_best and not self._is_nested(number, some):
                    some, taken = self._with(some, number), taken + saved
            if self._excess(some, memory) < self._excess(chosen, memory):
                chosen = some
            excess = self._excess(chosen, memory)
        return tuple(chosen)

    def _is_nested(self, number: int, chosen: Iterable[int]) -> bool:
        """Return whether a module is inside a chosen module or contains a chosen module."""
        return not (self._inside[number].isdisjoint(chosen) and self._around[number].isdisjoint(chosen))

    def _with(self, chosen: Sequence[int], number: int) -> list[int]:
        """Return the chosen modules plus module ``number``, without the modules inside it."""
        return [other for other in chosen if number not in self._around[other]] + [number]

    def improved(self, chosen: Sequence[int], memory: int) -> tuple[int, ...]:
        """Improve a set that fits, so that it recomputes less. Repeatedly drop one or two modules, or replace one or two modules by another
        module."""
        better: Sequence[int] | None = chosen
        while better is not None:
            chosen = self._needed(better, memory)
            better = self._cheaper(chosen, memory)
        return tuple(chosen)

    def _needed(self, chosen: Sequence[int], memory: int) -> list[int]:
        """Return the modules that are needed. Modules are tried from the costliest on, and dropped if the rest fits without them."""
        needed = [*chosen]
        for number in sorted(chosen, key=self._cost.__getitem__, reverse=True):
            others = [other for other in needed if other != number]
            if self.peak(others) <= memory:
                needed = others
        return needed

    def _cheaper(self, chosen: Sequence[int], memory: int) -> Sequence[int] | None:
        """Drop one or two of the chosen modules and add at most one. Return the set with the fewest FLOPs that fits.

        Return None if no such set saves at least :data:`WORTHWHILE` of the FLOPs.
        """
        cost, flops = torch.tensor(self._cost), self.flops(chosen)
        least = max(int(WORTHWHILE * flops), 1)
        outs = [out for size in (1, 2) for out in combinations(chosen, size) if self.flops(out) >= least]
        levels = self._base + self._change[[*chosen]].sum(0)
        # If an outer module is dropped from the set, the modules inside it start to save memory earlier in the run.
        # ``levels`` ignores this, so use the exact rows.
        exact = dict(zip(chosen, self._rows(chosen), strict=True))
        highest = self._base + sum(exact.values(), torch.zeros_like(self._base))
        is_around = {number for number in chosen if self._inside[number].intersection(chosen)}
        # Each tuple has the FLOPs of a set (to sort by), the index of the dropped modules in ``outs``, the added module or -1, and the set.
        sets = list[tuple[int, int, int, list[int]]]()
        for begin in range(0, len(outs), AT_ONCE):
            some = outs[begin : begin + AT_ONCE]
            left = torch.stack([levels - self._change[[*out]].sum(0) for out in some])
            saved = torch.tensor([self.flops(out) for out in some])
            most, where = left.max(1)
            # First find the modules that lower the highest peak enough. Then compare all peaks, but only for these few modules.
            may = ((memory - most)[:, None] >= self._change[:, where].T) & (cost <= saved[:, None] - least)
            may[:, [*chosen]] = False
            place, other = may.nonzero(as_tuple=True)
            for part in torch.arange(len(place)).split(AT_ONCE):
                fits = (left[place[part]] + self._change[other[part]]).amax(1) <= memory
                for at, added in zip(place[part][fits].tolist(), other[part][fits].tolist(), strict=True):
                    rest = [number for number in chosen if number not in some[at]]
                    sets.append((flops - int(saved[at]) + self._cost[added], begin + at, added, [*rest, added]))
            for at in range(len(some)):
                out = some[at]
                if is_around.isdisjoint(out) and int((highest - sum(exact[each] for each in out)).max()) > memory:
                    continue
                rest = [number for number in chosen if number not in out]
                sets.append((flops - int(saved[at]), begin + at, -1, rest))
        sets.sort()
        # With identical layers, thousands of sets have the same FLOPs. Usually all of them fit or none of them fits, so try only a few.
        alike = Counter[int]()
        tried = 0
        for cost_of_set, _, _, after in sets:
            alike[cost_of_set] += 1
            if alike[cost_of_set] > ALIKE:
                continue
            tried += 1
            if tried > MOST_TRIED:
                break
            if self.peak(after) <= memory:
                return after
        return None

    def _floor(self) -> int:
        """Return a lower bound of the peaks of all sets. The bound is the estimated peak with all modules checkpointed and all their
        savings added up."""
        return int((self._base + self._change.clamp(max=0).sum(0)).max())

    def smallest(self) -> list[tuple[int, ...]]:
        """Return sets of modules with low estimated peaks: the set of :meth:`_lowest`, and sets grown until they fit into memory limits
        that bisection chooses."""
        found = [self._lowest()]
        low, high = self._floor(), self.peak(found[0])
        for _ in range(HALVINGS):
            memory = (low + high) // 2
            grown = self.grown(memory, 1.0)
            if grown is None:
                low = memory
            else:
                found.append(grown)
                high = self.peak(grown)
        return found

    def _lowest(self) -> tuple[int, ...]:
        """Add modules one by one, as long as adding a module lowers the estimated peak. Return the modules."""
        chosen = list[int]()
        while True:
            sets = list[tuple[int, list[int]]]()
            for number, peak in enumerate(self._peak_with_each(chosen)):
                if number not in chosen:
                    sets.append((peak, self._with(chosen, number)))
                    if self._inside[number].intersection(chosen):
                        sets.insert(-1, (self.peak([*chosen, number]), [*chosen, number]))
            peak, best = min(sets, key=itemgetter(0), default=(self.peak(chosen), chosen))
            if peak >= self.peak(chosen):
                return tuple(chosen)
            chosen = best


def _around(name: str) -> Iterator[str]:
    """Yield the names of all modules that contain a module, except the root."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        yield ".".join(parts[:end])


def _is_in(path: str, name: str) -> bool:
    """Return whether ``path`` is the path of module ``name`` or of a module inside it."""
    return path == name or path.startswith(f"{name}.")
