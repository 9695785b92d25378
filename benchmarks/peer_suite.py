"""Run a peer's own tests with our adapter. List the tests that pass with the original but fail with the adapter.

    python benchmarks/peer_suite.py CHECKOUT --as fvcore [tests/test_flop_count.py -k matmul ...]

All other arguments are passed to pytest. Pytest runs in the checkout twice, each time in a new process. In the second process, each
module of the peer gets the adapter's names in place of its own as soon as it is loaded. Names that the adapter lacks stay the original's.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Peer:
    """The package that an adapter replaces, the adapter's module, and a map from the peer's names to ours where they differ."""

    package: str
    adapter: str
    names: Mapping[str, str] = field(default_factory=dict)


PEERS = {
    "fvcore": Peer("fvcore.nn", "fvcore"),
    "mmengine": Peer(
        "mmengine.analysis",
        "fvcore",
        {"FlopAnalyzer": "FlopCountAnalysis", "ActivationAnalyzer": "ActivationCountAnalysis"},
    ),
    "thop": Peer("thop", "thop"),
    "ptflops": Peer("ptflops", "ptflops"),
    "torchinfo": Peer("torchinfo", "torchinfo"),
    "flops_profiler": Peer("flops_profiler", "flops_profiler"),
    "deepspeed": Peer("deepspeed.profiling.flops_profiler", "deepspeed"),
    "flop_counter": Peer("torch.utils.flop_counter", "flop_counter"),
    "pytorch_profiler": Peer("profiler", "pytorch_profiler"),
    "flowflops": Peer("flowflops", "flowflops"),
    "torch_flops": Peer("torch_flops", "fxflops"),
}


class Redirect(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An import hook that loads a peer's modules and then puts the adapter's names into them."""

    def __init__(self, peer: Peer) -> None:
        whole = peer.adapter if peer.adapter == "fxflops" else f"fxflops.adapters.{peer.adapter}"
        adapter = importlib.import_module(whole)
        public = getattr(adapter, "__all__", None) or [name for name in vars(adapter) if name[0] != "_"]
        self._served = {name: getattr(adapter, name) for name in public}
        self._served |= {theirs: self._served[ours] for theirs, ours in peer.names.items()}
        self._package = peer.package
        self._loaders: dict[str, Any] = {}
        for name, module in [*sys.modules.items()]:
            if self._is_peers(name):
                self.serve(module)

    def _is_peers(self, name: str) -> bool:
        return name == self._package or name.startswith(f"{self._package}.")

    def serve(self, module: ModuleType) -> None:
        """Replace functions and classes with the adapter's versions of the same name."""
        for name, value in self._served.items():
            theirs = vars(module).get(name)
            if theirs is not None and not isinstance(theirs, ModuleType) and type(theirs).__module__ != "typing":
                setattr(module, name, value)

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path) if self._is_peers(name) else None
        if spec is not None and spec.loader is not None:
            self._loaders[name], spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loaders[spec.name].create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self._loaders[module.__name__].exec_module(module)
        self.serve(module)


class Outcomes:
    """A pytest plugin that records each test's outcome: "" if it passed, else the reason."""

    def __init__(self) -> None:
        self.of: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or not report.passed:
            self.of[report.nodeid] = "" if report.passed else _reason(report)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.of[report.nodeid] = _reason(report)


def _reason(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return f"{report.outcome}: " + (crash.message if crash else str(report.longrepr)[-300:])


def run_here(peer: Peer | None, tests: Sequence[str], file: Path) -> None:
    """Run the tests of the working directory in this process, and write their outcomes to a file."""
    import pytest

    sys.path[:1] = [""]
    sys.path.append(str(ROOT))
    if peer is not None:
        sys.meta_path.insert(0, Redirect(peer))
    outcomes = Outcomes()
    pytest.main(["-q", "-p", "no:cacheprovider", "-W", "default", *tests], plugins=[outcomes])
    file.write_text(json.dumps(outcomes.of))


def outcomes_of(checkout: Path, name: str, tests: Sequence[str], redirected: bool) -> dict[str, str]:
    """Return each test's outcome with the original, or with the adapter if ``redirected``."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "outcomes.json")
        command = [sys.executable, __file__, str(checkout), "--as", name, "--into", str(file)]
        command += ["--redirected", *tests] if redirected else [*tests]
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
        outcomes: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    if not outcomes:
        raise SystemExit(f"no test ran in {checkout}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return outcomes


def table(name: str, original: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Return how many of the tests that pass with the original also pass with the adapter, and a table of those that fail."""
    passing = [test for test, reason in original.items() if not reason]
    failing = {test: ours.get(test, "not collected") for test in passing if ours.get(test, "not collected")}
    lines = [f"{name}: {len(passing) - len(failing)} of the {len(passing)} tests that pass with the original"]
    if failing:
        lines += ["", "| test | with the adapter |", "|---|---|"]
    lines += [f"| `{test}` | {' '.join(reason.split())[:160].replace('|', '/')} |" for test, reason in failing.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a checkout or any folder with the peer's tests")
    parser.add_argument("--as", dest="name", choices=PEERS, required=True)
    parser.add_argument("--redirected", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    given, tests = parser.parse_known_args()  # pytest gets the rest
    if given.into:
        run_here(PEERS[given.name] if given.redirected else None, tests, given.into)
        return
    checkout = given.checkout.resolve()
    original, ours = (outcomes_of(checkout, given.name, tests, redirected) for redirected in (False, True))
    print(table(given.name, original, ours))


if __name__ == "__main__":
    main()
