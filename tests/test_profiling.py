"""profile() counts everything that runs in the block, step by step. Expected sums are worked out by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
from torch._higher_order_ops import scan
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerAction
from torch.utils._python_dispatch import TorchDispatchMode

from fxflops import FxflopsError, InputError, MissingFormulaError, analyze, count, profile
from fxflops.trace.profiled_world import ProfiledWorld
from tests.facts import facts_of

TOKENS, NEW, WIDTH, HEADS, LAYERS, WORDS = 5, 8, 16, 2, 2, 29


def gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=LAYERS, n_embd=WIDTH, n_head=HEADS, vocab_size=WORDS, n_positions=32, bos_token_id=0, eos_token_id=None
    )
    config.pad_token_id = 0
    return transformers.GPT2LMHeadModel(config).eval()


def macs_of_step(tokens: int, past: int) -> int:
    """MACs of a forward of ``tokens`` new tokens with ``past`` tokens in the cache, with logits for the last token only."""
    projections = 3 * WIDTH * WIDTH + WIDTH * WIDTH + 2 * WIDTH * (4 * WIDTH)
    attention = 2 * (past + tokens) * WIDTH  # each token's scores over all heads, and its weighted values
    return LAYERS * tokens * (projections + attention) + 1 * WIDTH * WORDS


@pytest.fixture(scope="module")
def generated() -> Any:
    model = gpt2()
    ids = torch.randint(1, WORDS, (1, TOKENS))
    with torch.no_grad(), profile(model) as p:
        p.tokens = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False)  # type: ignore[attr-defined]
    return p


def test_generate_is_its_prefill_and_each_decode_step(generated: Any) -> None:
    steps = {"prefill": macs_of_step(TOKENS, 0)}
    steps.update({f"decode {i}": macs_of_step(1, TOKENS + i - 1) for i in range(1, NEW)})
    assert generated.tokens.shape == (1, TOKENS + NEW)
    assert {name: row.total.macs for name, row in generated.report.by_step().items() if row.total.macs} == steps
    assert generated.report.total_macs == sum(steps.values())
    assert generated.report.complete


def test_the_cache_grows_by_a_key_and_a_value_of_each_layer_for_each_token(generated: Any) -> None:
    held = [moment.live["cache"] for moment in generated.report.timeline if moment.path == "lm_head"]
    assert held == [LAYERS * 2 * WIDTH * 4 * (TOKENS + i) for i in range(NEW)]
    ids = torch.ones(1, TOKENS, dtype=torch.long)
    assert count(gpt2(), ids).memory["cache"] == LAYERS * 2 * WIDTH * 4 * TOKENS


class Writer(nn.Module):
    """Generates each word by a call of itself, or lets an inner Writer generate."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = inner or nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)

    def generate(self, x: torch.Tensor, words: int) -> torch.Tensor:
        """Words, one after the other."""
        if isinstance(self.inner, Writer):
            return self.inner.generate(x, words)
        for _ in range(words):
            x = self(x)
        return x


def test_only_generate_has_a_prefill_and_decode_steps() -> None:
    model, x = Writer(), torch.ones(1, 4)
    held = dict(vars(model))
    with profile(model) as p:
        model(x)
        model.generate(x, 2)
        model(x)
        model.generate(x, 3)
        assert model.generate.__doc__ == "Words, one after the other."
    assert list(p.report.by_step()) == [
        "step 1", "prefill", "decode 1", "step 2", "generate 2 prefill", "generate 2 decode 1", "generate 2 decode 2",
        "(outside)",
    ]  # fmt: skip
    assert vars(model) == held
    with profile(Writer(model)) as p:
        p._model.generate(x, 2)
    assert list(p.report.by_step()) == ["inner prefill", "inner decode 1", "(outside)"]


