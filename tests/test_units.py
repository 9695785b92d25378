"""Human-readable numbers, printed and parsed."""

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


def test_counts_are_read() -> None:
    counts = {
        "4.2G": 4_200_000_000,
        "30m": 30_000_000,
        "8,227,340,288": 8_227_340_288,
        "1e9": 10**9,
        "1.5 T": 15 * 10**11,
    }
    assert {text: units.read_count(text) for text in counts} == counts


def test_sizes_are_read() -> None:
    sizes = {"2GiB": 2**31, "500MB": 500_000_000, "1024": 1024, "1.5 kib": 1536, "10B": 10}
    assert {text: units.read_size(text) for text in sizes} == sizes


def test_seconds_are_read() -> None:
    seconds = {"50ms": 0.05, "1.5s": 1.5, "800us": 0.0008, "2": 2.0, "3 ns": 3e-9}
    assert {text: units.read_seconds(text) for text in seconds} == seconds


@pytest.mark.parametrize("text", ["4.2Q", "-3", "", "G", "1.2.3", "nan"])
def test_what_is_no_number_is_said(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a number with one of the units k, M, G, T, P, E, such as 4\.2G"):
        units.read_count(text)
