"""Tests marked ``cuda`` are skipped where there is no CUDA device."""

from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)  # models here are small, and several processes share the cores


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "cuda" in item.keywords:
            item.add_marker(skip)


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Functions and modules by name: an address in a test's id would differ from process to process."""
    text = repr(val)
    if isinstance(val, (str, int, float, bool, type)) or " at 0x" not in text:
        return None
    return getattr(val, "__name__", None) or type(val).__name__
