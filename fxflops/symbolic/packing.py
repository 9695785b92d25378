"""The closed form of packed sequences: polynomials in the sum of their lengths, and in that of the squares."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ClosedFormError, InputError
from .costs import QUANTITIES, REQUIRED, Cell, Range, SizedCosts
from .polynomials import Polynomial, fixed
from .sizes import Size

ATTENTION = "attention"
"""The ops in whose names this stands are computed for each sequence by itself; all others see one row."""


def packed(form: SizedCosts, size: str, others: Mapping[str, int]) -> tuple[tuple[Size, Size], dict[str, list[Cell]]]:
    """Return the sizes ``sum_{size}`` and ``sum_{size}_squared``, and the polynomials in them.

    The arguments and errors are those of :meth:`~fxflops.symbolic.forms.ClosedForm.packed`.
    """
    if {size, *others} != {*form.sizes}:
        raise InputError(f"packed() takes one of the sizes {', '.join(form.sizes)}, and numbers for the others")
    axis = form.sizes.index(size)
    point = [others.get(name, form.example[axis]) for name in form.sizes]
    length = form.example[axis]
    cells: dict[str, list[Cell]] = {what: [] for what in QUANTITIES}
    for what in REQUIRED:
        costs: dict[tuple[str, str, str], Polynomial] = {}
        for key, polynomial in form.cell_at(point, what).costs.items():
            for i, name in enumerate(form.sizes):
                polynomial = fixed(polynomial, i, others[name]) if i != axis else polynomial
            powers = {monomial[axis]: each for monomial, each in polynomial.items()}
            phase, path, op = key
            of_each = ATTENTION in op
            if max(powers, default=0) > (2 if of_each else 1) or (of_each and 0 in powers):
                raise ClosedFormError(
                    f"no form of packed sequences: {op} in {path or 'the model'} ({phase}) is no attention to each "
                    f"sequence by itself, and grows with a power of {size} that the sums do not give"
                )
            costs[key] = {((0, 0), (1, 0), (0, 1))[power]: each for power, each in powers.items()}
        cells[what].append(Cell((Range(1, None), Range(1, None)), costs))
    sizes = Size(f"sum_{size}", length), Size(f"sum_{size}_squared", length**2)
    return sizes, cells
