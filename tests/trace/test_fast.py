"""Calls made again from memory, or by a shape rule, leave the report as it is where every call is made anew."""

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
from anew import assert_same
from torch import nn

import fxflops
from fxflops import own_run
from fxflops.ops import BASE
from fxflops.trace.fast import FastObserver
from fxflops.trace.plans import forget, plans_of

TIMM = """
    resnet18 vgg11_bn densenet121 mobilenetv3_small_100 mobilenetv2_100 efficientnet_b0 convnext_atto regnetx_002
    nfnet_f0 hrnet_w18_small ghostnet_100 repvgg_a0 inception_v3 dla34 mixer_s32_224 poolformer_s12
    vit_tiny_patch16_224 swin_tiny_patch4_window7_224 cait_xxs24_224 levit_128s pvt_v2_b0 edgenext_xx_small
    mobilevit_xxs coatnet_nano_rw_224 davit_tiny eva02_tiny_patch14_224 xcit_nano_12_p16_224 beit_base_patch16_224
""".split()
FIXED = ("vit", "swin", "cait", "levit", "mixer", "eva", "beit", "coatnet")
"""Models that take images of one size."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TIMM)
def test_timm_models(name: str) -> None:
    model = timm.create_model(name).to("meta")
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
    assert_same(model, (), {"input_ids": ids, "attention_mask": mask}, attention=attention, first=False)


class Function(nn.Module):
    """A model of one function, with a layer to have a device."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def autocast(self: Any, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = self.fc(x)
    return self.fc(x) + y.float()


def inference(self: Any, x: torch.Tensor) -> Any:
    with torch.inference_mode():
        return self.fc(self.fc(x)).relu()


def in_place(self: Any, x: torch.Tensor) -> Any:
    y = self.fc(x)
    y += x
    y.relu_().mul_(2)
    F.silu(y, inplace=True)
    y[:, 0] = 1
    return F.dropout(y, 0.5, False) + F.dropout(y, 0.5, True)


def masked(self: Any, x: torch.Tensor) -> Any:
    mask = torch.arange(8) > 3
    positions = torch.arange(x.shape[1]).float()
    y = x.masked_fill(mask, 0.0) + positions * mask
    z = torch.where(mask, y, x) * mask.sum().item()
    return z[:, mask], z * mask, mask * z


def branching(self: Any, x: torch.Tensor) -> Any:
    return self.fc(x) if (x.detach() > 0).any() else x * 2


def generated(self: Any, x: torch.Tensor) -> Any:
    return self.fc(torch.cat([part + 1 for part in x.chunk(2, -1)], dim=-1)) + torch.randn(8) + torch.rand_like(x)


def viewed(self: Any, x: torch.Tensor) -> Any:
    y = self.fc(x).view(-1, 2, 4).transpose(1, 2)
    return torch.stack([y, y], 1).sum(1), y.contiguous(), y.softmax(-1) @ y.mT, 2 - y, 1 / y.exp(), y.mean((1, 2), True)


def shared(self: Any, x: torch.Tensor) -> Any:
    return self.fc(self.fc(input=self.fc(x)))


def own_weights(self: Any, x: torch.Tensor) -> Any:
    return F.dropout(self.fc.weight, 0.5, False) @ x.mT, self.fc.bias + x, nn.Identity()(self.fc.weight).relu()


FUNCTIONS = [autocast, inference, in_place, masked, branching, generated, viewed, shared, own_weights]


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions(function: Any, mode: str) -> None:
    assert_same(Function(function), torch.randn(4, 8), mode=mode)


def test_dropout_and_norms_in_training() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Identity())
    assert_same(model, torch.randn(2, 3, 8, 8), mode="train")
    assert_same(model, torch.randn(2, 3, 8, 8), mode="eval", first=False)
    assert int(model[1].num_batches_tracked) == 0


def test_channels_last_weights() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.MaxPool2d(2), nn.Upsample(scale_factor=2))
    x = torch.randn(2, 3, 8, 8)
    assert_same(model, x)
    assert_same(model.to(memory_format=torch.channels_last), x, first=False)
    assert_same(model, x.to(memory_format=torch.channels_last), first=False)