def test_a_training_loop_of_what_could_generate_has_steps(device: str) -> None:
    model = gpt2().train().to(device)
    ids = torch.randint(1, WORDS, (1, TOKENS), device=device)
    with profile(model) as p:
        for _ in range(2):
            model(ids, labels=ids).loss.backward()
    assert list(p.report.by_step())[:4] == ["step 1", "step 1 backward", "step 2", "step 2 backward"]


def test_what_is_done_outside_of_the_model_is_counted_too(generated: Any) -> None:
    steps = generated.report.by_step()
    assert list(steps)[-1] == "(outside)"
    assert sum(row.total.flops for row in steps.values()) == generated.report.total_flops
    assert sum(row.calls for row in steps.values()) == len(generated.report.calls)


def test_any_code_and_several_models(device: str) -> None:
    encoder, decoder = nn.Linear(3, 5).to(device), nn.Sequential(nn.Linear(5, 2), nn.ReLU()).to(device)
    x = torch.ones(4, 3, device=device)
    with profile({"encoder": encoder, "decoder": decoder, "seed": 7}) as p:
        y = decoder(encoder(x)) + decoder(encoder(x))
    report = p.report
    assert y.shape == (4, 2)
    assert report.model == "Linear + Sequential"
    assert report["encoder"].total.macs == 2 * 4 * 3 * 5
    assert report["decoder.0"].total.macs == 2 * 4 * 5 * 2
    assert {name: row.total.macs for name, row in report.by_step().items()} == {
        "encoder step 1": 60, "decoder step 1": 40, "encoder step 2": 60, "decoder step 2": 40, "(outside)": 0,
    }  # fmt: skip
    assert report.by_step()["(outside)"].total.flops == 8
    assert report[""].cls == "Models"
    assert report.total_params == 15 + 5 + 10 + 2
    with profile([encoder, decoder]) as p:
        decoder(encoder(x))
    assert p.report["Linear_0"].total.macs == 60


def test_nothing_is_changed_and_nothing_undone(device: str) -> None:
    model, x = nn.BatchNorm1d(3).to(device), torch.randn(4, 3, device=device)
    before = dict(vars(model))
    with profile(model) as p:
        model(x)
    assert model.num_batches_tracked == 1
    assert dict(vars(model)) == before
    assert not model._forward_hooks
    assert p.report.total_flops == count(model, x, mode="train").total_flops


@pytest.mark.parametrize("make", [torch.optim.AdamW, partial(torch.optim.SGD, lr=0.1, momentum=0.9)])
def test_the_state_of_an_optimizer_that_makes_a_step_is_found(make: Callable[..., torch.optim.Optimizer]) -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = make(model.parameters())

    def profiled(optimizers: list[torch.optim.Optimizer]) -> tuple[Any, ...]:
        with profile(model, optimizer=optimizers) as p:
            for _ in range(2):
                model(torch.ones(64, 8)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        report = p.report
        return report.max_memory, report.memory, report.timeline

    profiled([])  # creates the optimizer's state
    state = sum(value.nbytes for each in optimizer.state.values() for value in each.values() if value is not None)
    found, given = profiled([]), profiled([optimizer])
    assert found == given
    assert found[1]["optimizer"] == state > 0
    assert min(moment.live["optimizer"] for moment in found[2]) == state


@pytest.mark.parametrize("order", ["zero first", "zero last", "never"])
def test_gradients_are_gradients_in_every_order_of_the_loop(order: str, device: str) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    with profile(model, optimizer=optimizer) as p:
        for _ in range(2):
            if order == "zero first":
                optimizer.zero_grad()
            model(torch.randn(4, 64, device=device)).sum().backward()
            optimizer.step()
            if order == "zero last":
                optimizer.zero_grad()
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    assert p.report.memory["gradients"] == size
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_code_without_a_model(device: str) -> None:
    weight = torch.randn(8, 3, device=device, requires_grad=True)
    with profile() as p:
        (torch.randn(4, 8, device=device) @ weight).relu().sum().backward()
    report = p.report
    assert (report.model, report.total_params, report.complete) == ("(no model)", 0, True)
    assert (report.total_macs, report.total_backward_macs) == (4 * 8 * 3, 4 * 8 * 3)
    assert list(report.by_step()) == ["(backward)", "(outside)"]
    assert list(report.by_module()) == [""]
    assert str(report.tree()).splitlines()[1].startswith("(no model)")


def test_several_models_are_named_above_the_tree() -> None:
    with profile([nn.Linear(2, 2), nn.GELU()]) as p:
        nn.functional.gelu(torch.ones(2))
    assert str(p.report.tree()).splitlines()[1].startswith("Linear + GELU")


def test_what_cannot_be_told_is_said() -> None:
    with pytest.raises(InputError, match=r"model is the class Linear, not an instance"):
        profile(nn.Linear)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"no torch\.nn\.Module"):
        profile({"seed": 7})
    p = profile(nn.Linear(2, 2))
    with p, pytest.raises(FxflopsError, match="until the with block has ended"):
        _ = p.report
    with pytest.raises(ZeroDivisionError), profile(nn.Linear(2, 2)) as failed:
        _ = 1 / 0
    assert failed.report.trace == "profiled until it raised ZeroDivisionError"
    with pytest.raises(MissingFormulaError), profile(nn.Linear(2, 2), strict=True):
        torch.ones(2).numpy()


