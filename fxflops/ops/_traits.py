"""Facts about ops besides their counts: a trait is the set of the ops that have it.

Ops join a trait where they are registered, ``zero("create", *named("empty"), op="empty", traits=[EMPTY])``. Look up by name or
target.
"""

from __future__ import annotations

from typing import Any

Trait = set[Any]

# Reads and writes
LOOKUPS: Trait = set()  # only the indexed elements are read
OVERWRITES: Trait = set()  # the first argument is written, but not read
UNREAD: Trait = set()  # the first argument's values do not matter: it gives a shape, or its copy is written to
MAYBE_NOTHING: Trait = set()  # returns its argument if there is nothing to do
COPIES: Trait = set()  # the result is uninitialized if the argument is
SHARING: Trait = set()  # hands out a tensor's memory, which others may then write to unseen

# Results
FACTORIES: Trait = set()  # a tensor on the requested device
EMPTY: Trait = set()  # a tensor with uninitialized memory
GIVEN: Trait = set()  # a tensor of the values passed in
SEQUENCES: Trait = set()  # a tensor of a sequence of numbers
INTEGERS: Trait = set()  # a tensor of integers, unless a dtype is passed

# Metadata
METADATA: Trait = set()  # a meta tensor gives the same answer as the tensor that it replaces
RESHAPING: Trait = set()  # in place, changes a tensor's strides without reading or writing elements
