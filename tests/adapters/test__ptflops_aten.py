"""ptflops's backend "aten": its number and printed text, compared with the original's."""

from __future__ import annotations

import io
from typing import Any

import ptflops
import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from fxflops.adapters.ptflops import FLOPS_BACKEND, get_model_complexity_info

aten = torch.ops.aten


class Mixed(nn.Module):
    """Operators in nested modules and in the model's own forward, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Sequential(nn.Conv2d(4, 4, 3)))
        self.fc, self.rnn, self.drop = nn.Linear(4, 4), nn.GRU(4, 4), nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc(self.drop(self.fc(self.body(x).mean((2, 3)))))
        attended = F.scaled_dot_product_attention(x[None], x[None], x[None])
        return self.rnn(attended)[0] @ self.fc.weight


def outcome(module: Any, model: nn.Module, input_res: tuple[int, ...], **settings: Any) -> tuple[Any, str]:
    file = io.StringIO()
    return module(model, input_res, ost=file, backend="aten", **settings), file.getvalue()


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "verbose": {"verbose": True},
    "numbers": {"as_strings": False, "print_per_layer_stat": False},
    "units": {"flops_units": "KMac", "param_units": "K", "output_precision": 1},
    "ignored": {"ignore_modules": [aten.mm, aten.addmm]},
    "hooks": {
        "custom_modules_hooks": {aten.relu: lambda given, out: out[0].numel() * len(given), aten.mm: lambda *_: 42}
    },
    "several inputs": {"input_constructor": lambda shape: {"x": torch.ones(3, *shape)}},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_outcome_is_ptflopss(name: str) -> None:
    model = Mixed()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = outcome(get_model_complexity_info, model, (3, 12, 12), **SETTINGS[name])
    assert model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert found == outcome(ptflops.get_model_complexity_info, model, (3, 12, 12), **SETTINGS[name])


def test_a_kernel_of_its_own_is_left_out_as_there() -> None:
    for model, shape in ((nn.LSTM(4, 3), (5, 4)), (torchvision.models.resnet18(), (3, 64, 64))):
        expected = outcome(ptflops.get_model_complexity_info, model, shape)
        assert outcome(get_model_complexity_info, model, shape) == expected


def test_what_raises_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    hooks = {aten.addmm: lambda given, out: 1 // 0}
    for module in (ptflops.get_model_complexity_info, get_model_complexity_info):
        for shape, settings in (((3,), {}), ((4,), {"custom_modules_hooks": hooks})):
            assert outcome(module, nn.Linear(4, 2), shape, **settings)[0] == (None, None)
            assert "Flops estimation was not finished successfully" in capsys.readouterr().out
    macs, _ = get_model_complexity_info(nn.Linear(4, 2), (4,), backend=FLOPS_BACKEND.ATEN, as_strings=False)
    assert macs == 4 * 2 + 2
