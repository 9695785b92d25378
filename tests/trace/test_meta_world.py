"""A count by shape rules and plans equals one that runs the meta kernels for every call."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
import transformers
from torch import nn

import fxflops
from fxflops.ops import BASE
from fxflops.records import Cost, typed
from fxflops.report.report import Report
from fxflops.run import model_run
from fxflops.trace.leaves import settings_of
from fxflops.trace.module_calls import ModuleCalls
from tests.conventions.pool import shallow
from tests.trace.beside import computed, facts_of, kernels_asked
from tests.trace.odd_models import ODD, Counter, Function, Layer, Stack, X, stack
from tests.trace.programs import differs


def assert_same(model: nn.Module, *args: Any, **settings: Any) -> None:
    """Check that a first and a second count both equal a count that runs the meta kernels."""
    wanted = facts_of(kernels_asked(model, *args, **settings))
    for time in ("first", "second"):
        found = facts_of(fxflops.count(model, *args, **settings))
        told = {"timeline"} if found["max_memory"] == wanted["max_memory"] else {"timeline", "memory", "live_at_peak"}
        for name, value in wanted.items():  # kernels also allocate numbers, and norms vectors of statistics
            near = pytest.approx(value, rel=1e-3, abs=64) if name == "max_memory" else value
            assert name in told or found[name] == near, (time, name)


def ran(report: Report) -> list[tuple[Any, ...]]:
    """The calls of a run, whatever device its tensors were on."""
    return [
        (c.op, c.path, repr(c.args), repr({**c.kwargs, "device": None}), repr(c.out), repr(dict(c.settings)))
        for c in report.calls
    ]


@pytest.mark.parametrize("name", ODD)
def test_odd_models(name: str) -> None:
    model = ODD[name]()
    assert_same(model, X, mode="as_is")
    counted, run = fxflops.count(model, X), computed(model, X)
    assert counted.trace == ("counted on real tensors" if name in NEED_VALUES else "counted on the meta device")
    assert (ran(counted), counted.by_module()) == (ran(run), run.by_module())


NEED_VALUES = ("branching", "indexed")


@pytest.mark.parametrize("name", ["unread", "shared", "tied", "a buffer that counts", "of one a norm alone", "alike"])
def test_odd_models_elsewhere(name: str) -> None:
    assert_same(ODD[name]().double(), X.double(), mode="train")
    if name != "a buffer that counts":
        assert_same(ODD[name]().to("meta"), X.to("meta"))


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["unread", "a buffer that counts", "of one a norm alone", "generated", "masked"])
def test_odd_models_on_cuda(name: str) -> None:
    assert_same(ODD[name]().cuda(), X.cuda())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_tensors_of_a_program_lie_as_without_a_count(seed: int, values: bool) -> None:
    assert not differs(seed, values)


def test_macs_are_those_that_ran() -> None:
    wanted = {"many": 126, "read": 1 + 2 + 3 + 4, "an attribute that counts": 1 + 2 + 3, "shared": 8, "nested": 3}
    assert {name: fxflops.count(ODD[name](), X).total_macs // (2 * 8 * 8) for name in wanted} == wanted


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        for part in self.parts:
            x = part(x)
        return x if y is None else x + y


@pytest.mark.parametrize(
    "args",
    [(X, X), (X, X.clone()), (X[:1], X[1:]), (torch.randn(4, 8)[:2],), (torch.randn(8, 2).T,), (X, None), (X, 1.0)],
    ids=["twice the same", "two", "views of one", "of a larger one", "transposed", "none", "number"],
)
def test_arguments_that_lie_otherwise(args: tuple[Any, ...]) -> None:
    assert_same(Sum(), args)


def test_under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(Sum(), X)


def test_a_count_within_a_count() -> None:
    inner = nn.Linear(8, 8)
    model = Function(lambda self, x: self.fc(x.repeat(fxflops.count(inner, X).total_macs // 64, 1)))
    assert fxflops.count(model, X).total_macs == 2 * 2 * 8 * 8


def test_a_global_that_changes_between_two_counts() -> None:
    width = [1]
    model = Function(lambda self, x: self.fc(x.repeat(width[0], 1)))
    for wanted in (1, 2, 3):
        width[0] = wanted
        assert fxflops.count(model, X).total_macs == wanted * 2 * 8 * 8


def test_a_forward_runs_once_a_count(capsys: pytest.CaptureFixture[str]) -> None:
    class Speaking(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            print("here")
            return self.linear(x)

    model = Stack(Speaking(), Speaking())
    for _ in range(2):
        fxflops.count(model, X)
        assert capsys.readouterr().out == "here\n" * 2


def test_nothing_of_modules_is_patched() -> None:
    kept = dict(vars(nn.Module))
    inside: list[dict[str, Any]] = []
    fxflops.count(Function(lambda self, x: inside.append(dict(vars(nn.Module))) or self.fc(x)), X)
    fxflops.count(Stack(Counter(n=0)), X)
    assert dict(vars(nn.Module)) == kept == inside[0]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: stack(lambda i: nn.LeakyReLU((1, 1.0, True)[i]), 3)),
        pytest.param(lambda: stack(lambda i: nn.Dropout((0, 0.0, False)[i]), 3)),
        lambda: stack(lambda i: nn.Linear(8, 8, bias=i < 2, dtype=(torch.float32, torch.float32, torch.float32)[i]), 3),
    ],
)
def test_settings_are_the_modules_own(make: Callable[[], nn.Module]) -> None:
    model = make()
    for scope in fxflops.count(model, X, mode="as_is").scopes:
        assert typed(dict(scope.settings)) == typed(settings_of(model.get_submodule(scope.path)))


TIMM = """
    resnet18 vgg11_bn densenet121 mobilenetv3_small_100 mobilenetv2_100 efficientnet_b0 convnext_atto regnetx_002
    nfnet_f0 hrnet_w18_small ghostnet_100 repvgg_a0 inception_v3 dla34 mixer_s32_224 poolformer_s12
    vit_tiny_patch16_224 swin_tiny_patch4_window7_224 cait_xxs24_224 levit_128s pvt_v2_b0 edgenext_xx_small
    mobilevit_xxs coatnet_nano_rw_224 davit_tiny eva02_tiny_patch14_224 xcit_nano_12_p16_224 beit_base_patch16_224
