"""The parameters that a token uses: in a mixture of experts, only those of the experts that it was sent to."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from ..errors import InputError
from ..report.report import Report
from ._source import Source, module_term


class ActiveParameters(NamedTuple):
    """The parameters active per token, by the two definitions in use, and all parameters.

    ``with_tables`` includes the router and the input and output tables; ``without_input_table`` excludes the input table, which
    multiplies nothing; a tied table is the output's. Publishers differ: Mistral and Qwen state the first, OpenAI the second.
    """

    with_tables: float
    without_input_table: float
    total: int


def active_parameters(report: Report) -> ActiveParameters:
    """Return the parameters active per token, by the routing that ran.

    An expert's parameters are weighted by the share of tokens sent to it, which its products show.
    Raises InputError if the run's inputs do not show their tokens.
    """
    source = Source(report)
    tokens = sum(source.lengths)
    elements = {module.path: module.params or 0 for module in report._run.modules if module_term(module) == "experts"}
    met: Counter[str] = Counter()
    for each in report.counted:
        if each.call.phase == "forward" and each.call.path in elements:
            met[each.call.path] += each.macs
    if any(elements.values()) and not any(met.values()):
        raise InputError("no product of an expert was seen in the run, so the routing is unknown")
    experts = sum(macs / tokens for macs in met.values())
    parameters = source.parameters
    active = sum(parameters.values()) - parameters["experts"] + experts
    return ActiveParameters(active, active - parameters["input table"], sum(parameters.values()))
