"""Why the sides differ: what the set and case, the way, and the place with both values as they are printed must match; then the
reason as in CHANGELOG.md. The list here is of 74eede1 and of what came after it.

An entry reads ``("fuzz/.*", "train", r"calls.* einsum .*: 12 -> 6", "an einsum's backward was counted twice")``. In place of a
pattern there may be a function of the text, where the numbers decide. Remove entries that explain nothing any more: a new reference
starts with an empty list.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Matches = str | Callable[[str], bool]


def numbers(text: str) -> tuple[int, int]:
    """Return both numbers of a place that has one on each side; of others zeros."""
    found = re.fullmatch(r".*: (\d+) -> (\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def more_by_eights(text: str) -> bool:
    """Return True where activations take a few times 8 bytes more."""
    old, new = numbers(text)
    return ".live[3]: " in text and 0 < new - old <= 8 * 1000 and (new - old) % 8 == 0


def more_by_booleans(text: str) -> bool:
    """Return True where the peak is higher by the booleans of 1030 x 1030 scores, those of the rows, and a number."""
    old, new = numbers(text)
    return text.startswith("memory.") and new - old - 1030 * 1030 - 1030 in (2, 4, 8)


CAUSES: list[tuple[Matches, Matches, Matches, str]] = [
    (
        ".*",
        ".*",
        r"calls\[\d+\] complex (abs|addcdiv|div|mean|neg|norm|pow|reciprocal|sgn|square|std|var) .*\.cost\.\w+: .*",
        "arithmetic of complex numbers counts the real operations of its definition: a quotient was 1, now 11",
    ),
    (
        ".*",
        ".*",
        r"calls\[\d+\] .*\.out(\[0\])?\.tensor\[2\]: 2 items, here 0:  -> 4 items, here 2: strided, .*\"(pairs|share)\".*",
        "the pairs that a mask leaves are kept with each call of attention and of its products, for rooflines",
    ),
    (
        ".*",
        ".*",
        r"traffic\[\d+\] attention(_backward)? .*\.(flops|bound_seconds|binds): .*",
        "attention under a mask without values has only its bytes in `roofline`, as it may leave no pairs",
    ),
    (
        ".*",
        "train",
        more_by_eights,
        "autograd keeps 8 bytes for the number in `x * 0.5`, on the CPU",
    ),
    (
        "odd/another's in a leaf",
        ".*",
        r"timeline.*\.live\[0\]: 576 -> 864",
        "parameters that a model uses without registering them are parameters in the memory, they were buffers",
    ),
    (
        "programs/.*",
        "count",
        more_by_booleans,
        "attention by plain products has the booleans of its softmax, with which rows without a pair are found",
    ),
    (
        "programs/.*",
        "count",
        r"live_at_peak\[0\]: 0 items, here 0:  -> 3 items, here 3: attention .*, attention .*, attention .*",
        "attention by plain products has the booleans of its softmax, with which rows without a pair are found",
    ),
    (
        ".*",
        ".*",
        r"live_at_peak\[\d+\] (attention|lstm|gru|rnn) .*\.spec\.tensor\[0\]\[0\]: .*",
        "a storage that a kernel makes inside is shown in another of its shapes, with the same bytes",
    ),
    (
        r"programs/\d+ values",
        "count",
        r"timeline\.repeated: \d+ -> \d+",
        "a table of the forward lives as long as it does: it was freed with the first view of it, and entered again",
    ),
    (
        ".*",
        ".*",
        r"timeline\.repeated: \d+ -> \d+",
        "a call that returns its input, such as a dropout, adds no moment to the memory over time that repeats the one before",
    ),
    (
        "programs/123 values",
        "count",
        r"timeline\[25\] to .*|timeline\[26\]: 34 items, here 1: to in \(root\) -> 33 items, here 0: ",
        "a table of the forward lives as long as it does: it was freed with the first view of it, and entered again",
    ),
    (
        "torchvision/swin_.*|transformers/(mask2former|kimi_k25)|menagerie/(rs_L717_prosst|lerobot_vla_policies|rs_L933_2_smilesbert)\\..*",
        "count|train",
        r"timeline\[\d+\] .*\.live\[3\]: .*",
        "a table of the forward lives as long as it does: it was freed with the first view of it, and entered again",
    ),
    (
        "transformers/(dots3_note_text|kimi_k25)",
        "train",
        r"calls\[\d+\]: .*, here 0:  -> .*, here 6: zeros_like in .*, copy in .*, new_empty_strided in .*|"
        r"calls\[\d+\]: .*, here 1: zeros in .* -> .*, here 0: ",
        "gradients are followed through writes to a view of a table that the forward makes",
    ),
    (
        "ranks/fsdp.*",
        "simulate.*",
        r"timeline.*|figures\[0\]\[2\]\[3\]: .*|figures\[0\]\[3\].*|memory.*|live_at_peak.*",
        "memory that is freed by resizing a storage, as FSDP does, is seen at the next call",
    ),
    (
        "ranks/ring",
        "simulate.*",
        r"timeline.*\.live\[[12]\]: .*|figures\[0\]\[3\]\.(inputs|buffers): .*|memory.*|live_at_peak.*",
        "tensors that a model holds in an attribute count as its buffers, from the start",
    ),
    (
        "menagerie/rs_L933_2_smilesbert.0",
        "count",
        r"timeline\[9\]: 136 items, here 0:  -> 137 items, here 1: detach .*",
        "a table of the forward lives as long as it does: it was freed with the first view of it, and entered again",
    ),
    (
        "menagerie/rs_L933_2_smilesbert.0",
        "train",
        r"timeline.*",
        "tensors that a model holds in an attribute count as its buffers, from the start",
    ),
    (
        ".*",
        "train",
        r"timeline\[\d+\]: .*, here 0:  -> .*, here 1: (mul|div) in .*",
        "autograd keeps 8 bytes for the number in `x * 0.5`, on the CPU",
    ),
]