""".split()
FEWER: dict[str, dict[str, Any]] = {
    "densenet121": {"block_config": (3, 3, 3, 3)},
    "convnext_atto": {"depths": (1, 1, 3, 1)},
    "nfnet_f0": {"depths": (1, 1, 3, 1)},
    "levit_128s": {"depth": (1, 1, 3)},
    "edgenext_xx_small": {"depths": (1, 1, 3, 1)},
    "swin_tiny_patch4_window7_224": {"depths": (2, 2, 2, 2)},
    "coatnet_nano_rw_224": {"depths": (1, 1, 2, 1)},
    "vit_tiny_patch16_224": {"depth": 3},
    "cait_xxs24_224": {"depth": 3},
    "eva02_tiny_patch14_224": {"depth": 3},
    "xcit_nano_12_p16_224": {"depth": 3},
    "beit_base_patch16_224": {"depth": 3},
}
"""Enough of the dozens of equal blocks to cover the first, the second and later ones."""
FIXED = ("vit", "swin", "cait", "levit", "mixer", "eva", "beit", "coatnet")
"""Models that only take images of one size."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TIMM)
def test_timm_models(name: str) -> None:
    with torch.device("meta"):
        model = shallow(timm.create_model(name, **FEWER.get(name, {})))
    size = model.default_cfg["input_size"][-1] if name.startswith(FIXED) else 128
    assert_same(model, torch.randn(1, 3, size, size, device="meta"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["alexnet", "googlenet", "shufflenet_v2_x0_5", "squeezenet1_1", "mnasnet0_5", "swin_v2_t"]
)
def test_torchvision_models(name: str) -> None:
    with torch.device("meta"):
        model = torchvision.models.get_model(name)
    assert_same(model, torch.randn(1, 3, 224, 224))


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50}
LANGUAGE: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**SMALL)),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)),
    "llama without a cache": lambda: transformers.LlamaModel(transformers.LlamaConfig(**SMALL, use_cache=False)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50)
    ),
    "t5": lambda: transformers.T5EncoderModel(
        transformers.T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LANGUAGE)
@pytest.mark.parametrize("attention", ["dense", "exact"])
def test_language_models(name: str, attention: str) -> None:
    model = LANGUAGE[name]()
    ids = torch.randint(0, 50, (2, 7))
    assert_same(model, (), {"input_ids": ids}, attention=attention)
    mask = torch.tensor([[1] * 7, [0, 0] + [1] * 5])
    assert_same(model, (), {"input_ids": ids, "attention_mask": mask}, attention=attention)


