"""What the tables say of the machine that they were made on."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """The processor's name, as the system tells it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()
