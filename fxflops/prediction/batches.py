"""Search for the largest batch that fits into memory, with as few counts as possible.

If the bytes of each storage grow linearly with the batch, counts of two batch sizes are enough to predict the bytes for all batch sizes.
Two more counts check the predicted answer. Even if the bytes of some storages do not grow linearly, the peak grows almost linearly with the
batch, so the line through two counted peaks gives the next batch size to try. The returned size was counted and fits. The next larger size
was counted and does not fit.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import InputError, RunError

FIRST = 1, 2, 3, 4, 8, 16, 32
"""Batch sizes to try first. Several are tried because batch norms cannot train on one sample, and some models take only multiples of a size."""
MOST = 2**40
"""A batch that is too large for any device. If this batch fits, memory does not grow with the batch."""
BEYOND = 8
"""The number of sizes to try above the answer if memory does not grow linearly: a larger size may need less, e.g. with less padding."""
STRAIGHT = 0.01
"""Peaks within this relative distance of the line are treated as being on the line."""


Guess = Callable[[int], int | None]
"""A function that estimates the bytes of a batch size; None for a size that it cannot estimate."""


def largest_batch(
    take: Callable[[int], int], memory: int, guesses: Callable[[int, int], Guess | None] = lambda size, larger: None
) -> int:
    """Return the largest batch size that fits into ``memory`` bytes. Return 0 if not even the smallest possible batch size fits.

    ``take(size)`` counts a run with this batch size and returns its peak bytes. ``take`` raises RunError for a size that the model rejects.
    If the model rejects all sizes in :data:`FIRST`, the error raised is the error for the first size. If the model takes only multiples of
    a size, only these multiples are searched.

    ``guesses(size, larger)`` returns a function that estimates the bytes at other batch sizes from the counts of these two sizes. If counts
    confirm the largest batch by these estimates, the search ends. If counts do not confirm this batch, the search continues by bisection.
    Raises InputError if memory does not grow with the batch.
    """
    sizes = _Sizes(take, memory)
    least = next((batch for batch in FIRST if sizes.is_possible(batch)), None)
    if least is None:
        raise sizes.errors[FIRST[0]]
    if not sizes.fits(least):
        return 0
    # If the model accepts batch 4 but not batch 5, assume that it accepts multiples of 4.
    # If the model accepts batches 2 and 3, assume that it accepts every batch size from 2 on.
    unit = 1 if least == 1 or sizes.is_possible(least + 1) else least
    fits, above = least, least + unit
    while sizes.fits(above):
        if (guessed := sizes.guessed(fits, above, unit, guesses)) is not None:
            return guessed
        fits, above = above, sizes.crossing(fits, above, memory, unit)
        if above > MOST:
            raise InputError(
                f"memory does not grow with the batch size: {sizes.taken[least]:,} bytes for batch {least}, "
                f"{sizes.taken[fits]:,} bytes for batch {fits}; make_inputs(batch) must return inputs of this batch size"
            )
    if (guessed := sizes.guessed(fits, above, unit, guesses)) is not None:
        return guessed
    # Interpolate memory linearly: the batch size found in this way is nearly always right, and counting the next size confirms it.
    # Every second step bisects instead, in case memory does not grow linearly.
    by_line = True
    while above - fits > unit:
        looked_at = [fits + (above - fits) // (2 * unit) * unit]
        if by_line:
            size = sizes.on_line(fits, above, memory, unit)
            looked_at = [size, size + unit if sizes.fits(size) else size - unit]
        for size in looked_at:
            if fits < size < above:
                fits, above = (size, above) if sizes.fits(size) else (fits, size)
        by_line = not by_line
    if sizes.are_on_a_line():
        return fits
    return max(size for size in range(fits, fits + (BEYOND + 1) * unit, unit) if sizes.fits(size))


class _Sizes:
    """The batch sizes that were tried, each with its peak bytes or its error."""

    def __init__(self, take: Callable[[int], int], memory: int) -> None:
        self._take = take
        self._memory = memory
        self.taken: dict[int, int] = {}
        self.errors: dict[int, RunError] = {}

    def is_possible(self, batch: int) -> bool:
        if batch not in self.taken and batch not in self.errors:
            try:
                self.taken[batch] = self._take(batch)
            except RunError as error:
                self.errors[batch] = error
        return batch in self.taken

    def fits(self, batch: int) -> bool:
        return self.is_possible(batch) and self.taken[batch] <= self._memory

    def guessed(self, size: int, larger: int, unit: int, guesses: Callable[[int, int], Guess | None]) -> int | None:
        """Return the largest size that fits by the guess from two counted sizes; None if there is no guess, or counts contradict the guess."""
        if size not in self.taken or larger not in self.taken or (guess := guesses(size, larger)) is None:
            return None

        def fits(batch: int) -> bool:
            taken = guess(batch)
            return taken is not None and taken <= self._memory

        low, high = size, larger
        while fits(high):
            low, high = high, size + 2 * (high - size)
            if high > MOST:
                return None
        while high - low > unit:
            middle = low + (high - low) // (2 * unit) * unit
            low, high = (middle, high) if fits(middle) else (low, middle)
        found = max(batch for batch in range(low, low + (BEYOND + 1) * unit, unit) if batch == low or fits(batch))
        right = all(self.is_possible(batch) and self.taken[batch] == guess(batch) for batch in (found, found + unit))
        return found if right and self.fits(found) and not self.fits(found + unit) else None

    def crossing(self, lower: int, upper: int, memory: int, unit: int) -> int:
        """Extrapolate from two batch sizes that fit. Return the first size for which the line through their peaks is above the memory. If
        the line does not rise, return a far larger size."""
        rise = self.taken[upper] - self.taken[lower]
        if rise <= 0:
            return upper * 16
        met = upper + (memory - self.taken[upper]) * (upper - lower) // rise
        return int(max(met // unit * unit, upper) + unit)

    def on_line(self, fits: int, above: int, memory: int, unit: int) -> int:
        """Interpolate between a batch size that fits and a size that does not fit. Return the last size for which the line through their
        peaks is within the memory."""
        rise = self.taken[above] - self.taken[fits] if above in self.taken else 0
        if rise <= 0:
            return fits + (above - fits) // (2 * unit) * unit
        met = fits + (memory - self.taken[fits]) * (above - fits) // rise
        return min(max(met // unit * unit, fits + unit), above - unit)

    def are_on_a_line(self) -> bool:
        """Return whether all counted peaks are close to a line: the line through the first and the last peak."""
        first, last = min(self.taken), max(self.taken)
        start = self.taken[first]
        slope = (self.taken[last] - start) / max(last - first, 1)
        lines = {batch: start + slope * (batch - first) for batch in self.taken}
        return all(abs(lines[batch] - nbytes) <= STRAIGHT * nbytes for batch, nbytes in self.taken.items())
