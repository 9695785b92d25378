"""Mixtures of experts. The functions here find out from the calls of a run how many experts each token uses. Configs have no common name
for this number."""

from __future__ import annotations

from ..records import specs_in
from ..report.report import Report
from ..roofline.traffic import inputs_of, nbytes
from .weights import Weight

GROUPED, ROUTER = "grouped_mm", "topk"
"""Two ops: ``grouped_mm`` multiplies by the weights of all experts in one call, ``topk`` chooses the experts of each token."""


class Experts:
    """The experts used in a run of ``tokens`` tokens. The first dim of an expert weight is the number of experts."""

    def __init__(self, report: Report, tokens: int) -> None:
        self._tokens = tokens
        self._taken: dict[tuple[str, int], int] = {}
        self._routers: list[tuple[str, int, int]] = []
        self._holders = {
            (scope.path, spec[0]) for scope in report.scopes for spec in scope.params.values() if spec.ndim == 3
        }
        for each in report.counted:
            call = each.call
            if call.op == GROUPED:
                # The first input has one row for each pair of a token and an expert used by this token.
                rows, weights = inputs_of(call)[:2]
                if rows.ndim == 2 and weights.ndim == 3:
                    self._taken[call.path, weights[0]] = -(-rows[0] // tokens)
            elif call.op == ROUTER:
                scores, chosen = inputs_of(call)[0], next(specs_in(call.out))
                if scores.ndim and chosen.ndim:
                    self._routers.append((call.path, scores[-1], chosen[-1]))

    def bytes_of_a_token(self, weight: Weight) -> int:
        """Return the bytes of a weight that one token reads. Of an expert weight, a token reads only the part of its own experts."""
        whole, spec = nbytes(weight.spec), weight.spec
        if not spec.ndim or not spec[0]:
            return whole
        place = weight.path, spec[0]
        if weight.taken is not None:
            is_of_experts = place in self._taken or place in self._holders or self._chosen(weight.path, spec[0], True)
            return -(-weight.taken // self._tokens) if is_of_experts else whole
        if spec.ndim != 3:
            return whole
        taken = self._taken.get(place) or self._chosen(weight.path.rpartition(".")[0], spec[0])
        return whole * taken // spec[0] if taken else whole

    def _chosen(self, path: str, experts: int, here: bool = False) -> int:
        """The router in the module at ``path`` chooses a number of the ``experts`` experts for each token. Return this number; 0 if the
        module has no such router.

        With ``here``, routers in submodules are ignored.
        """
        inside = f"{path}." if path else ""
        for at, among, chosen in self._routers:
            if among == experts and (at == path or (not here and at.startswith(inside))):
                return chosen
        return 0
