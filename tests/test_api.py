"""analyze and count: accepted inputs, refused inputs and their messages, and that both agree."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import fxflops
from fxflops import FxflopsError, InputError, MissingFormulaError, RunError, TorchFLOPsByFX, TraceError, analyze, count


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.second = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor, scale: float = 2.0, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.first(x) * scale
        if mask is not None:
            x = x + mask
        return self.second(x) + self.second(x)


def propagate(model: Any, *args: Any, **kwargs: Any) -> fxflops.Report:
    return TorchFLOPsByFX(model).propagate(*args, **kwargs)


def line_with(words: str) -> int:
    """The number of the first line of this file that contains these words."""
    return next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if words in text)


FIRST, SECOND, RELU, ONE = 2 * 5 * 4 * 3, 2 * 4 * 4 * 3, 4 * 3, 4 * 3


@pytest.mark.parametrize("run", [analyze, count])
def test_totals_by_hand(run: Any) -> None:
    report = run(Two(), torch.ones(3, 5))
    assert report.total_flops == FIRST + ONE + 2 * (SECOND + RELU) + ONE
    assert report.total_macs == 5 * 4 * 3 + 2 * 4 * 4 * 3
    assert report.total_params == 24 + 20
    assert report.complete
    assert report["second"].total.flops == 2 * (SECOND + RELU)
    assert report["second"].calls == 2
    assert report["second.0"].own.flops == 2 * SECOND
    assert report[""].own.flops == 2 * ONE
    assert report[""].total.flops == report.total_flops
    assert report.by_operator()["linear"].total.flops == FIRST + 2 * SECOND
    assert report.by_module_and_operator()["second"]["relu"].total.flops == 2 * RELU
    assert sum(row.own.flops for row in report.by_module().values()) == report.total_flops


def test_count_and_analyze_see_the_same_calls() -> None:
    model, x = Two(), torch.ones(3, 5)
    seen = [[(c.op, c.args[:1], c.out, c.path) for c in run(model, x).calls] for run in (analyze, count)]
    assert seen[0] == seen[1]


@pytest.mark.parametrize("run", [analyze, count])
def test_arguments_that_are_no_tensors_choose_the_branch(run: Any) -> None:
    base = run(Two(), torch.ones(3, 5)).total_flops
    assert run(Two(), (torch.ones(3, 5), 3.0)).total_flops == base
    assert run(Two(), torch.ones(3, 5), {"mask": torch.ones(3, 4)}).total_flops == base + ONE
    assert run(Two(), (), {"x": torch.ones(3, 5), "mask": torch.ones(4)}).total_flops == base + ONE


def test_time_and_memory_are_measured() -> None:
    report = analyze(Two(), torch.ones(3, 5), repeats=2)
    assert report.timing is not None
    assert report.timing.repeats == 2
    assert report.latency is not None
    assert report.latency > 0
    assert report.total_time == pytest.approx(sum(n.timing.median for n in report.nodes if n.timing))
    assert report.total_time == pytest.approx(report[""].total.seconds)
    state = (24 + 20) * 4 + 3 * 5 * 4
    assert report.memory["params"] + report.memory["buffers"] + report.memory["inputs"] == state
    # The peak holds the first branch's result and the second branch's linear and relu: three tensors of 3 x 4.
    x = 3 * 4 * 4
    assert report.max_memory == state + 4 * x
    assert report.memory.source == "storages"


def test_not_measured_is_none() -> None:
    report = analyze(Two().to("meta"), torch.ones(3, 5, device="meta"))
    assert report.latency is None
    assert report.total_time is None
    assert report.memory.source == "predicted"
    assert report.total_flops == count(Two(), torch.ones(3, 5)).total_flops
    assert analyze(Two(), torch.ones(3, 5), repeats=0).total_time is None
    assert count(Two(), torch.ones(3, 5)).latency is None


@pytest.mark.parametrize("run", [analyze, count, propagate])
@pytest.mark.parametrize(
    ("model", "args", "words"),
    [
        (nn.Linear, torch.ones(1), ["class Linear, not an instance"]),
        ("resnet50", torch.ones(1), ["must be a torch.nn.Module or a callable, not str"]),
        (Two(), (1, 3, 224, 224), ["shape", "torch.randn(1, 3, 224, 224)"]),
        (Two(), (torch.ones(3, 5), 1.0, None, 4), ["Two.forward", "too many positional"]),
    ],
)
def test_bad_input_says_what_to_do(run: Any, model: Any, args: Any, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        run(model, *args) if run is propagate and isinstance(args, tuple) else run(model, args)
    for word in words:
        assert word in str(error.value)


def test_a_batch_given_as_args_is_told_to_be_kwargs() -> None:
    with pytest.raises(InputError, match="pass it as kwargs"):
        analyze(Two(), {"x": torch.ones(3, 5)})


def test_unknown_choices_name_the_known() -> None:
    for arguments, word in [
        ({"mode": "evaluate"}, "'eval', 'train', 'as_is'"),
        ({"convention": "fvcor"}, "'torch_flops'"),
        ({"trace": "jit"}, "'auto', 'symbolic'"),
        ({"repeats": -1}, "an integer of at least 0"),
    ]:
        with pytest.raises(InputError, match=word):
            analyze(Two(), torch.ones(3, 5), **arguments)  # type: ignore[arg-type]


def test_analyze_says_what_takes_an_optimizer() -> None:
    with pytest.raises(InputError, match=r"count\(.*optimizer=[\s\S]*profile\(") as error:
        analyze(Two(), torch.ones(3, 5), optimizer=torch.optim.SGD)  # type: ignore[arg-type]
    assert isinstance(error.value, TypeError)


class Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(Two())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x).view(-1, 7)  # the author's line


@pytest.mark.parametrize("run", [analyze, count, propagate])
def test_an_error_names_node_module_shapes_and_line(run: Any) -> None:
    with pytest.raises(RunError) as error:
        run(Raises(), torch.ones(3, 6))
    text = str(error.value)
    assert "block.0.first" in text
    assert "f32[3,6]" in text
    assert "mat1 and mat2" in text or "same reduction dim" in text
    assert "test_api.py:" in text
    assert isinstance(error.value.__cause__, RuntimeError)
    if run is not count:
        assert error.value.node == "block_0_first"

    with pytest.raises(RunError) as error:
        run(Raises(), torch.ones(3, 5))
    line = line_with("# the author's line")
    assert f"test_api.py:{line}" in str(error.value)
    assert "f32[3,4]" in str(error.value)


@pytest.mark.parametrize(
    ("outer", "inner", "said"),
    [(True, True, "train"), (False, False, "eval"), (True, False, "train and eval")],
)
def test_the_mode_of_a_model_as_it_is(outer: bool, inner: bool, said: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout())
    model.train(outer)
    model[1].train(inner)
    assert f" · {said} · " in str(count(model, torch.ones(2, 3), mode="as_is"))
    assert " · eval · " in str(count(model, torch.ones(2, 3)))


def test_a_model_that_cannot_be_traced_says_where_and_why() -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 0:  # the branch
                return x + 1
            return x

    with pytest.raises(TraceError, match=r"control flow[\s\S]*test_api\.py:\d+ in forward"):
        analyze(Branch(), torch.ones(2), trace="symbolic")
    with pytest.raises(TraceError):
        _ = TorchFLOPsByFX(Branch()).graph_model


def test_an_unknown_op_is_missing_never_zero() -> None:
    torch.library.define("fxflops_tests::scan", "(Tensor x) -> Tensor")
    torch.library.impl("fxflops_tests::scan", "default")(lambda x: x.clone())

    class Custom(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.fxflops_tests.scan(x) + 1  # the custom op

    model, x = Custom(), torch.ones(2, 3)
    line = line_with("# the custom op")
    for report in (analyze(model, x), count(model, x)):
        assert not report.complete
        assert report.total_flops == 6
        (missing,) = report.missing
        assert missing.op == "fxflops_tests::scan"
        assert missing.calls == 1
        assert missing.shapes == "f32[2,3] -> f32[2,3]"
        assert missing.site.endswith(f"test_api.py:{line}")
        assert "@fxflops.formula(torch.ops.fxflops_tests.scan)" in report.recipe()
        assert "INCOMPLETE" in str(report)
        assert "fxflops_tests::scan" in str(report)
    with pytest.raises(MissingFormulaError, match="fxflops_tests::scan x1"):
        count(model, x, strict=True)
    known = count(model, x, formulas={torch.ops.fxflops_tests.scan: lambda x, *, out: 5 * out.numel()}, strict=True)
    assert known.total_flops == 6 + 5 * 6


def test_every_error_is_an_fxflops_error() -> None:
    assert all(issubclass(e, FxflopsError) for e in (InputError, RunError, TraceError, MissingFormulaError))


@pytest.mark.parametrize("run", [analyze, count])
def test_what_depends_on_no_input_is_counted_too(run: Any) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (self.scale**2 + 1) * torch.arange(3.0).exp()

    report = run(Scaled(), torch.ones(2, 3))
    assert report.total_flops == 3 + 3 + 6 + 3 + 6
    if run is analyze:
        assert propagate(Scaled(), torch.ones(2, 3)).total_flops == report.total_flops


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning", "ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("run", [analyze, count, propagate])
def test_a_scripted_module_is_counted_by_what_it_dispatches(run: Any) -> None:
    model = nn.Sequential(torch.jit.script(nn.Linear(3, 4)), nn.Linear(4, 4))
    report = run(model, torch.ones(2, 3))
    assert report.complete
    assert report.total_macs == 2 * 4 * 3 + 2 * 4 * 4
    assert report["0"].total.macs == 2 * 4 * 3


@pytest.mark.parametrize("run", [analyze, count, propagate])
def test_a_compiled_model_counts_as_itself(run: Any) -> None:
    assert (
        run(torch.compile(Two(), backend="eager"), torch.ones(3, 5)).total_flops
        == count(Two(), torch.ones(3, 5)).total_flops
    )


def test_a_numpy_array_is_told_to_be_a_tensor() -> None:
    for run in (analyze, count):
        with pytest.raises(InputError, match=r"torch\.from_numpy"):
            run(Two(), torch.ones(3, 5).numpy())


@pytest.mark.parametrize("run", [analyze, count, propagate])
def test_under_vmap_what_is_dispatched_is_counted(run: Any) -> None:
    class Mapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.vmap(self.fc)(x).relu()

    report = run(Mapped(), torch.ones(10, 4))
    assert report.complete
    assert report.total_macs == 10 * 4 * 4


@pytest.mark.parametrize("args", [([1, 2, 3],), [1, 2, 3]], ids=str)
def test_integers_are_inputs_where_the_model_takes_them(args: Any) -> None:
    """Node ids as inputs: 3 rows of 4 by (4, 5)."""

    class Nodes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.fc = nn.Embedding(10, 4), nn.Linear(4, 5)

        def forward(self, nodes: list[int]) -> torch.Tensor:
            return self.fc(self.embedding(torch.tensor(nodes)))

    for report in (count(Nodes(), args), analyze(Nodes(), args, repeats=1, progress=False)):
        assert report.total_macs == 3 * 4 * 5


def test_a_shape_that_the_model_raises_on() -> None:
    for args in ([2, 3], (2, 3), ((2, 3),)):
        for run in (count, analyze):
            with pytest.raises(InputError, match=r"torch\.randn\(2, 3\)") as caught:
                run(nn.Linear(3, 4), args)
            assert args == (2, 3) or isinstance(caught.value.__cause__, fxflops.RunError)


def test_a_device_made_in_forward_is_no_op() -> None:
    class Places(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.zeros(4, device=torch.device("cpu"))

    assert count(Places(), torch.ones(2, 4), strict=True).total_flops == 8


def test_count_takes_the_real_tensors_where_values_are_needed_and_says_so() -> None:
    class Values(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * x.sum().item()

    report = count(Values(), torch.ones(2, 4))
    assert report.total_flops == 7 + 8
    assert report.trace == "counted on real tensors"
    assert "item() cannot be called on meta" in report.trace_reason
    assert report.memory.source == "storages"
    with pytest.raises(RunError, match="give a model with real tensors"):
        count(Values(), torch.ones(2, 4, device="meta"))


def test_count_refuses_rather_than_run_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Grows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            while x.sum().item() > 0:
                x = torch.cat([x, x])
            return x

    monkeypatch.setattr("fxflops.run.model_run.cap_of", lambda device: 10_000)
    with pytest.raises(
        InputError, match=r"(?s)item\(\) cannot be called on meta.*\n  they take more.* cap of 9\.77 KiB"
    ):
        count(Grows(), torch.ones(10))


class Fails(nn.Module):
    """Its symbolic graph fails to run. After that its own forward raises, too."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        (x,) = given.values()
        STEPS.append(1)
        if len(STEPS) > 1:
            raise ValueError("no more")
        return x + 1


