"""Count the parameters that a token uses. In a mixture of experts, a token uses only the experts that the router sent it to."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from ..errors import InputError
from ..records import FORWARD
from ..report.report import Report
from ._source import Source, module_term


class ActiveParameters(NamedTuple):
    """The number of parameters active per token, by each of the two definitions in use. ``ActiveParameters`` also has the total number of parameters.

    ``with_tables`` includes the router, the input table and the output table. ``without_input_table`` excludes the input table, which
    multiplies nothing. If the output layer shares the input table, the table is included. Mistral and Qwen publish ``with_tables``, OpenAI
    publishes ``without_input_table``.
    """

    with_tables: float
    without_input_table: float
    total: int


def active_parameters(report: Report) -> ActiveParameters:
    """Return the number of parameters active per token in the report's run.

    The parameters of an expert are weighted by the share of tokens that were sent to the expert. The MACs of the expert show this share.
    Raises InputError if the run's inputs do not show the number of tokens.
    """
    source = Source(report)
    tokens = sum(source.lengths)
    elements = {module.path: module.params or 0 for module in report._run.modules if module_term(module) == "experts"}
    met: Counter[str] = Counter()
    for each in report.counted:
        if each.call.phase == FORWARD and each.call.path in elements:
            met[each.call.path] += each.macs
    if any(elements.values()) and not any(met.values()):
        raise InputError("the report has no MACs of experts, so it is unknown which experts the tokens were sent to")
    experts = sum(macs / tokens for macs in met.values())
    parameters = source.parameters
    active = sum(parameters.values()) - parameters["experts"] + experts
    return ActiveParameters(active, active - parameters["input table"], sum(parameters.values()))
