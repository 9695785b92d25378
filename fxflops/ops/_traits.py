"""Properties of ops besides their counts. A trait is the set of ops that have one property.

Ops are added to a trait where they are registered: ``zero("create", *named("empty"), op="empty", traits=[UNINITIALIZED])``. A trait
contains the names and the targets of its ops.
"""

from __future__ import annotations

from typing import Any

Trait = set[Any]

# Reads and writes
LOOKUPS: Trait = set()  # only the indexed elements are read
OVERWRITES: Trait = set()  # the first argument is written, but not read
UNREAD: Trait = (
    set()
)  # the first argument's values do not matter: only its shape is used, or a copy of it is overwritten
MAYBE_NOTHING: Trait = set()  # may return its argument unchanged
COPIES: Trait = set()  # the result is uninitialized if the argument is
SHARING: Trait = set()  # exposes a tensor's memory, so that other code can write to it unseen

# Results
FACTORIES: Trait = set()  # a tensor on the requested device
UNINITIALIZED: Trait = set()  # a tensor with uninitialized memory
GIVEN: Trait = set()  # a tensor of the values passed in
SEQUENCES: Trait = set()  # a tensor of a sequence of numbers
INTEGERS: Trait = set()  # a tensor of integers, unless a dtype is passed

# Metadata
METADATA: Trait = set()  # gives the same answer for a meta tensor as for the real tensor
RESHAPING: Trait = set()  # in place, changes a tensor's strides without reading or writing elements