STEPS: list[int] = []


def test_of_two_errors_the_models_own_is_told() -> None:
    STEPS.clear()
    with pytest.raises(fxflops.RunError, match="no more"):
        analyze(Fails(), {"x": torch.ones(2)}, repeats=0, progress=False)


class Copying(nn.Module):
    """Its forward runs a copy of a layer, which has gradients. A symbolic graph would hold the copy as a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return copy.deepcopy(self.layer)(x)  # type: ignore[no-any-return]


def test_a_graph_without_gradients_of_a_model_that_has_them_is_not_taken() -> None:
    report = analyze(Copying(), torch.ones(2, 4), backward=True, repeats=0, progress=False)
    assert report.trace == "recorded trace"
    assert report.total_backward_macs == 2 * 4 * 4  # of the weight: the input needs no gradient


# summary


def test_a_summary_from_shapes() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 5))
    shown = fxflops.summary(net, input_size=(2, 3, 8, 8))
    rows = [line.split() for line in str(shown).splitlines()[:5]]
    assert rows[1] == ["Sequential", "f32[2,3,8,8]", "f32[2,5]", "837", "9.22", "k"]
    # 3 x 3 x 3 weights for each of 4 channels, at 6 x 6 positions of 2 images
    assert rows[2][1:] == ["0", "Conv2d", "f32[2,3,8,8]", "f32[2,4,6,6]", "112", "7.78", "k"]
    assert shown.report == fxflops.count(net, torch.zeros(2, 3, 8, 8))
    assert repr(shown) == str(shown) == f"{shown.tree}\n\n{shown.report}"
    assert fxflops.summary(net, (3, 8, 8), batch_dim=0).report.inputs == "f32[1,3,8,8]"
    assert fxflops.summary(net, tuple(numpy.array([2, 3, 8, 8]))).report == shown.report
    assert fxflops.summary(net, [numpy.array([2, 3, 8, 8]).tolist()]).report == shown.report
    assert fxflops.summary(nn.ReLU(), (3, 8), batch_dim=-1).report.inputs == "f32[3,8,1]"  # like unsqueeze
    assert fxflops.summary(net, input_data=torch.zeros(2, 3, 8, 8)).report == shown.report
    assert shown._repr_html_().count("<table") > 2


def test_a_summary_of_several_inputs_with_dtypes() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 4)

        def forward(self, words: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return self.embed(words) * scale

    found = fxflops.summary(Words(), [(1, 3), (1, 3, 4)], dtypes=[torch.long, torch.float64])
    assert found.report.inputs == "i64[1,3] f64[1,3,4]"
    assert fxflops.summary(Words().to("meta"), [(1, 3), (1, 3, 1)], dtypes=[torch.long, torch.float32]).report.complete


class Chooses(nn.Module):
    """A model whose work depends on the values of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.big = nn.Linear(8, 8), nn.Linear(8, 1000)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if x.sum() == 0:
            raise ValueError("zeros")
        return self.big(x) if x.mean() > 0 and (mask is None or mask.all()) else self.small(x)


