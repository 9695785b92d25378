"""The counted backward pass starts where a training loop starts it: from the loss, if the model returns one.

The oracle is the user's own step with ``loss.backward()``, under a dispatch mode of this file that tracks the bytes of every
storage and adds up the MACs of the products.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxflops
from benchmarks.allocator import allocated
from tests.kinds.live_bytes import Live

ROWS, WIDTH, CLASSES = 256, 32, 64
SCALARS = 64
"""Allowed difference in bytes: a loop computes a sum of its own, while the count starts from a gradient of ones."""


class Step(Live):
    """Tracks the live bytes of storages, and adds up the MACs of products that autograd's engine runs."""

    macs = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        name = func._schema.name
        if name in ("aten::mm", "aten::bmm") and torch._C._current_graph_task_id() != -1:
            self.macs += out.numel() * args[0].shape[-1]
        return out


@dataclass
class Output:
    loss: torch.Tensor | None
    logits: torch.Tensor


Pair = namedtuple("Pair", "logits loss")


class Net(nn.Module):
    """Passes hidden features, logits, a loss and ``other`` to ``how``, which chooses the output. ``other`` does not contribute to
    the loss.
    """

    def __init__(self, how: Callable[..., Any]) -> None:
        super().__init__()
        self.body, self.head, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES)
        self.how = how

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        hidden = self.body(x).relu()
        logits = self.head(hidden)
        loss = F.cross_entropy(logits, y)
        return self.how(hidden, logits, loss, self.other(hidden))


def total(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.stack([each.sum() for each in tensors]).sum()


Case = tuple[Callable[..., Any], Callable[[Any], torch.Tensor]]
CASES: dict[str, Case] = {
    "loss": (lambda h, y, loss, o: loss, lambda out: out),
    "tuple": (lambda h, y, loss, o: (loss, y), lambda out: out[0]),
    "tuple, last": (lambda h, y, loss, o: (y, loss), lambda out: out[1]),
    "tuple, with features": (lambda h, y, loss, o: (y, h, loss), lambda out: out[2]),
    "list": (lambda h, y, loss, o: [loss, y], lambda out: out[0]),
    "dict": (lambda h, y, loss, o: {"loss": loss, "logits": y}, lambda out: out["loss"]),
    "dict, another name": (lambda h, y, loss, o: {"logits": y, "ce": loss}, lambda out: out["ce"]),
    "dict, with another head": (lambda h, y, loss, o: {"loss": loss, "logits": y, "other": o}, lambda out: out["loss"]),
    "object": (lambda h, y, loss, o: Output(loss, y), lambda out: out.loss),
    "namedtuple": (lambda h, y, loss, o: Pair(y, loss), lambda out: out.loss),
    "nested": (lambda h, y, loss, o: (y, {"losses": [loss]}), lambda out: out[1]["losses"][0]),
    "detached": (lambda h, y, loss, o: (loss, y.detach()), lambda out: out[0]),
    "two heads": (lambda h, y, loss, o: (y, o), lambda out: total(*out)),
    "loss per row": (lambda h, y, loss, o: {"loss": y.square().mean(1), "logits": y}, lambda out: out["loss"].sum()),
    # There is no single loss: a loop adds up these outputs, or values computed from them.
    "several losses": (lambda h, y, loss, o: {"a": loss, "b": o.square().mean()}, lambda out: out["a"] + out["b"]),
    "a penalty beside the output": (lambda h, y, loss, o: (y, o.square().mean()), lambda out: total(*out)),
    "a penalty first": (lambda h, y, loss, o: (o.square().mean(), y), lambda out: total(*out)),
    "features and logits": (lambda h, y, loss, o: (h, y), lambda out: total(*out)),
    "logits": (lambda h, y, loss, o: y, lambda out: out.sum()),
    "no loss given": (lambda h, y, loss, o: Output(None, y), lambda out: out.logits.sum()),
    "the same twice": (lambda h, y, loss, o: (loss, loss), lambda out: out[0]),
    "its mean beside it": (lambda h, y, loss, o: (loss, y.detach().mean(), y), lambda out: out[0]),
}


def measured(model: nn.Module, kwargs: dict[str, Any], loss_of: Callable[[Any], torch.Tensor]) -> Step:
    """Run one step as a training loop does, and return what was measured."""
    inputs = [value for value in kwargs.values() if isinstance(value, torch.Tensor)]
    model.zero_grad()
    with Step([*model.parameters(), *model.buffers(), *inputs]) as step:
        out = model(**kwargs)
        loss_of(out).backward()
    model.zero_grad()
    return step


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_counted_as_the_loop_makes_it(name: str) -> None:
    torch.manual_seed(0)
    how, loss_of = CASES[name]
    model = Net(how)
    kwargs = {"x": torch.randn(ROWS, WIDTH), "y": torch.randint(0, CLASSES, (ROWS,))}
    expected = measured(model, kwargs, loss_of)
    counted = fxflops.count(model, kwargs=kwargs, backward=True)
    assert counted.total_backward_macs == expected.macs
    assert abs(counted.max_memory - expected.peak) <= SCALARS
    for trace in ("auto", "record"):
        analyzed = fxflops.analyze(model, kwargs=kwargs, backward=True, repeats=0, trace=trace, progress=False)
        assert analyzed.total_backward_macs == expected.macs
        assert abs(analyzed.max_memory - expected.peak) <= SCALARS


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, CLASSES),
    "relu": lambda: nn.Sequential(nn.Linear(WIDTH, CLASSES), nn.ReLU()),
    "gelu": lambda: nn.Sequential(nn.Linear(WIDTH, CLASSES), nn.GELU()),
    "softmax": lambda: nn.Sequential(nn.Linear(WIDTH, CLASSES), nn.Softmax(-1)),
    "layer norm": lambda: nn.Sequential(nn.Linear(WIDTH, CLASSES), nn.LayerNorm(CLASSES)),
    "flatten": lambda: nn.Sequential(nn.Linear(WIDTH, CLASSES), nn.Flatten()),
    "product": lambda: nn.Bilinear(WIDTH, WIDTH, CLASSES),
}


