"""Format numbers to be read: counts with SI prefixes, bytes in KiB/MiB/GiB, seconds in ns/us/ms/s. Parse such numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

SI = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
ELEMENTS = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
IEC = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
TIME = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}

DECIMAL = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}

NUMBER = re.compile(r"(\d[\d_,]*(?:\.\d*)?|\.\d+)(e[+-]?\d{1,3})?\s*([a-zµ]*)", re.I)
NOT_MEASURED = "-"


def count(value: float | None, unit: str | None = None) -> str:
    """Format a count with an SI prefix: ``35164979282 -> '35.16 G'``. ``unit`` is the prefix to use ("G"); with "" all digits are shown."""
    return NOT_MEASURED if value is None else _scaled(value, SI, unit, whole="")


def billions(value: float | None, unit: str | None = None) -> str:
    """Format a number of parameters in thousands, millions or billions: ``7e9 -> '7.00 B'``. ``unit`` is the suffix to use ("B")."""
    return NOT_MEASURED if value is None else _scaled(value, ELEMENTS, unit, whole="")


def amount(value: float, of: str) -> str:
    """Format a count with its noun: ``amount(1.45e11, "FLOP/s") -> '145.0 GFLOP/s'``, ``amount(800, "FLOPs") -> '800 FLOPs'``."""
    number = count(value)
    return f"{number}{of}" if " " in number else f"{number} {of}"


def size(value: float | None, unit: str | None = None) -> str:
    """Format bytes in a binary unit: ``346030080 -> '330.0 MiB'``. ``unit`` is the unit to use ("MiB")."""
    return NOT_MEASURED if value is None else _scaled(value, IEC, unit, whole="B")


def seconds(value: float | None, unit: str | None = None) -> str:
    """Format seconds in a readable unit: ``0.0021 -> '2.10 ms'``. ``unit`` is the unit to use ("ms")."""
    unit = "s" if unit is None and value == 0 else unit
    return NOT_MEASURED if value is None else _scaled(value, TIME, unit, whole=None)


def percent(part: float | None, whole: float | None) -> float | None:
    """Return how many percent of ``whole`` the ``part`` is; None if either number is unknown or ``whole`` is 0."""
    return None if part is None or not whole else 100.0 * part / whole


def read_count(text: str) -> int:
    """Parse a count: ``"4.2G" -> 4200000000``, ``"4 GFLOPs" -> 4000000000``. Prefixes may be in upper or lower case.

    Raises ValueError, with a list of the units, for text that is not a count.
    """
    number = re.sub(r"(?i)(flops?|macs?|params?)$", "", text.strip())
    return int(_read(number or text, SI, "4.2G, 30M or 8227340288"))


def read_tokens(text: str) -> int:
    """Parse a number of tokens or parameters: ``"15T" -> 15000000000000``, ``"300B" -> 300000000000``. B is a billion."""
    return int(_read(text, {**SI, **ELEMENTS}, "15T, 300B or 1000000"))


def read_whole(text: str) -> int:
    """Parse a whole number of at least 1, in digits: ``"8192" -> 8192``. "8k" is refused, since it may mean 8000 or 8192."""
    digits = text.strip().replace(",", "").replace("_", "")
    if not (digits.isdecimal() and int(digits)):
        raise ValueError(f"{text!r} is not a whole number of at least 1: write all digits, e.g. 8192")
    return int(digits)


def read_size(text: str) -> int:
    """Parse a size: ``"2GiB" -> 2147483648``, ``"2GB" -> 2000000000``; a number without a unit is bytes."""
    return int(_read(text, {"": 1, **IEC, **DECIMAL}, "2GiB, 500MB or 1048576"))


def read_seconds(text: str) -> float:
    """Parse a time: ``"50ms" -> 0.05``; a number without a unit is seconds."""
    exact = {name: 1 / Fraction(round(1 / factor)) for name, factor in TIME.items()}
    return float(_read(text, {"": 1, **exact, "µs": exact["us"]}, "50ms, 1.5s or 800us"))


def _read(text: str, units: Mapping[str, int | Fraction], examples: str) -> Fraction:
    found = NUMBER.fullmatch(text.strip())
    factors = {name.lower(): factor for name, factor in units.items()}
    if found is None or found[3].lower() not in factors:
        raise ValueError(
            f"{text!r} is not a number with one of the units {', '.join(filter(None, units))}, such as {examples}"
        )
    number = re.sub("[,_]", "", found[1]) + (found[2] or "")
    return Fraction(number) * factors[found[3].lower()]


def _scaled(value: float, units: dict[str, float] | dict[str, int], unit: str | None, whole: str | None) -> str:
    if unit is None:
        fitting = [name for name, factor in units.items() if abs(value) >= factor]
        unit = fitting[-1] if fitting else next(iter(units))
    elif unit not in units:
        raise ValueError(f"unknown unit {unit!r}; expected one of {', '.join(map(repr, units))}")
    scaled = value / units[unit]
    if unit == whole:
        return f"{value:,.0f} {unit}".rstrip()
    digits = 2 if abs(scaled) < 100 else 1
    return f"{scaled:,.{digits}f} {unit}"