def test_a_summary_of_a_model_that_reads_values() -> None:
    model, chance = Chooses(), torch.get_rng_state()
    assert fxflops.summary(model, (2, 8)).total_macs == 2 * 8 * 1000
    assert fxflops.summary(model, [(2, 8), (2,)], dtypes=[torch.float32, torch.bool]).total_macs == 2 * 8 * 1000
    assert torch.equal(torch.get_rng_state(), chance)


class Scaled(nn.Linear):
    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x) if scale is None else super().forward(x) * scale


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ({"input_data": [torch.ones(2, 4), torch.ones(4)]}, "f32[2,4] f32[4]"),
        ({"input_data": (torch.ones(2, 4), torch.ones(4))}, "f32[2,4] f32[4]"),
        ({"input_data": {"x": torch.ones(2, 4)}}, "f32[2,4]"),
        ({"input_data": {"x": torch.ones(2, 4)}, "kwargs": {"scale": torch.ones(4)}}, "f32[2,4] f32[4]"),
        ({"kwargs": {"x": torch.ones(2, 4)}}, "f32[2,4]"),
    ],
)
def test_a_summary_takes_inputs_as_torchinfo_does(given: dict[str, Any], inputs: str) -> None:
    assert fxflops.summary(Scaled(4, 4), **given).report.inputs == inputs


