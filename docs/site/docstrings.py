"""What the docstrings write otherwise than Markdown: Sphinx's roles, such as :func:`count`, and sessions after ``>>>``."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(func|class|meth|data|attr|mod|exc):`[~.]*([\w.]+)`")
SESSION = re.compile(r"^>>> .*(?:\n.+)*", re.M)
FLAGS = re.compile(r" *# doctest: .*")


class Docstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is None:
            return

        def link(role: re.Match[str]) -> str:
            """Return a link where the reference has the name, and code elsewhere."""
            kind, name = role[1], role[2].removeprefix("fxflops.")
            owner = obj if obj.is_class else obj.parent
            # A method alone is one of the class that the docstring belongs to.
            place = owner.path if kind in ("meth", "attr") and owner is not None and "." not in name else "fxflops"
            return f'<autoref identifier="{place}.{name}" optional><code>{name}</code></autoref>'

        text = ROLE.sub(link, obj.docstring.value)
        obj.docstring.value = SESSION.sub(lambda session: f"```pycon\n{FLAGS.sub('', session[0])}\n```", text)
