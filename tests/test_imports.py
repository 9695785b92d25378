"""``import fxflops`` in a fresh process: what is optional stays unloaded, and public names are what they say."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys

import fxflops

OPTIONAL = ("rich", "tabulate", "pandas", "plotly", "timm", "typer", "torchvision", "transformers")


def loaded_by(statement: str) -> set[str]:
    """The top-level packages that a fresh process has loaded after this statement."""
    code = f"{statement}\nimport sys\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_nothing_optional_is_loaded() -> None:
    assert loaded_by("from fxflops import *") & set(OPTIONAL) <= loaded_by("import torch") & set(OPTIONAL)


def test_torch_is_loaded_with_the_first_name() -> None:
    assert not loaded_by("import fxflops") & {"torch", "numpy", *OPTIONAL}
    assert "torch" in loaded_by("from fxflops import count")


def test_the_compiler_is_not_loaded() -> None:
    loaded = (
        "import sys; print(*[name for name in ('torch._dynamo', 'torch._inductor', 'sympy') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", f"import torch; {loaded}; from fxflops import *; {loaded}"],
                         capture_output=True, text=True, check=True)  # fmt: skip
    before, after = run.stdout.split("\n")[:2]
    assert before == after


def test_counting_and_showing_a_report_loads_nothing_optional() -> None:
    run = "import fxflops, torch; str(fxflops.count(torch.nn.Linear(2, 2), torch.ones(1, 2)))"
    used = "import torch; torch.nn.Linear(2, 2).to('meta')(torch.ones(1, 2, device='meta'))"
    assert loaded_by(run) & set(OPTIONAL) <= loaded_by(used) & set(OPTIONAL)


def test_names_are_found_and_listed() -> None:
    assert set(fxflops.__all__) <= set(dir(fxflops))
    assert fxflops.units.count(1500) == "1.50 k"  # modules, too, without an import of their own
    assert not hasattr(fxflops, "flops")


def test_no_module_has_the_name_of_a_public_name() -> None:
    modules = {module.name for module in pkgutil.iter_modules(fxflops.__path__)}
    assert not modules & set(fxflops.__all__)


def test_public_names_are_no_modules_whatever_is_imported() -> None:
    for module in pkgutil.walk_packages(fxflops.__path__, "fxflops."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in fxflops.__all__:
        assert not inspect.ismodule(getattr(fxflops, name)), name
