"""``ClosedForm``: the costs of a model as polynomials in the sizes of its inputs, written down in several ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ..errors import ClosedFormError, InputError
from .costs import QUANTITIES, REQUIRED, Cell, Key, Range, SizedCosts
from .polynomials import Polynomial, fixed
from .sizes import Size
from .writing import expression, plot, python_function, text

if TYPE_CHECKING:
    from sympy import Expr

    from ..report.picture import Picture


ATTENTION = "attention"
"""If the name of an op contains this text, the op handles each packed sequence separately. All other ops see one long row."""


class ClosedForm(SizedCosts):
    """The FLOPs, MACs, activations and bytes of a model as polynomials in its named sizes. The polynomials are exact for the sizes in a
    stated domain.

    ``flops``, ``macs``, ``activations``, ``bytes``, ``param_bytes`` and ``memory`` are sympy expressions for the forward pass.
    ``backward_flops`` and ``training_flops`` (forward plus backward) exist only if the form was made with ``backward=True``.

    ``param_bytes`` are the bytes of the parameters of all modules that were called. Of an embedding, only the rows that it reads are
    included. ``bytes`` is the smallest number of bytes that the calls must move, if each call reads or writes each of its tensors once.
    ``memory`` is the predicted peak. ``bytes`` and ``memory`` may hold on a smaller domain, or not be polynomials at all.
    """

    def expression(
        self, what: str = "flops", *, phase: str = "forward", module: str = "", operator: str | None = None
    ) -> Expr:
        """Return a quantity as a sympy expression. Its symbols are positive integers with the names of the sizes.

        The arguments are as for :meth:`evaluate`. If the pieces of the domain have different polynomials, the result is a ``Piecewise``.
        """
        pieces = [(cell.ranges, self.polynomial(cell, what, phase, module, operator)) for cell in self.pieces(what)]
        return expression(self.sizes, pieces)

    def by_module(self, what: str = "flops", phase: str = "forward") -> dict[str, Expr]:
        """Return the expression of each module that has costs. The keys are the modules' paths; the path "" is the whole model."""
        return self._nonzero(self._paths, what, phase, lambda path: {"module": path})

    def by_operator(self, what: str = "flops", phase: str = "forward") -> dict[str, Expr]:
        """Return the expression of each operator that has costs. The keys are the operators' names."""
        return self._nonzero(self.operators, what, phase, lambda op: {"operator": op})

    flops = property(lambda self: self.expression("flops"))
    macs = property(lambda self: self.expression("macs"))
    activations = property(lambda self: self.expression("activations"))
    bytes = property(lambda self: self.expression("bytes"))
    param_bytes = property(lambda self: self.expression("param_bytes"))
    memory = property(lambda self: self.expression("memory"))
    backward_flops = property(lambda self: self.expression("flops", phase="backward"))
    training_flops = property(lambda self: self.expression("flops", phase="training"))

    def latex(self, what: str = "flops", phase: str = "forward") -> str:
        """Return a quantity as LaTeX. Names of sizes with several letters are printed upright."""
        from sympy import Symbol, latex

        expression = self.expression(what, phase=phase)
        names = {symbol: rf"\mathrm{{{symbol.name}}}" for symbol in expression.atoms(Symbol) if len(symbol.name) > 1}
        return str(latex(expression, symbol_names=names))

    def to_python(self, what: str = "flops", phase: str = "forward") -> str:
        """Return the source of a Python function that computes a quantity from the sizes.

        The function imports no package. It raises ValueError for sizes outside the domain.
        """
        return python_function(self, what, phase)

    def plot(self, x: str, what: str = "flops", phase: str = "forward", **others: int) -> Picture:
        """Return a chart of a quantity over the size ``x``, stacked by operator. ``others`` set the other sizes.

        A notebook shows the chart. ``save("form.svg")`` or ``save("form.png")`` writes it to a file.
        """
        return plot(self, x, what, phase, others)

    def packed(self, size: str, **others: int) -> ClosedForm:
        """Return the polynomials for a row in which several sequences are packed. Each sequence attends only to itself.

        For the size "seq", the form has two sizes: ``sum_seq``, the sum of the sequences' lengths, and ``sum_seq_squared``, the sum of the
        squares of these lengths. ``others`` set all other sizes. Raises ClosedFormError if anything but attention grows with the square.
        """
        if {size, *others} != {*self.sizes}:
            raise InputError(
                f"packed() needs the name of one size ({', '.join(self.sizes)}) and a value for every other size, "
                "e.g. packed('seq', batch=8)"
            )
        axis = self.sizes.index(size)
        length = self.example[axis]
        point = [others.get(name, length) for name in self.sizes]
        cells: dict[str, list[Cell]] = {what: [] for what in QUANTITIES}
        for what in REQUIRED:
            costs: dict[Key, Polynomial] = {}
            for key, polynomial in self.cell_at(point, what).costs.items():
                for i, name in enumerate(self.sizes):
                    polynomial = fixed(polynomial, i, others[name]) if i != axis else polynomial
                powers = {monomial[axis]: each for monomial, each in polynomial.items()}
                phase, path, op = key
                of_each = ATTENTION in op
                if max(powers, default=0) > (2 if of_each else 1) or (of_each and 0 in powers):
                    raise ClosedFormError(
                        f"no closed form for packed sequences: the cost of {op} in {path or 'the model'} ({phase}) cannot be "
                        f"calculated from sum_{size} and sum_{size}_squared"
                    )
                costs[key] = {((0, 0), (1, 0), (0, 1))[power]: each for power, each in powers.items()}
            cells[what].append(Cell((Range(1, None), Range(1, None)), costs))
        sizes = Size(f"sum_{size}", length), Size(f"sum_{size}_squared", length**2)
        return ClosedForm(self.model, sizes, cells, self.convention, self.attention, self.checked)

    def __str__(self) -> str:
        return text(self)

    def __repr__(self) -> str:
        return f"<ClosedForm {self.model} in {', '.join(self.sizes)}: {self.domain()}>"

    def _nonzero(
        self, keys: Iterable[str], what: str, phase: str, of: Callable[[str], dict[str, str]]
    ) -> dict[str, Expr]:
        has = [key for key in keys if any(self.polynomial(cell, what, phase, **of(key)) for cell in self.pieces(what))]
        return {key: self.expression(what, phase=phase, **of(key)) for key in has}
