"""What DeepSpeed's profiler prints and returns, compared with DeepSpeed itself if it is installed.

Otherwise the comparison is with ``deepspeed.txt``: what DeepSpeed 0.19.8 returned and printed for these models, without times.
"""

from __future__ import annotations

import copy
import io
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fxflops.adapters import deepspeed as ours
from fxflops.adapters import pytorch_profiler
from fxflops.adapters.deepspeed import get_model_profile
from tests.adapters.profiled import IMAGE, Branches, Clock, Engine, Model, tiny_gpt2

sys.path.insert(0, str(Path(__file__).parents[1] / "conventions"))
from tests.conventions.pool import built
from tests.conventions.replaced import restored

WRITTEN = Path(__file__).with_name("deepspeed.txt")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytorch_profiler, "time", Clock())


def timeless(text: str) -> str:
    """Printed text without the parts that depend on the machine. An engine's timers do not depend on it."""
    text = re.sub(r", \S+ .?s = \S+% latency, \S+ \w?FLOPS", ", _", text)
    if "bwd latency: " not in text:
        text = re.sub(r"(fwd latency: |fwd FLOPS per GPU = .*: ).*", r"\1_", text)
    return re.sub(r"(fwd latency - ).*", r"\1_", text)


def printed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, str]:
    """A function's result and its printed text."""
    with redirect_stdout(io.StringIO()) as text, restored():
        result = function(*args, **kwargs)
    return result, timeless(text.getvalue())


class Expert(nn.Module):
    """A layer whose second half is spread over four ranks, marked the way DeepSpeed marks it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.expert = nn.Linear(4, 8), nn.Linear(8, 8)
        for parameter in self.expert.parameters():
            parameter.group_name = "ep_size_4"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.expert(self.layer(x))


def of_engine(module: Any, model: nn.Module, x: torch.Tensor, engine: Any, *args: Any) -> None:
    """Print the summary of a run with an engine."""
    profile = module.FlopsProfiler(model, engine, *args)
    profile.start_profile()
    model(x)
    profile.stop_profile()
    profile.print_model_profile(profile_step=3, detailed=False, top_modules=2)
    profile.end_profile()


class Spread(Engine):
    """With sequence parallelism, a size for the group that the data are spread over, and experts."""

    dp_world_size, seq_dp_world_size, has_moe_layers = None, 2, True


def ran(module: Any, model: nn.Module, *ignored: type) -> Any:
    """(flops, macs, params) of two runs, with the profile printed."""
    profile = module.FlopsProfiler(model)
    profile.start_profile(list(ignored))
    model(IMAGE)
    model.stem(IMAGE)
    numbers = profile.get_total_flops(), profile.get_total_macs(), profile.get_total_params()
    strings = profile.get_total_flops(True), profile.get_total_macs(True), profile.get_total_params(as_string=True)
    profile.print_model_profile()
    assert (profile.flops, profile.macs, profile.params) == numbers
    profile.print_model_aggregated_profile(1, top_modules=9)
    profile.end_profile()
    profile.print_model_profile()
    profile.print_model_aggregated_profile()
    return numbers, strings


TOKENS = torch.arange(5, 11)[None]
RUNS: dict[str, Callable[[Any], Any]] = {
    "a forward": lambda m: m.get_model_profile(Branches(), (2, 3, 8, 8), warm_up=2, top_modules=3),
    "three depths": lambda m: m.get_model_profile(built("unet")[0], args=[torch.ones(1, 3, 32, 32)], module_depth=1),
    "not detailed": lambda m: m.get_model_profile(Model(), args=[(torch.ones(1, 10), torch.tensor([1]))], detailed=False),
    "numbers": lambda m: m.get_model_profile(Branches(), (2, 3, 8, 8), warm_up=0, as_string=False, print_profile=False),
    "an lstm": lambda m: m.get_model_profile(built("lstm")[0], kwargs={"tokens": TOKENS}, as_string=False),
    "ignored modules": lambda m: m.get_model_profile(Branches(), (2, 3, 8, 8), ignore_modules=[nn.Sequential, nn.Conv2d]),
    "generate": lambda m: m.get_model_profile(
        tiny_gpt2(), kwargs={"input_ids": TOKENS, "max_new_tokens": 3, "pad_token_id": 0}, mode="generate", detailed=False,
        warm_up=0,
    ),
    "runs": lambda m: ran(m, Branches()),
    "runs, ignored": lambda m: ran(m, Branches(), Branches, nn.BatchNorm2d),
    "an engine": lambda m: of_engine(m, Branches(), IMAGE, Engine(timed=False)),
    "an engine's timers": lambda m: of_engine(m, Branches(), IMAGE, Engine(timed=True)),
    "recomputed": lambda m: of_engine(m, Branches(), IMAGE, Engine(timed=True), 0.5),
    "experts": lambda m: of_engine(m, Expert(), torch.ones(2, 4), Spread(timed=False)),
    "experts of no engine": lambda m: m.get_model_profile(Expert(), (2, 4)),
}  # fmt: skip
LOUD = re.compile(r"(?m)^\[20\d\d-.*\n")
"""DeepSpeed's log lines."""


def texts() -> dict[str, str]:
    """What DeepSpeed returned and printed, by run. Norms show their bias only if this torch's do."""
    told = "bias" in repr(nn.BatchNorm2d(1))
    text = WRITTEN.read_text(encoding="utf8")
    parts = re.split(r"(?m)^=== (.*)\n", text if told else text.replace("affine=True, bias=True", "affine=True"))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def shown(module: Any, name: str) -> str:
    result, text = printed(RUNS[name], module)
    return f"{result!r}\n{LOUD.sub('', text)}"


# "generate" depends on the version of transformers.
@pytest.mark.parametrize("name", [name for name in RUNS if name != "generate"])
def test_what_is_printed_is_what_deepspeed_printed(name: str) -> None:
    assert shown(ours, name) == texts()[name]


@pytest.mark.parametrize("name", RUNS)
def test_what_is_printed_is_what_deepspeed_prints(name: str, original: Any) -> None:
    assert shown(original, name) == shown(ours, name) == texts().get(name, shown(ours, name))


@pytest.mark.parametrize("name", ["squeezenet", "vit unfused", "bert sdpa", "llama", "t5", "products"])
def test_models_are_printed_as_deepspeed_prints_them(name: str, original: Any) -> None:
    model, args, kwargs = built(name)
    given = {"args": args, "kwargs": kwargs, "warm_up": 0, "top_modules": 3}
    mine = printed(get_model_profile, model, **given)
    assert mine == printed(original.get_model_profile, copy.deepcopy(model), **given)


def test_an_output_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "profile.txt"
    numbers = get_model_profile(Branches(), (2, 3, 8, 8), warm_up=2, top_modules=3, output_file=str(path))
    assert capsys.readouterr().out == ""
    assert f"{numbers!r}\n{timeless(path.read_text())}" == texts()["a forward"]
