"""Search for the largest batch that fits, with as few counts as possible.

If the bytes of each storage grow linearly, two counts give the bytes of all sizes, and so the answer, which two more counts check. Otherwise
memory still grows almost linearly with the batch, so two peaks give a line, and the line the next size to try. The returned size was counted
and fits; the next one was counted and does not.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import InputError, RunError

FIRST = 1, 2, 3, 4, 8, 16, 32
"""Candidates for the first size: batch norms cannot train on one sample, and some models take only multiples."""
MOST = 2**40
"""A batch that no device holds: if this one fits, memory does not grow with the batch."""
BEYOND = 8
"""Sizes above the answer to try if memory does not grow linearly, since it may fall again: rows may be padded."""
STRAIGHT = 0.01
"""The share by which peaks may be off the line."""


Guess = Callable[[int], int | None]
"""Estimates the bytes of a size from two counted sizes; None where these say nothing about it."""


def largest_batch(
    take: Callable[[int], int], memory: int, guesses: Callable[[int, int], Guess | None] = lambda size, larger: None
) -> int:
    """Return the largest batch that fits, 0 if the smallest possible one does not; ``take`` counts a batch of a size and returns its peak
    bytes.

    ``guesses(size, larger)`` are made from two counted sizes: if counts of the answer and of the size after it confirm them, the search ends.
    Otherwise it bisects.

    ``take`` raises RunError for a size that the model rejects; if it rejects every one of :data:`FIRST`, the error of the first is
    raised. If only multiples of a size are possible, these are searched. Raises InputError if memory does not grow with the batch.
    """
    sizes = _Sizes(take, memory)
    least = next((batch for batch in FIRST if sizes.is_possible(batch)), None)
    if least is None:
        raise sizes.errors[FIRST[0]]
    if not sizes.fits(least):
        return 0
    # A model that takes 4 and not 5 takes multiples of 4; one that takes 2 and 3 takes every size from 2.
    unit = 1 if least == 1 or sizes.is_possible(least + 1) else least
    fits, above = least, least + unit
    while sizes.fits(above):
        if (guessed := sizes.guessed(fits, above, unit, guesses)) is not None:
            return guessed
        fits, above = above, sizes.crossing(fits, above, memory, unit)
        if above > MOST:
            raise InputError(
                f"memory does not grow with the batch, {sizes.taken[fits]:,} bytes for {fits} and "
                f"{sizes.taken[least]:,} for {least}: make_inputs(batch) must return inputs of this batch size"
            )
    if (guessed := sizes.guessed(fits, above, unit, guesses)) is not None:
        return guessed
    # The line's guess is nearly always right, as the size next to it confirms. In case it is not, every second try is the middle.
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
    """The sizes tried: the bytes of each, or the error that it raised."""

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
        """Return the largest size that fits by the guesses from two sizes; None without guesses, or if counts contradict them."""
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
        """Return the first size at which the line through two that fit is above the memory; a far larger size if it never is."""
        rise = self.taken[upper] - self.taken[lower]
        if rise <= 0:
            return upper * 16
        met = upper + (memory - self.taken[upper]) * (upper - lower) // rise
        return int(max(met // unit * unit, upper) + unit)

    def on_line(self, fits: int, above: int, memory: int, unit: int) -> int:
        """Return the last size at which the line through one that fits and one that does not is within the memory."""
        rise = self.taken[above] - self.taken[fits] if above in self.taken else 0
        if rise <= 0:
            return fits + (above - fits) // (2 * unit) * unit
        met = fits + (memory - self.taken[fits]) * (above - fits) // rise
        return min(max(met // unit * unit, fits + unit), above - unit)

    def are_on_a_line(self) -> bool:
        """Return whether all peaks lie on the line through the first and the last."""
        first, last = min(self.taken), max(self.taken)
        start = self.taken[first]
        slope = (self.taken[last] - start) / max(last - first, 1)
        lines = {batch: start + slope * (batch - first) for batch in self.taken}
        return all(abs(lines[batch] - nbytes) <= STRAIGHT * nbytes for batch, nbytes in self.taken.items())
