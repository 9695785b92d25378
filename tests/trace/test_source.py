"""A call's source line is the author's, not one of a library that it went through."""

from __future__ import annotations

import contextlib
import inspect
import subprocess
import sys

import pytest
import torch
from torch import nn

import fxflops
from fxflops.trace.source import author_line, is_library

TYPED_IN = """
import torch, fxflops
from torch import nn
torch.library.define("fxflops_tests::typed_in", "(Tensor x) -> Tensor")
torch.library.impl("fxflops_tests::typed_in", "default")(lambda x: x.clone())
class Own(nn.Module):
    def forward(self, x):
        return torch.ops.fxflops_tests.typed_in(x)
print(fxflops.analyze(Own(), torch.ones(2), repeats=0, progress=False).missing[0].site)
"""


def test_files_of_libraries_and_of_authors() -> None:
    libraries = [torch.__file__, nn.__file__, fxflops.__file__, contextlib.__file__, "<string>"]
    authors = [__file__, pytest.__file__, "<stdin>", "<ipython-input-1-abc>", "/tmp/ipykernel_7/1.py"]
    assert [file for file in libraries + authors if is_library(file)] == libraries


def test_what_was_typed_in_has_lines_too() -> None:
    ran = subprocess.run([sys.executable, "-"], input=TYPED_IN, capture_output=True, text=True, check=True)
    assert ran.stdout == "<stdin>:8\n"


def test_the_line_of_who_asks() -> None:
    assert author_line() == f"{__file__}:{inspect.getsourcelines(test_the_line_of_who_asks)[1] + 1}"