@pytest.mark.parametrize(("args", "kwargs"), [((torch.ones(1, 2),), {}), ((), {"inputs": (torch.ones(1, 2),)})])
def test_who_calls_it_as_thops_is_told_what_to_call(args: Any, kwargs: Any) -> None:
    said = r"profile\(\) takes no inputs: [\s\S]*with fxflops\.profile[\s\S]*count\([\s\S]*adapters\.thop\.profile"
    with pytest.raises(InputError, match=said) as error:
        profile(nn.Linear(2, 2), *args, **kwargs)
    assert isinstance(error.value, TypeError)


def test_further_models_and_optimizers_go_elsewhere() -> None:
    model: Any = nn.Linear(2, 2)
    with pytest.raises(InputError, match=r"by name: profile\(model, optimizer=optimizer\)"):
        profile(model, torch.optim.SGD(model.parameters()))
    with pytest.raises(TypeError, match=r"in a list: profile\(\[one, other\]\)"):
        profile(model, nn.Linear(2, 2))


def test_a_misspelt_argument_is_told_its_name() -> None:
    with pytest.raises(TypeError, match=r"profile\(\) takes no optimiser \(did you mean optimizer\?\)$"):
        profile(nn.Linear(2, 2), optimiser=None)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning", "ignore:.*torch.jit.script:DeprecationWarning")
def test_a_whole_scripted_model() -> None:
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 5), nn.ReLU()))
    with profile(model) as p:
        model(torch.ones(3, 4))
    assert p.report.total_macs == 3 * 4 * 5


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_a_block_that_raised_at_once_has_an_empty_report(error: type[BaseException]) -> None:
    p = profile(nn.Linear(2, 2))
    with pytest.raises(FxflopsError, match="until the with block has ended"):
        _ = p.report
    with pytest.raises(error), p:
        raise error
    assert p.report.total_flops == 0
    assert p.report.trace == f"profiled until it raised {error.__name__}"


def test_without_a_model_there_is_no_mode() -> None:
    with torch.no_grad(), profile() as p:
        torch.ones(2, 3) @ torch.ones(3, 4)
    head = str(p.report).splitlines()[0]
    assert head.startswith("(no model)   cpu")
    assert head.endswith(") · no_grad · profiled as it ran")
    assert "· train" in str(_profiled(nn.Linear(3, 4))).splitlines()[0]


