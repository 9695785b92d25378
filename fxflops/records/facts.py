"""Facts about a tensor that its shape and dtype do not show. They are kept in ``Spec.facts``, by name.

===================  ==============================================================  ========================  =============================
fact                 what it says                                                    written by                read by
===================  ==============================================================  ========================  =============================
``pairs``            the query-key pairs that an attention mask keeps                ``attention_pairs.py``    attention's formulas
:data:`SHARE`        the same for a product of an unfused gradient of attention      ``attention_pairs.py``    ``counting/masked.py``
``row``              an index out of range, and the rows of the table                ``lookups.py``            :func:`absent_row`
``path``             the order in which an einsum contracts its operands             ``recording.py``          ``ops/einsum.py``
``requires_grad``    whether an argument of an RNN's backward needs a gradient       ``attention_pairs.py``    ``ops/mkldnn_rnn.py``
``nnz``, ``parts``   elements of a sparse tensor, tensors in a nested tensor         ``records/tensors.py``    formulas, ``counts.py``
a library's facts    what a function of another library computes, e.g. the pairs     ``library_calls.py``      the library's formulas
===================  ==============================================================  ========================  =============================

A fact that depends on more than the metadata of the arguments must not come from the memo (``trace/memo.py``). There are four ways:

- An operator whose op is in :data:`BEYOND_METADATA` is observed each time.
- Functions and leaf modules on meta are repeated from the memo, and the fact is then read anew: ``pairs`` in ``FunctionCalls._repeat``,
  ``row`` in ``MetaWorld.repeat_call``.
- A profile does not read :data:`BEYOND_METADATA`: ``_is_learnable`` in ``profiled_world.py`` says which calls are observed each time, such as
  attention with a mask. An index out of range raises there.
- A fact that depends on a setting of torch, such as einsum's ``path``: the setting is in the call's key (``World.read_torch_settings``).
"""

from __future__ import annotations

from typing import Any

from .calls import Call
from .specs import Spec, specs_in

ATTENTION = "attention"
ATTENTIONS = frozenset({ATTENTION, "attention_backward"})
"""The ops whose results have the fact ``pairs``: the number of pairs that the mask kept."""
EMBEDDING = "embedding"
"""The op whose result has the fact ``row`` if an index is out of range: the index and the table's number of rows."""
RNN_BACKWARD = "rnn_backward"
"""The op whose arguments have the fact ``requires_grad``."""
BEYOND_METADATA = frozenset({*ATTENTIONS, EMBEDDING, RNN_BACKWARD})
"""The ops with a fact that the metadata of their arguments (shape, dtype and so on) does not decide."""
SHARE = "share"
"""The name of a fact of calls that compute attention's gradients pair by pair, outside a fused kernel. The fact has three items: the
number of pairs that the mask kept, the number of all pairs, and whether the result sums over pairs instead of having an element for
each pair."""


def pairs_in(out: Any, all_pairs: int | None = None) -> Any:
    """Return the number of query-key pairs that the mask kept, from an attention call's result; ``all_pairs`` if no mask was read."""
    return fact_in(out, "pairs", all_pairs)


def fact_in(out: Any, name: str, default: Any = None) -> Any:
    """Find the first tensor in a call's result that has a fact of this ``name``, and return the fact; ``default`` if no tensor has this fact."""
    return next((spec.facts[name] for spec in specs_in(out) if name in spec.facts), default)


def absent_row(call: Call) -> str:
    """If a call is a table lookup whose index is out of range, return a sentence that says so. For any other call, return ""."""
    row = fact_in(call.out, "row") if call.op == EMBEDDING else None
    return (
        "looks up row {:,} of a table with {:,} rows: the model itself raises an IndexError".format(*row) if row else ""
    )


def with_facts(out: Any, **facts: Any) -> Any:
    """Return a call's result with these facts added to its first tensor. If a fact's value is None, the fact is removed."""
    if isinstance(out, Spec):
        return out.with_facts(**facts)
    items = list(out)
    for i, item in enumerate(items):
        if isinstance(item, Spec):
            items[i] = item.with_facts(**facts)
            break
    return tuple(items)