def test_norms_and_dropout_in_training() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Identity())
    for mode in ("train", "eval"):
        assert_same(model, torch.randn(2, 3, 8, 8), mode=mode)
    assert int(model[1].num_batches_tracked) == 0


def test_channels_last() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.MaxPool2d(2), nn.Upsample(scale_factor=2))
    x = torch.randn(2, 3, 8, 8)
    assert_same(model, x.to(memory_format=torch.channels_last))
    assert_same(model.to(memory_format=torch.channels_last), x)


def test_exact_and_dense_attention_are_told_apart() -> None:
    model = Function(lambda self, x: F.scaled_dot_product_attention(x, x, x, is_causal=True))
    x = torch.randn(1, 2, 8, 8)
    dense, exact = (fxflops.count(model, x, attention=attention).total_flops for attention in ("dense", "exact"))
    assert exact < dense == fxflops.count(model, x).total_flops
    assert_same(model, x, attention="exact")


def test_hooks_of_the_users_run_once_a_count() -> None:
    model, seen = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), []
    model[0].register_forward_hook(lambda module, args, out: seen.append(out.shape) or out * 2)
    model[1].register_forward_pre_hook(lambda module, args: (args[0][:2],))
    assert_same(model, torch.randn(4, 8))
    assert seen == [(4, 8)] * 3


