"""Describe the machine that the benchmark tables were made on."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """Return the processor's name from the system."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()