def test_the_inputs_are_those_of_the_models_first_call() -> None:
    model = nn.Linear(3, 4)
    with profile(model) as p:
        model(torch.ones(2, 3))
        model(torch.ones(2, 3))
    assert p.report.inputs == "f32[2,3]"
    assert str(p.report).startswith("Linear   input f32[2,3]   cpu")
    with profile(model) as p:
        model(torch.ones(2, 3))
        model(input=torch.ones(5, 3))
    assert p.report.inputs == "f32[2,3] (first of 2 shapes)"
    with profile([nn.Sequential(model), model]) as p:
        model(torch.ones(2, 3))
    assert p.report.inputs == ""


def _profiled(model: nn.Module) -> Any:
    with profile(model) as p:
        model(torch.ones(2, 3))
    return p.report


class Chosen(nn.Module):
    """A forward whose shapes depend on its input's values, with a view and an op that returns two results."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x[x[:, 0] > 0]
        low, high = self.norm(self.fc(rows)).view(-1, 2, 2).split(1, dim=1)
        return (low * high).amax(dim=1) + torch.nonzero(rows[:, :2]).sum()


@pytest.mark.parametrize("grad", [True, False])
def test_a_call_like_an_earlier_one_is_recorded_as_it_was_made(grad: bool) -> None:
    """Calls after the first of their kind take a faster path. Each pass must be counted like a pass profiled alone."""
    model = Chosen()
    inputs = [torch.ones(n, 4) * sign for n in (3, 5) for sign in (1, 1, -1)] + [torch.ones(3, 4).double().float()]
    with torch.set_grad_enabled(grad):
        with profile(model) as p:
            kept = [model(x) for x in inputs]
        alone = []
        for x in inputs:
            with profile(model) as one:
                model(x)
            alone.append(one.report)
    assert len(kept) == len(inputs)
    names = [f"step {i + 1}" for i in range(len(inputs))]
    steps = p.report.by_step()
    assert [steps[name].total._replace(seconds=None) for name in names] == [
        report.by_step()["step 1"].total._replace(seconds=None) for report in alone
    ]
    made = [[(c.op, c.path, c.out) for c in report.calls if c.path or c.op != "ones"] for report in (*alone,)]
    assert [(c.op, c.path, c.out) for c in p.report.calls] == [call for each in made for call in each]
    assert [s.path for s in p.report.scopes] == [s.path for report in alone for s in report.scopes]


@pytest.mark.parametrize("detail", ["operations", "modules", "steps"])
def test_the_grad_mode_of_a_block_is_shown_only_if_it_is_known(detail: str) -> None:
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    with profile(model, detail=detail) as unknown, torch.no_grad():
        model(x)
    with torch.no_grad(), profile(model, detail=detail) as without:
        model(x)
    with profile(model, detail=detail) as trained:
        model(x).sum().backward()
    with torch.no_grad(), profile(model, detail=detail) as inside, torch.enable_grad():
        model(x).sum().backward()
    assert [p.report.environment.grad for p in (unknown, without, trained, inside)] == ["", "no_grad", "grad", "grad"]
    assert " grad " not in str(unknown.report)


def test_a_block_watches_what_a_mode_of_the_users_sees() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(3, 4)
    with torch.no_grad(), profile(model) as p:
        model(x)
        with FlopCounterMode(display=False) as counter:
            model(x)
        model(x)
    assert counter.get_total_flops() == 2 * 2 * 3 * 4 * 4
    assert p.report.total_macs == 3 * 2 * 3 * 4 * 4


def test_the_peak_is_the_same_whatever_was_made_before() -> None:
    """Without gradients, layer norm's mean and deviation die within its call. A second block starts from nothing."""
    model, x = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()), torch.randn(128, 64)
    peaks = []
    for passes in (1, 4):
        with torch.no_grad(), profile(model) as p:
            for _ in range(passes):
                model(x)
        peaks.append(p.report.max_memory)
    assert peaks[0] == peaks[1]


