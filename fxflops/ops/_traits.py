"""Facts about ops besides their counts: a trait is the set of the ops that have it.

An op is put into it where it is registered, ``zero("create", *named("empty"), op="empty", traits=[EMPTY])``: by its name and by
its targets, so that both can be asked for.
"""

from __future__ import annotations

from typing import Any

Trait = set[Any]

# What is read and written
LOOKUPS: Trait = set()  # only the elements that the indices take are read
OVERWRITES: Trait = set()  # the first argument is written to, and not read
UNREAD: Trait = (
    set()
)  # the first argument's values do not matter: it gives a shape, or the others are put into a copy of it
MAYBE_NOTHING: Trait = set()  # the argument is returned where there is nothing to do
COPIES: Trait = set()  # the result is as unwritten as what is given
SHARING: Trait = set()  # a tensor's memory is handed out, where anybody may write to it unseen

# What is made
FACTORIES: Trait = set()  # a tensor on the device that is told
EMPTY: Trait = set()  # a tensor whose memory nobody has written to
GIVEN: Trait = set()  # a tensor of values that are given
SEQUENCES: Trait = set()  # a tensor of positions
INTEGERS: Trait = set()  # a tensor of integers where no dtype is told

# What metadata tells
METADATA: Trait = set()  # a tensor on meta answers as the one that it stands for
RESHAPING: Trait = set()  # in place, a tensor lies otherwise, and no element is read or written
