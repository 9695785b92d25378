"""Numbers as people read them."""

from __future__ import annotations

import pytest

from fxflops import units


def test_counts_are_si() -> None:
    assert units.count(35164979282) == "35.16 G"
    assert units.count(999) == "999"
    assert units.count(1234567, "") == "1,234,567"
    assert units.count(1234567, "G") == "0.00 G"
    assert units.count(245.7e6) == "245.7 M"
    assert units.count(0) == "0"
    assert units.count(None) == "-"


def test_bytes_are_binary() -> None:
    assert units.size(346030080) == "330.0 MiB"
    assert units.size(1023) == "1,023 B"
    assert units.size(1536) == "1.50 KiB"
    assert units.size(0) == "0 B"


def test_seconds() -> None:
    assert units.seconds(0.0021) == "2.10 ms"
    assert units.seconds(2.5) == "2.50 s"
    assert units.seconds(3e-9) == "3.00 ns"
    assert units.seconds(0.0) == "0.00 s"


def test_an_unknown_unit_names_the_known() -> None:
    with pytest.raises(ValueError, match="'k', 'M', 'G'"):
        units.count(1, "Q")


def test_percent_of_nothing_is_unknown() -> None:
    assert units.percent(1, 4) == 25.0
    assert units.percent(1, 0) is None
    assert units.percent(None, 4) is None