def test_an_interrupt_leaves_no_function_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Linear(4, 4), torch.randn(3, 4)

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    def run() -> None:
        with profile(model):
            model(x)
            model(x)
            monkeypatch.setattr(nn.functional, "linear", interrupted)
            model(x)

    with torch.no_grad(), pytest.raises(KeyboardInterrupt):
        run()
    monkeypatch.undo()
    with profile() as p:
        torch.randn(3, 4) @ torch.randn(4, 2)
    assert p.report.total_macs == 3 * 4 * 2


def test_what_step_and_schedule_are_for_is_said() -> None:
    p = profile(nn.Linear(2, 2))
    with pytest.raises(FxflopsError, match="inside the block"):
        p.step()
    with pytest.raises(InputError, match=r"torch\.profiler\.schedule\(wait=1"):
        profile(nn.Linear(2, 2), schedule={"wait": 1})  # type: ignore[arg-type]
    with profile(nn.Linear(2, 2), schedule=torch.profiler.schedule(wait=5, warmup=1, active=1)) as p:
        p.step()
    with pytest.raises(FxflopsError, match=r"recorded none of the block's 1 iterations, so there is no report$"):
        _ = p.report


@pytest.mark.parametrize(
    ("iterations", "stepped", "said"),
    [
        (2, True, "none of the block's 2 iterations, so there is no report$"),  # the third would have been recorded
        (3, False, r"none of the block's 0 iterations, .* p\.step\(\) at the end of each iteration$"),
    ],
)
def test_a_schedule_that_begins_too_late(iterations: int, stepped: bool, said: str) -> None:
    model = nn.Linear(2, 2)
    with profile(model, schedule=torch.profiler.schedule(wait=1, warmup=1, active=1)) as p:
        for _ in range(iterations):
            model(torch.ones(1, 2))
            if stepped:
                p.step()
    with pytest.raises(FxflopsError, match=said):
        _ = p.report


def test_a_schedule_records_the_last_iteration_if_no_step_ends_it() -> None:
    model = nn.Linear(2, 2)
    with profile(model, schedule=torch.profiler.schedule(wait=0, warmup=1, active=1)) as p:
        model(torch.ones(1, 2))
        p.step()
        model(torch.ones(1, 2))
    assert p.report.total_macs == 1 * 2 * 2


def test_a_block_in_which_the_model_was_not_called_says_so() -> None:
    model, x = nn.Linear(2, 2), torch.ones(3, 2)
    with profile(model) as empty:
        pass
    with profile(nn.Linear(4, 4)) as wrong:
        model(x)
    with profile([nn.Linear(4, 4), model]) as right:
        model(x)
    with profile() as none:
        model(x)
    remarks = [
        [line for line in str(p.report).splitlines() if " in the block: " in line] for p in (empty, wrong, right, none)
    ]
    assert remarks[0][0].startswith("nothing ran in the block: ")
    assert remarks[1][0].startswith("the model was never called in the block: ")
    assert remarks[2:] == [[], []]


def test_each_argument_of_other_profilers_is_told_what_takes_its_place() -> None:
    with pytest.raises(InputError, match=r"no warmup, output_file: (?s:.*)schedule=(?s:.*); report\.save\("):
        profile(LAYER, warmup=3, output_file="trace.json")  # type: ignore[arg-type]


def test_what_a_profile_does_not_have_is_said_where_it_is() -> None:
    p = profile(nn.Linear(2, 2))
    with pytest.raises(
        AttributeError, match=r"no attribute 'start'.*with fxflops\.profile[\s\S]*deepspeed\.FlopsProfiler"
    ):
        p.start()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"p\.report\.total_flops$"):
        _ = p.total_flops  # type: ignore[attr-defined]


