"""Results that show lines and tables one below the other; one of the tables is what is exported."""

from __future__ import annotations

from collections.abc import Iterator

from .exports import Table, Tabular


class Composed(Tabular):
    """A result whose ``_pieces`` are shown: lines of text ("" parts two tables) and tables."""

    def _pieces(self) -> Iterator[str | Table]:
        raise NotImplementedError

    def _text(self) -> str:
        return "\n".join(map(str, self._pieces()))

    def _blocks(self) -> Iterator[str]:
        from .html import note

        return (note(each) if isinstance(each, str) else each._shown() for each in self._pieces() if each != "")
