"""``import fxflops`` in a fresh process loads nothing optional, and public names refer to the right objects."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

import fxflops

OPTIONAL = ("rich", "tabulate", "pandas", "timm", "typer", "torchvision", "transformers")


def loaded_after(*statements: str) -> list[set[str]]:
    """The modules loaded in one fresh process after each of these statements."""
    told = "import sys\nprint(*sorted(sys.modules))"
    code = "\n".join(f"{statement}\n{told}" for statement in statements)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [set(line.split()) for line in run.stdout.splitlines()]


def optional(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules} & set(OPTIONAL)


@pytest.fixture(scope="module")
def ours() -> dict[str, set[str]]:
    """The modules loaded after ``import fxflops``, its first name, all of its names, the first printed report and an adapter."""
    show = "str(fxflops.count(torch.nn.Linear(2, 2), torch.ones(1, 2)))"
    adapters = "assert fxflops.adapters.thop.profile.__module__ == 'fxflops.adapters.thop'"
    statements = {
        "package": "import fxflops",
        "name": "from fxflops import count",
        "names": "from fxflops import *",
        "report": f"import fxflops, torch; {show}",
        "adapters": f"{adapters}; assert not hasattr(fxflops.adapters, 'nothing')",
    }
    return dict(zip(statements, loaded_after(*statements.values()), strict=True))


@pytest.fixture(scope="module")
def torchs() -> dict[str, set[str]]:
    """The modules that torch itself loads when it is imported, and when it runs a layer on meta."""
    run = "torch.nn.Linear(2, 2).to('meta')(torch.ones(1, 2, device='meta'))"
    return dict(zip(("package", "run"), loaded_after("import torch", run), strict=True))


def test_nothing_optional_is_loaded(ours: dict[str, set[str]], torchs: dict[str, set[str]]) -> None:
    assert optional(ours["names"]) <= optional(torchs["package"])


def test_torch_is_loaded_with_the_first_name(ours: dict[str, set[str]]) -> None:
    assert not ours["package"] & {"torch", "numpy", *OPTIONAL}
    assert "torch" in ours["name"]


def test_the_compiler_is_not_loaded(ours: dict[str, set[str]], torchs: dict[str, set[str]]) -> None:
    compiler = {"torch._dynamo", "torch._inductor", "sympy"}
    assert ours["names"] & compiler == torchs["package"] & compiler


def test_counting_and_showing_a_report_loads_nothing_optional(
    ours: dict[str, set[str]], torchs: dict[str, set[str]]
) -> None:
    assert optional(ours["report"]) <= optional(torchs["run"])


def test_names_are_found_and_listed() -> None:
    assert set(fxflops.__all__) <= set(dir(fxflops))
    assert fxflops.units.count(1500) == "1.50 k"  # modules too, without being imported separately
    assert not hasattr(fxflops, "flops")


@pytest.mark.parametrize(
    ("name", "where"),
    [("FlopsProfiler", "deepspeed"), ("get_model_profile", "deepspeed"), ("FlopCountAnalysis", "fvcore")],
)
def test_names_of_other_tools_are_told_where_they_are(name: str, where: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}': fxflops.adapters.{where} has it$"):
        getattr(fxflops, name)
    assert hasattr(importlib.import_module(f"fxflops.adapters.{where}"), name)


@pytest.mark.parametrize(
    ("name", "said"), [("load", "Report.load"), ("diff", "report.diff"), ("check", "fxflops check")]
)
def test_names_that_might_be_ours_say_what_is(name: str, said: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}': .*{said}"):
        getattr(fxflops, name)


def test_no_module_has_the_name_of_a_public_name() -> None:
    modules = {module.name for module in pkgutil.iter_modules(fxflops.__path__)}
    assert not modules & set(fxflops.__all__)


def test_public_names_are_no_modules_whatever_is_imported() -> None:
    for module in pkgutil.walk_packages(fxflops.__path__, "fxflops."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in fxflops.__all__:
        assert not inspect.ismodule(getattr(fxflops, name)), name


def test_adapters_are_there_once_they_are_asked_for(ours: dict[str, set[str]]) -> None:
    assert "fxflops.adapters.thop" not in ours["report"]
    assert "fxflops.adapters.thop" in ours["adapters"]