class Replacing(TorchFunctionMode):
    """A user's mode that makes linear layers return sevens."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return torch.full_like(out, 7.0) if func is nn.functional.linear else out


@pytest.mark.parametrize("inside", [True, False])
def test_modes_of_the_users_are_on_in_every_call(inside: bool) -> None:
    model, x = nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2)
    sevens = torch.full((1, 2), 7.0)
    with (
        torch.no_grad(),
        nullcontext() if inside else Replacing(),
        profile(model),
        Replacing() if inside else nullcontext(),
    ):
        assert all(torch.equal(model(x), sevens) for _ in range(3))
        assert all(torch.equal(nn.functional.linear(x, torch.ones(2, 2)), sevens) for _ in range(3))
    with torch.device("meta"), profile():
        assert [torch.zeros(3).device.type for _ in range(3)] == ["meta"] * 3


@pytest.mark.parametrize(
    "around",
    [
        torch.inference_mode,
        torch.no_grad,
        partial(torch.autocast, "cpu", torch.bfloat16),
        partial(torch.autograd.graph.disable_saved_tensors_hooks, "none"),
        partial(torch.device, "meta"),
    ],
    ids=["inference", "no grad", "autocast", "no hooks", "meta"],
)
def test_a_block_in_any_state_of_torch(around: Any) -> None:
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    with around(), profile(model) as p:
        model(x)
        model(x)
    assert p.report.total_macs == 2 * 2 * 4 * 4
    assert p.report.block_time


def test_a_mode_around_a_block_sees_what_the_block_does_alone() -> None:
    class Seeing(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    found = []
    x = torch.ones(3)
    for watched in (True, False):
        with Seeing() as mode, profile() if watched else nullcontext():
            x.exp()
        found.append(mode.seen)
    assert found == [["aten.exp.default"]] * 2


class Positions(nn.Module):
    """A user's layer with its own formula. It also counts itself with a FlopCounterMode, which must still see its operators."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            y = x @ x.T
        return y, counter.get_total_flops()


def test_a_layer_of_the_users_runs_as_it_is() -> None:
    model = nn.Sequential(Positions())
    with torch.no_grad(), profile(model, formulas={Positions: lambda *_, **__: 1}) as p:
        found = [model(torch.ones(2, 4))[1] for _ in range(3)]
    assert found == [2 * 2 * 4 * 2] * 3
    assert p.report.total_flops == 3


PEAKS: dict[str, Any] = {
    "thawed": lambda model, x: [model.requires_grad_(learns)(x) for learns in (False, True, True)],
    "saved elsewhere": lambda model, x: [model(x), _saved(model, x), _saved(model, x)],
    "conjugate": lambda model, x: [y.resolve_conj() for y in _complex(x)],
    "resized": lambda model, x: [torch.zeros(0).resize_(1000, 100) for _ in range(3)],
}


def _saved(model: nn.Module, x: torch.Tensor) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        return model(x)


def _complex(x: torch.Tensor) -> list[torch.Tensor]:
    y = torch.complex(x, x)
    return [y, y.conj(), y.conj()]


