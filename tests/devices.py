"""The devices that a test runs on, as values of its parameter ``device``: the CPU, and CUDA where there is one."""

from __future__ import annotations

import pytest

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