def test_exact_and_dense_attention_are_told_apart() -> None:
    def causal(self: Any, x: torch.Tensor) -> Any:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)

    model, x = Function(causal), torch.randn(1, 2, 8, 8)
    dense, exact = (fxflops.count(model, x, attention=attention).total_flops for attention in ("dense", "exact"))
    assert exact < dense == fxflops.count(model, x).total_flops
    assert_same(model, x, attention="exact")


def test_hooks_see_and_change_what_they_did() -> None:
    model, seen = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), []
    model[0].register_forward_hook(lambda module, args, out: seen.append(out.shape) or out * 2)
    model[1].register_forward_pre_hook(lambda module, args: (args[0][:2],))
    assert_same(model, torch.randn(4, 8))
    assert seen == [(4, 8)] * 3


class Looks(nn.Module):
    """A module that inspects its own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        assert list(inspect.signature(self.forward).parameters) == ["x", "scale"]
        assert self.forward.__name__ == "forward"
        return self.fc(x) * scale


def test_a_module_may_look_at_its_forward() -> None:
    assert_same(Looks(), torch.randn(2, 8))


@pytest.mark.parametrize("raises", [False, True])
def test_the_model_is_left_as_it_was(raises: bool) -> None:
    def end(self: Any, x: torch.Tensor) -> Any:
        if raises:
            raise ValueError
        return self.fc(x)

    model = Function(end)
    before = [(dict(vars(m)), dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in model.modules()]
    if raises:
        with pytest.raises(fxflops.RunError):
            fxflops.count(model, torch.randn(2, 8))
    else:
        fxflops.count(model, torch.randn(2, 8))
    assert before == [(dict(vars(m)), dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in model.modules()]
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_forward_replaced_on_the_instance_is_run() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    model[0].forward = lambda x: torch.relu(x) + 1
    assert_same(model, torch.randn(2, 8))
    assert [call.op for call in fxflops.count(model, torch.randn(2, 8)).calls] == ["relu", "add"]


def test_another_thread_gets_true_results() -> None:
    x, found = torch.randn(2, 8), []
    wanted: list[torch.Tensor] = []

    def meanwhile(self: Any, x: torch.Tensor) -> Any:
        if threading.current_thread() is threading.main_thread() and not found:
            thread = threading.Thread(target=lambda: found.append(model(real)))
            thread.start()
            thread.join()
        return self.fc(x).relu()

    model, real = Function(meanwhile), torch.randn(2, 8)
    wanted.append(model.fc(real).relu())
    fxflops.count(model, x)
    assert torch.equal(found[0], wanted[0])


def test_formulas_are_respected_and_plans_forgotten() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(2, 8)
    plain = fxflops.count(model, x).total_flops
    assert (
        fxflops.count(model, x, formulas={nn.ReLU: lambda module, input, *, out: 1000}).total_flops == plain - 16 + 1000
    )
    assert fxflops.count(model, x).total_flops == plain
    plans = plans_of(BASE)
    assert plans is plans_of(BASE)

    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu()

    assert fxflops.count(Own(), x).total_flops == 16

    @fxflops.formula(Own)
    def own(module: Own, input: Any, *, out: Any) -> int:
        return 7

    try:
        assert plans_of(BASE) is not plans
        assert fxflops.count(Own(), x).total_flops == fxflops.count(Own(), x).total_flops == 7
    finally:
        del BASE.entries[Own]
        forget()


def test_calls_are_not_made_where_a_rule_or_a_plan_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)),
        torch.randn(1, 3, 8, 8),
    )
    forget()
    made: list[str] = []
    enter = FastObserver._enter_module
    monkeypatch.setattr(
        FastObserver,
        "_enter_module",
        lambda self, module, *rest: (made.append(type(module).__name__), enter(self, module, *rest))[1],
    )
    fxflops.count(model, x)
    assert made == ["Sequential", "Flatten"]
    made.clear()
    fxflops.count(model, x)
    assert made == []
    fxflops.count(nn.Sequential(model, nn.ReLU()), x)
    assert made == ["Sequential"]  # the outer one: the inner is known


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
    on_meta = own_run._on_meta
    monkeypatch.setattr(
        own_run,
        "_on_meta",
        lambda *args, strays=False, **kwargs: (runs.append(strays), on_meta(*args, strays=strays, **kwargs))[1],
    )
    assert fxflops.count(model, x).total_flops == 2 * 2 * 8 * 8 + 2 * 8
    assert runs == [False]
    assert_same(model, x)
