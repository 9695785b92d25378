"""Sphinx's roles in docstrings, such as :func:`count`, as links where the reference has the name, and as code elsewhere."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(func|class|meth|data|attr|mod|exc):`[~.]*([\w.]+)`")


class Roles(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is None:
            return

        def link(role: re.Match[str]) -> str:
            kind, name = role[1], role[2].removeprefix("fxflops.")
            owner = obj if obj.is_class else obj.parent
            # A method alone is one of the class that the docstring belongs to.
            place = owner.path if kind in ("meth", "attr") and owner is not None and "." not in name else "fxflops"
            return f'<autoref identifier="{place}.{name}" optional><code>{name}</code></autoref>'

        obj.docstring.value = ROLE.sub(link, obj.docstring.value)
