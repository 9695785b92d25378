"""The devices a test runs on, as values of its ``device`` parameter: the CPU, and CUDA if there is a device."""

from __future__ import annotations

import pytest

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