def test_a_tree_tells_the_frozen_layer_from_those_alike() -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    model[1].requires_grad_(False)
    report = fxflops.count(model, torch.ones(1, 8))
    shown = [
        line.split() for line in str(fxflops.Report.from_dict(report.to_dict()).tree(columns="params")).splitlines()
    ]
    assert [line[1:] for line in shown[1:]] == [
        ["288", "(72", "frozen)"],
        ["0", "Linear", "72"],
        ["1", "Linear", "72", "frozen"],
        ["2..3", "Linear", "x2", "(each)", "72"],
    ]
    assert [row["params"] for row in report.tree().to_dicts()] == [288, 72, 72, 72]
    assert "72 frozen" not in str(fxflops.count(model.requires_grad_(True), torch.ones(1, 8)).tree())


def test_a_summary_is_asked_as_a_report_is() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
    found = fxflops.summary(net, (1, 4))
    assert found["1.0"] == found.report["1.0"]
    assert str(found.tree(depth=1)) == str(fxflops.summary(net, (1, 4), depth=1).tree)
    assert str(found.tree(2, columns="flops")) == str(found.report.tree(2, columns="flops"))
    with pytest.raises(fxflops.InputError, match="depth must be an int of at least 0"):
        found.tree("2")  # type: ignore[arg-type]