@pytest.mark.parametrize("name", LAYERS)
def test_without_a_loss_it_starts_from_the_sum(name: str) -> None:
    model, x = LAYERS[name](), torch.randn(ROWS, WIDTH)
    given = (x, x) if name == "product" else (x,)
    held = sum(tensor.nbytes for tensor in [*model.parameters(), x])

    def step() -> None:
        out = model(*given)
        out.sum().backward()
        del out

    measured = allocated(step, held)  # a dispatch mode sees no tensors inside bilinear
    model.zero_grad()
    predicted = fxflops.count(model, given, backward=True).max_memory
    assert measured.held - SCALARS <= predicted <= measured.peak + SCALARS


def test_the_gradient_of_ones_takes_the_memory_of_one() -> None:
    model, x = nn.Linear(WIDTH, CLASSES, bias=False), torch.randn(ROWS, WIDTH)
    by_hand = 4 * (WIDTH * CLASSES + ROWS * WIDTH + ROWS * CLASSES + WIDTH * CLASSES + 1)
    assert fxflops.count(model, x, backward=True).max_memory == by_hand


TRANSFORMERS: dict[str, Callable[[Any], Any]] = {
    "gpt2": lambda t: t.GPT2LMHeadModel(
        t.GPT2Config(
            vocab_size=2000, n_embd=32, n_layer=1, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=2,
            resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="eager",
        )
    ),
    "bert": lambda t: t.BertForMaskedLM(
        t.BertConfig(
            vocab_size=2000, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
            hidden_dropout_prob=0, attention_probs_dropout_prob=0, attn_implementation="eager",
        )
    ),
    "t5": lambda t: t.T5ForConditionalGeneration(
        t.T5Config(
            vocab_size=2000, d_model=32, num_layers=1, num_heads=2, d_ff=64, d_kv=16, dropout_rate=0,
            decoder_start_token_id=0, pad_token_id=0, attn_implementation="eager",
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", ["object", "tuple"])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_transformer_that_is_given_labels(name: str, form: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = TRANSFORMERS[name](transformers).train()
    ids = torch.randint(3, 2000, (4, 32))
    kwargs = {"input_ids": ids, "labels": ids, "return_dict": form == "object"}
    measured(model, kwargs, lambda out: out[0])
    expected = measured(model, kwargs, lambda out: out[0])
    counted = fxflops.count(model, kwargs=kwargs, mode="train", backward=True)
    assert counted.total_backward_macs == expected.macs
    assert counted.max_memory == pytest.approx(expected.peak, rel=1e-4)