@pytest.mark.parametrize("case", PEAKS)
def test_the_memory_of_a_call_that_looks_like_an_earlier_one(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak must be the same as in a block that observes every call from scratch."""
    x = torch.randn(8, 100, 16)

    def peak() -> int:
        model = nn.GRU(16, 64, batch_first=True) if case == "thawed" else nn.Sequential(nn.Linear(16, 64), nn.Tanh())
        with profile(model) as p:
            kept = PEAKS[case](model, x)
        assert kept
        return p.report.max_memory

    found = peak()
    monkeypatch.setattr(ProfiledWorld, "memo_of_functions_and_leaves", lambda *_: None)
    assert found == peak()


LAYER = nn.Linear(WIDTH, WIDTH)
X = torch.randn(TOKENS, WIDTH)


class Counting(torch.autograd.Function):
    """The identity; its forward and backward each count a model."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        count(LAYER, X)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        count(LAYER, X)
        return grads[0]


COUNTS: dict[str, Callable[[], object]] = {
    "count": lambda: count(LAYER, X),
    "of a step": lambda: count(LAYER, X, backward=True, optimizer=torch.optim.SGD(LAYER.parameters(), 0.1)),
    "analyze": lambda: analyze(LAYER, X, backward=True, repeats=1, progress=False),
    "of another model": lambda: count(OTHER, X),
}
OTHER = nn.Linear(WIDTH, 1)


@pytest.mark.parametrize("inside", COUNTS)
@pytest.mark.parametrize("detail", ["operations", "modules", "steps"])
def test_a_count_in_a_block_is_no_part_of_it(detail: str, inside: str) -> None:
    def block(inside: Callable[[], object]) -> Any:
        with profile(LAYER, detail=detail) as p:
            loss = LAYER(X).sum()
            inside()
            loss.backward()
            inside()
        LAYER.zero_grad()
        return p.report

    alone, beside = block(lambda: None), block(COUNTS[inside])
    assert [*beside.by_step()] == [*alone.by_step()]
    assert len(beside.scopes) == len(alone.scopes) == 1
    if detail == "operations":
        assert facts_of(beside) == facts_of(alone)


def test_a_count_in_a_function_of_a_block_is_no_part_of_it() -> None:
    with profile(LAYER) as p:
        Counting.apply(LAYER(X)).sum().backward()  # type: ignore[no-untyped-call]
    LAYER.zero_grad()
    assert p.report.by_module()[""].calls == 1
    assert p.report.total_macs == TOKENS * WIDTH * WIDTH


def test_a_default_device_reaches_the_forward_that_a_block_counts() -> None:
    class Makes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.ones(TOKENS, WIDTH)

    with torch.device("meta"), profile(OTHER):
        report = count(Makes(), torch.empty(TOKENS, WIDTH))
    assert report.trace_reason == ""
    assert report.total_flops == TOKENS * WIDTH


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization:DeprecationWarning", "ignore:.*quantiz:UserWarning")
def test_packed_weights_of_a_quantized_model_stay_alive() -> None:
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("no quantized kernels")
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8)), {nn.Linear})
    x = torch.randn(2, 8)
    with torch.no_grad(), profile(model) as p:
        model(x)
    counted = count(model, x)
    assert p.report.memory["params"] == counted.memory["params"] == counted.params.bytes
    assert p.report.max_memory == counted.max_memory


def test_gradients_of_several_outputs_at_once() -> None:
    layer, x = nn.Linear(4, 3), torch.randn(5, 4, requires_grad=True)
    with profile(layer) as p:
        torch.autograd.grad(layer(x), x, torch.eye(15).view(15, 5, 3), is_grads_batched=True)
    assert p.report.complete
    assert p.report.total_macs == 5 * 4 * 3
    assert p.report.total_backward_macs == 15 * 5 * 3 * 4


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace", "error:Converting a tensor")
def test_sizes_that_torch_traces_are_numbers() -> None:
    layer, x = nn.Linear(4, 3), torch.randn(5, 4)
    with profile(layer) as p:
        traced = torch.jit.trace(layer, x, check_trace=False)  # type: ignore[no-untyped-call]
    assert type(p.report.total_macs) is int
    assert p.report.total_macs == 5 * 4 * 3
    assert p.report.to_json()
    assert torch.equal(traced(x), layer(x))