def test_a_summary_says_where_its_figures_are() -> None:
    found = fxflops.summary(nn.Linear(4, 4), (1, 4))
    assert (found.total_params, found.trainable_params, found.total_mult_adds) == (
        20,
        20,
        20,
    )  # with biases, like torchinfo
    with pytest.raises(AttributeError, match=r"ModelSummary has no to_dicts: use \.tree\.to_dicts$"):
        _ = found.to_dicts
    with pytest.raises(AttributeError, match=r"has no to_csv: use \.report\.to_csv or \.tree\.to_csv$"):
        _ = found.to_csv
    with pytest.raises(AttributeError, match=r"ModelSummary has no total; fxflops.adapters.torchinfo.summary returns"):
        _ = found.total


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {},
            "summary.. needs either input_size, such as input_size=.1, 3, 224, 224., or input_data=x; .*torchinfo.summary",
        ),
        ({"input_size": (1, 4), "input_data": torch.zeros(1, 4)}, "needs either input_size"),
        ({"input_size": (1, "a")}, "input_size must be a shape"),
        ({"input_size": []}, "input_size must be a shape"),
        ({"input_size": 4}, "input_size must be a shape"),
        ({"input_size": (0, 4)}, "sizes of at least 1"),
        (
            {"input_size": (1, 4), "dtypes": [torch.long] * 2},
            "dtypes must have one dtype, such as torch.long, for each of the 1 inputs",
        ),
        (
            {"input_size": (1, 4), "row_settings": []},
            "fxflops.adapters.torchinfo.summary takes torchinfo's own arguments$",
        ),
        ({"input_size": (1, 4), "col_names": ["output_size"]}, 'columns="inputs, output, params" chooses columns'),
        (
            {"input_size": (1, 4), "verbose": 0, "col_names": ["a"], "device": "cpu", "row_settings": ["depth"]},
            r"takes no verbose, col_names, device, row_settings: print the returned object .*; columns=.*; .*x\.to\(device\); fxflops.adapters.torchinfo.summary takes",
        ),
        (
            {"input_size": (1, 4), "columns": ["kernel_size"]},
            "; fxflops.adapters.torchinfo.summary has torchinfo's columns$",
        ),
        ({"input_sise": (1, 4)}, r"takes no input_sise \(did you mean input_size"),
        ({"input_size": (1, 4), "verbose": 0}, r"takes no verbose: print the returned object"),
        ({"input_size": (1, 4), "device": "cpu"}, r"takes no device: .*: model\.to\(device\), x\.to\(device\)"),
        ({"args": (torch.ones(1, 4),)}, r"takes no args: input_data=\[a, b\]"),
        ({"input_size": torch.ones(1, 4)}, r"not a tensor: pass a tensor as input_data=x$"),
        ({"input_size": {"input": (1, 4)}}, r'by name as tensors, input_data=\{"input": tensor, \.\.\.\}$'),
        (
            {"input_size": (3, 4), "batch_dim": 9},
            r"batch_dim must be a position in the shape \(3, 4\), from 0 to 2, not 9$",
        ),
        ({"input_size": (4,), "batch_dim": "0"}, r"batch_dim must be a position .*, from 0 to 1, not '0'$"),
    ],
)
def test_arguments_that_a_summary_cannot_take(given: dict[str, Any], said: str) -> None:
    with pytest.raises(fxflops.InputError, match=said):
        fxflops.summary(nn.Linear(4, 4), **given)


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        (
            nn.Bilinear(4, 4, 2),
            {"input_size": (2, 4)},
            r"argument: 'input2'\n.*\(Tensor\).*input_size=\[.*input_data=\[",
        ),
        (
            nn.Bilinear(4, 4, 2),
            {"input_data": {"input1": 1, "inptu2": 2}},
            r"no parameter 'inptu2' \(did you mean input2 or input1\?\)\n",
        ),
        (Scaled(4, 4), {"input_size": (2, 4), "kwargs": {"scael": 1}}, r"'scael' \(did you mean scale\?\)\n"),
        (nn.Embedding(9, 4), {"input_size": (1, 3)}, r"token ids: pass dtypes=\[torch.long\]"),
        (nn.Linear(4, 4).bfloat16(), {"input_size": (1, 4)}, r"\n  pass dtypes=\[torch.bfloat16\]"),
        (
            Scaled(4, 4),
            {"input_size": (1, 3), "batch_dim": 0},
            r"\n  batch_dim=0 added a dimension of 1 to input_size=\(1, 3\)$",
        ),
        (Scaled(4, 4), {"input_data": {"y": 1}}, r"\n  the dict was passed as input x: forward has no parameter 'y'$"),
        (
            Scaled(4, 4),
            {"input_data": {"scales": 1}},
            r"passed as input x: .* no parameter 'scales' \(did you mean scale\?\)$",
        ),
        (
            nn.Identity(),
            {"input_data": {1: 2}, "kwargs": {"y": 1}},
            "passed as input input: forward has no parameter 1$",
        ),
    ],
)
def test_a_summary_says_in_its_own_words_how_inputs_are_given(
    model: nn.Module, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(fxflops.InputError, match=said) as raised:
        fxflops.summary(model, **given)
    assert "args=" not in str(raised.value)
    assert ".to(dtype)" not in str(raised.value)