@pytest.mark.parametrize("raises", [False, True])
def test_the_model_is_left_as_it_was(raises: bool) -> None:
    class Ending(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if raises:
                raise ValueError
            return self.linear(x)

    def facts() -> list[Any]:
        return [(dict(vars(m)), dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in model.modules()]

    model = Stack(nn.Linear(8, 8), Ending(layer_idx=1))
    before, static = facts(), {name: inspect.getattr_static(Ending, name) for name in dir(Ending)}
    if raises:
        with pytest.raises(fxflops.RunError):
            fxflops.count(model, X)
    else:
        fxflops.count(model, X)
    assert before == facts()
    assert {name: inspect.getattr_static(Ending, name) for name in dir(Ending)} == static
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_forward_replaced_on_the_instance_is_run() -> None:
    report = fxflops.count(ODD["a function in a leaf"](), X)
    assert [call.op for call in report.calls] == ["relu", "add"]


def test_another_thread_gets_true_results() -> None:
    found: list[torch.Tensor] = []
    asked = [threading.Event(), threading.Event()]

    def serve() -> None:
        asked[0].wait(20)
        try:
            found.append(model(X.clone()))
        finally:
            asked[1].set()

    def meanwhile(self: Any, x: torch.Tensor) -> Any:
        if threading.current_thread() is threading.main_thread():
            asked[0].set()
            asked[1].wait()
        return self.fc(x).relu()

    model = Function(meanwhile)
    wanted = model.fc(X).relu()
    server = threading.Thread(target=serve)
    server.start()
    report = fxflops.count(model, X)
    server.join()
    assert torch.equal(found[0], wanted)
    assert not report.complete  # the other thread's call of the model does not belong to this run


def test_formulas_are_respected() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(2, 8)
    plain = fxflops.count(model, x).total_flops
    assert (
        fxflops.count(model, x, formulas={nn.ReLU: lambda module, input, *, out: 1000}).total_flops == plain - 16 + 1000
    )
    assert fxflops.count(model, x).total_flops == plain

    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu()

    assert fxflops.count(Own(), x).total_flops == 16

    @fxflops.formula(Own)
    def own(module: Own, input: Any, *, out: Any) -> int:
        return 7

    try:
        assert fxflops.count(Own(), x).total_flops == fxflops.count(Own(), x).total_flops == 7
    finally:
        del BASE.entries[Own]
    assert fxflops.count(Own(), x).total_flops == 16


def test_a_formula_reads_the_module_of_each_call() -> None:
    def formula(module: Any, input: Any, *, out: Any) -> Cost:
        return Cost(others=module.layer_idx)

    report = fxflops.count(ODD["unread"](), X, formulas={Layer: formula})
    assert report.total_flops == 0 + 1 + 2 + 3
    assert [call.settings["layer_idx"] for call in report.calls] == [0, 1, 2, 3]


def test_kernels_are_not_asked_where_a_rule_or_a_plan_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [[nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.ReflectionPad2d(1)] for _ in range(2)]
    model = nn.Sequential(*blocks[0], *blocks[1], nn.Flatten(), nn.Linear(192, 2))
    made: list[str] = []
    begin = ModuleCalls._begin_module
    monkeypatch.setattr(
        ModuleCalls,
        "_begin_module",
        lambda self, module, *rest: (made.append(type(module).__name__), begin(self, module, *rest))[1],
    )
    for _ in range(2):
        made.clear()
        fxflops.count(model, torch.randn(1, 3, 8, 8))
        assert made == ["Sequential", "ReflectionPad2d"]


def test_what_a_model_cached_before_is_no_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    class Caching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.cache: dict[str, torch.Tensor] = {}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if "bias" not in self.cache:
                self.cache["bias"] = torch.linspace(0, 1, 8).exp()
            return self.linear(x) + self.cache["bias"]

    model, x = Caching(), torch.randn(2, 8)
    assert fxflops.count(model, x).total_flops == 2 * 2 * 8 * 8 + 2 * 8 + 8
    model(x)
    runs: list[bool] = []
    on_meta = model_run.meta_run

    def noted(*args: Any, observe_dispatch: bool, **options: Any) -> Any:
        runs.append(observe_dispatch)
        return on_meta(*args, observe_dispatch=observe_dispatch, **options)

    monkeypatch.setattr(model_run, "meta_run", noted)
    assert fxflops.count(model, x).total_flops == 2 * 2 * 8 * 8 + 2 * 8
    assert runs == [False]
    assert_same(model, x)


def test_of_bounds_that_are_tensors_the_values_count() -> None:
    class Ranges(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.linear(x[:, start:end]) for start, end in bounds], 1)

    given = torch.randn(2, 6, 8), torch.tensor([[0, 1], [1, 4], [4, 6]])
    report = fxflops.count(Ranges(), given)
    assert (report.trace, report.total_macs) == ("counted on the meta device", 2 * (1 + 3 + 2) * 8 * 4)


def test_a_model_that_is_one_layer_is_one_step() -> None:
    row = fxflops.count(nn.Linear(2, 2), torch.ones(1, 2)).by_step()["step 1"]
    assert (row.calls, row.total.macs) == (1, 4)


@pytest.mark.parametrize("counter", [fxflops.count, fxflops.analyze])
def test_equal_operations_of_a_run_are_one(counter: Any) -> None:
    first, second = (call.operation for call in counter(nn.Sequential(nn.Tanh(), nn.Tanh()), torch.ones(2, 2)).calls)
    assert first is second


class Values(nn.Module):
    """Computes masks and positions, whose tensors have values, in every way that a count handles specially."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("steps", torch.zeros(3, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = x.new_zeros((4, 8))
        for number, rows in enumerate((slice(0, -2), slice(-2, None))):
            mask[rows, 1:5] = number
        mask[0] = mask[1]
        mask[..., 0] = True
        mask[mask > 2] = 7
        mask[[1, 2]] = 0.5
        positions = torch.arange(8, device=x.device)
        distance = positions[None, :] - positions[:, None]
        distance += distance.abs().clamp(max=4)
        distance = torch.where(distance < 0, torch.full_like(distance, 3), distance)
        self.steps += 1
        self.steps[1:] = 2
        self.steps[0].add_(4)
        angles = (distance.float() / 4).sin()
        angles = torch.stack((angles, angles.cos()), -1).flatten(1).reshape(8, -1).t().to(x.dtype)
        chosen, order = angles.sort(0)
        noise = torch.rand(8, 8).masked_fill_(torch.eye(8) > 0, 0.0)
        kept = (angles.to(torch.int64) & 1).cumsum(0).any(1) | (angles.sum(1) > 0)
        rows = kept.nonzero().squeeze(1)
        scale = torch.ldexp(noise, torch.tensor(2)).isinf().logical_not().diff(dim=0)
        table = chosen[order[:, 0]][:8, :8] + noise + scale.sum() + self.steps.float().mean()
        return self.linear(x) @ table + mask.sum(0) + rows.numel() + mask.view(8, 4)[:, :1].T.contiguous()[0, 0]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_calls_on_values_are_recorded_as_if_observed(device: str) -> None:
    model, x = Values().to(device), torch.ones(2, 8, device=device)
    torch.manual_seed(0)
    wanted = facts_of(kernels_asked(model, x))
    torch.manual_seed(0)
    found = facts_of(fxflops.count(model, x))
    if device == "meta":  # if a call is skipped, its temporaries are in the timeline only at a peak
        del found["timeline"], wanted["timeline"]
    assert found == wanted
    assert device == "meta" or not model.steps.any()
