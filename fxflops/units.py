"""Numbers as people read them: counts in SI, bytes in KiB/MiB/GiB, seconds in the unit that fits."""

from __future__ import annotations

SI = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
IEC = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
TIME = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}

NOT_MEASURED = "-"


def count(value: float | None, unit: str | None = None) -> str:
    """A count in SI units: ``35164979282 -> '35.16 G'``. ``unit`` fixes the prefix ("G"); "" gives the whole number."""
    if value is None:
        return NOT_MEASURED
    if unit == "":
        return f"{value:,.0f}"
    return _scaled(value, SI, unit, whole="")


def size(value: float | None, unit: str | None = None) -> str:
    """Bytes in binary units: ``346030080 -> '330.0 MiB'``. ``unit`` fixes it ("MiB")."""
    return NOT_MEASURED if value is None else _scaled(value, IEC, unit, whole="B")


def seconds(value: float | None, unit: str | None = None) -> str:
    """Seconds in the unit that fits: ``0.0021 -> '2.10 ms'``. ``unit`` fixes it ("ms")."""
    return NOT_MEASURED if value is None else _scaled(value, TIME, unit, whole=None)


def percent(part: float | None, whole: float | None) -> float | None:
    """The share in percent, None where either is unknown or the whole is 0."""
    return None if part is None or not whole else 100.0 * part / whole


def _scaled(value: float, units: dict[str, float] | dict[str, int], unit: str | None, whole: str | None) -> str:
    if unit is None and value == 0:
        unit = "" if "" in units else list(units)[-1] if whole is None else whole
    if unit is None:
        fitting = [name for name, factor in units.items() if abs(value) >= factor]
        unit = fitting[-1] if fitting else next(iter(units))
    elif unit not in units:
        raise ValueError(f"unknown unit {unit!r}: one of {', '.join(map(repr, units))}")
    scaled = value / units[unit]
    if unit == whole:
        return f"{value:,.0f} {unit}".rstrip()
    digits = 2 if abs(scaled) < 100 else 1
    return f"{scaled:,.{digits}f} {unit}"