def test_the_result_of_a_loop_of_torch_outlives_the_block() -> None:
    layer, x, shapes = nn.Linear(3, 3), torch.randn(5, 2, 3), []

    def step(carry: torch.Tensor, each: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shapes.append(tuple(carry.shape))  # torch 2.6 calls step more often
        return layer(carry) + each, carry + each

    with torch.no_grad(), profile(layer) as p:
        out = scan(step, x[0], x)
    assert [part.shape for part in out] == [(2, 3), (5, 2, 3)]
    assert p.report.complete
    assert p.report.total_macs == len(shapes) * 2 * 3 * 3
    assert {*shapes} == {(2, 3)}


class Writes(nn.Linear):
    """Has ``generate``, which a block replaces while it is observed."""

    def generate(self, x: torch.Tensor) -> torch.Tensor:
        return self(x)


def modes_and_hooks(model: nn.Module) -> tuple[Any, ...]:
    return (
        _len_torch_function_stack(),
        _len_torch_dispatch_stack(),
        len(model._forward_hooks),
        "generate" in vars(model),
        len(_global_optimizer_pre_hooks),
    )


@pytest.mark.parametrize("detail", ["operations", "modules", "steps"])
@pytest.mark.parametrize("reason", ["no pyinstrument", "a schedule that raises", "an instrument that cannot start"])
def test_a_block_that_cannot_begin_leaves_everything_as_it_was(
    reason: str, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, error = Writes(4, 4), ValueError("not today")

    def fails(*_: Any) -> Any:
        raise error

    expected: type[Exception] = ValueError
    p = profile(model, detail=detail, lines=True) if reason == "no pyinstrument" else profile(model, detail=detail)
    if reason == "no pyinstrument":
        monkeypatch.setitem(sys.modules, "pyinstrument", None)
        expected = FxflopsError
    elif reason == "a schedule that raises":
        p = profile(model, detail=detail, schedule=fails)
    else:
        monkeypatch.setattr("fxflops.run.block.data_loaders_watched", fails)
    before = modes_and_hooks(model)
    with pytest.raises(expected), p:
        pass
    assert modes_and_hooks(model) == before
    assert p._block is None


def recording(only: int) -> Callable[[int], ProfilerAction]:
    """Return a schedule that records only the iteration with this number."""
    return lambda number: ProfilerAction.RECORD if number == only else ProfilerAction.NONE


def test_each_block_of_one_profile_has_its_own_report() -> None:
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    p = profile(model, schedule=recording(0))
    with p:
        model(x)
        p.step()
    first = p.report
    assert first.total_macs == 2 * 4 * 4
    with p:
        with pytest.raises(FxflopsError, match="until the with block has ended"):
            p.report  # noqa: B018
        model(torch.ones(3, 4))
    assert p.report is not first
    assert p.report.total_macs == 3 * 4 * 4
    assert [*first.step_times()] == ["step 1"]
    assert [*p.report.step_times()] == ["(outside)", "step 1"]  # iterations are numbered anew: this loop has none
    with pytest.raises(ZeroDivisionError), p:
        raise ZeroDivisionError
    with p, pytest.raises(InputError, match="a profile of its own"), p:
        pass


@pytest.mark.parametrize("detail", ["operations", "modules", "steps"])
def test_a_schedule_that_recorded_nothing_gives_no_report(detail: str) -> None:
    model = nn.Linear(4, 4)
    with profile(model, detail=detail, schedule=recording(1)) as p:
        model(torch.ones(2, 4))
        p.step()
    with pytest.raises(FxflopsError, match="recorded none of the block's 1 iterations"):
        p.report  # noqa: B018


@pytest.mark.parametrize("deletes", [False, True])
def test_a_generate_that_the_block_assigns_stays(deletes: bool) -> None:
    model = Writes(4, 4)
    with profile(model) as p:
        model.generate = own = lambda x: model(2 * x)  # type: ignore[method-assign, assignment]
        model.generate(torch.ones(2, 4))
        if deletes:
            del model.generate  # type: ignore[attr-defined]
    assert vars(model).get("generate") is (None if deletes else own)
    assert p.report.total_macs == 2 * 4 * 4


def test_blocks_on_one_model_that_overlap_in_two_threads_restore_generate() -> None:
    model, x = Writes(4, 4), torch.ones(2, 4)
    first, second = ExitStack(), ExitStack()
    profiles = [first.enter_context(profile(model))]
    with ThreadPoolExecutor(1) as other:
        profiles.append(other.submit(second.enter_context, profile(model)).result())
        first.close()
        other.submit(model.generate, x).result()
        other.submit(second.close).result()
    assert "generate" not in vars(model)
    assert [*profiles[1].report.step_times()] == ["(outside)", "prefill"]
