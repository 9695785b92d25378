"""User formulas: by @formula, by writing to a MAPPING, or by argument; and which calls they must not apply to."""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from fxflops import (
    Cost,
    FormulaError,
    FUNCTION_FLOPs_MAPPING,
    METHOD_FLOPs_MAPPING,
    MODULE_FLOPs_MAPPING,
    analyze,
    count,
    profile,
)
from fxflops.ops import BASE

X = torch.ones(2, 3)


@pytest.fixture(autouse=True)
def _tables_as_before() -> Iterator[None]:
    entries, functions = dict(BASE.entries), dict(BASE.python_functions)
    yield
    BASE.entries.clear()
    BASE.entries.update(entries)
    BASE.python_functions.clear()
    BASE.python_functions.update(functions)


class Calls(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Applied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.rate = 7

    def forward(self, x: torch.Tensor, power: int = 2) -> torch.Tensor:
        return x * self.weight**power


def shifted(x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    return x + by


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return shifted(self.gate(x)).exp()


def ops(report: fxflops.Report) -> list[tuple[str, int, str]]:
    return [(c.call.op, c.flops, c.call.path) for c in report.counted]


@pytest.mark.parametrize("run", [analyze, count])
def test_by_decorator(run: Any) -> None:
    @fxflops.formula(Gate)
    def gate(module: Gate, x: Any, power: int = 2, *, out: Any) -> int:
        return int(module.rate * x.numel())

    @fxflops.formula(shifted)
    def shift(x: Any, by: float = 1.0, *, out: Any) -> Cost:
        return Cost(adds=100)

    @fxflops.formula("exp", op="my_exp")
    def exp(x: Any, *, out: Any) -> int:
        return 3

    assert ops(run(Model(), X)) == [("Gate", 7 * 6, "gate"), ("shifted", 100, ""), ("my_exp", 3, "")]


@pytest.mark.parametrize("run", [analyze, count])
def test_by_argument_for_one_run(run: Any) -> None:
    formulas = {
        Gate: lambda module, x, *, out: 10,
        shifted: lambda x, by=1.0, *, out: 20,
        "exp": lambda x, *, out: 30,
    }
    assert run(Model(), X, formulas=formulas).total_flops == 60
    assert run(Model(), X).total_flops == 3 + 6 + 6 + 6  # pow of 3, mul, add, exp of 6


@pytest.mark.parametrize("run", [analyze, count])
def test_by_mapping_called_as_torch_flops_calls(run: Any) -> None:
    def module_flops(module: Gate, result: torch.Tensor, *args: torch.Tensor, **kwargs: Any) -> int:
        assert isinstance(result, torch.Tensor)
        return 1000 * module.weight.shape.numel() + args[0].shape.numel()

    def method_flops(self_obj: torch.Tensor, result: torch.Tensor, *args: Any, **kwargs: Any) -> int:
        assert self_obj.shape == result.shape
        return 5

    MODULE_FLOPs_MAPPING[Gate] = module_flops
    METHOD_FLOPs_MAPPING["exp"] = method_flops
    assert ops(run(Model(), X)) == [("Gate", 3006, "gate"), ("add", 6, ""), ("exp", 5, "")]
    del MODULE_FLOPs_MAPPING[Gate], METHOD_FLOPs_MAPPING["exp"]
    assert run(Model(), X).total_flops == 21


@pytest.mark.parametrize("run", [analyze, count])
def test_a_name_nobody_knew_is_found_by_name(run: Any) -> None:
    MODULE_FLOPs_MAPPING["Gate"] = lambda module, result, *args: 77
    model = Model()
    assert ops(run(model, X))[0] == ("Gate", 77, "gate")
    del MODULE_FLOPs_MAPPING["Gate"]
    assert run(model, X)["gate"].total.flops == 3 + 6


def test_the_tables_read_as_they_were() -> None:
    for table, name in [
        (MODULE_FLOPs_MAPPING, "Linear"),
        (FUNCTION_FLOPs_MAPPING, "softmax"),
        (METHOD_FLOPs_MAPPING, "transpose"),
    ]:
        before = table[name]
        total = count(nn.Linear(3, 4), X).total_flops
        table[name] = before
        assert table[name] is before
        assert count(nn.Linear(3, 4), X).total_flops == total
    assert nn.Conv2d in MODULE_FLOPs_MAPPING
    assert torch.matmul in FUNCTION_FLOPs_MAPPING
    assert "nonsense" not in METHOD_FLOPs_MAPPING
    with pytest.raises(KeyError):
        MODULE_FLOPs_MAPPING["nonsense"]


def test_an_override_of_ours_wins_over_the_convention() -> None:
    pool = nn.MaxPool2d(2)
    x = torch.ones(1, 1, 4, 4)
    assert count(pool, x, formulas={nn.MaxPool2d: lambda module, x, *, out: 9}).total_flops == 9


class Linear(nn.Module):
    """Not nn.Linear."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Doubled(nn.Linear):
    """Overrides forward: twice the work."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + super().forward(input)


class Renamed(nn.Linear):
    """Inherits nn.Linear's forward."""


def swapped() -> nn.Linear:
    module = nn.Linear(3, 4)
    module.forward = lambda x: x.exp()  # type: ignore[method-assign]
    return module


def hooked() -> nn.Linear:
    module = nn.Linear(3, 4)
    module.register_forward_hook(lambda module, args, out: out * 2)
    return module


ONE_LINEAR = 2 * 2 * 3 * 4


@pytest.mark.parametrize("run", [analyze, count])
@pytest.mark.parametrize(
    ("module", "flops"),
    [
        (Linear(), 6),
        (Doubled(3, 4), 2 * ONE_LINEAR + 8),
        (Renamed(3, 4), ONE_LINEAR),
        (swapped(), 6),
        (hooked(), ONE_LINEAR + 8),
        # None: there is no number by hand, but the parametrization must be counted in addition to the layer.
        (nn.utils.parametrizations.orthogonal(nn.Linear(3, 3)), None),
    ],
)
def test_modules_are_known_by_the_forward_they_run(run: Any, module: nn.Module, flops: int | None) -> None:
    report = run(nn.Sequential(module), X)
    if flops is None:
        assert len(report.calls) > 1, "the parametrization runs too"
        assert report.total_macs >= 2 * 3 * 3
    else:
        assert report.total_flops == flops


def test_a_formula_that_does_not_fit_says_so() -> None:
    with pytest.raises(FormulaError, match=r"'linear'.*f32\[2,3\].*(?s:.*)signature"):
        count(nn.Linear(3, 4), X, formulas={nn.Linear: lambda a, b, c, d: 1})
    with pytest.raises(FormulaError, match="expected a module class"):
        fxflops.formula(3)(lambda x, *, out: 1)
    with pytest.raises(FormulaError, match="cannot count a single instance of Linear: pass the class Linear"):
        fxflops.formula(nn.Linear(3, 3))(lambda module, input, *, out: 1)
    with pytest.raises(FormulaError, match="a count cannot be negative"):
        count(nn.Linear(3, 3), X, formulas={nn.Linear: lambda module, input, *, out: -1})
    with pytest.raises(FormulaError, match="has macs, but no muls and adds"):
        count(nn.Linear(3, 3), X, formulas={nn.Linear: lambda module, input, *, out: Cost(macs=1, others=1)})
    with pytest.raises(FormulaError, match="at least one target"):
        fxflops.formula()(lambda x, *, out: 1)


def test_recount_needs_no_rerun() -> None:
    model = Model()
    report = count(model, X)
    again = report.recount(formulas={"exp": lambda x, *, out: 1000})
    assert again.total_flops == report.total_flops - 6 + 1000
    assert again.calls is report.calls
    assert report.total_flops == 21


@pytest.mark.parametrize("target", [operator.mul, "mul", torch.Tensor.__mul__])
def test_an_operator_is_overridden_by_its_function(target: Any) -> None:
    class Doubles(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    for run in (analyze, count):
        assert run(Doubles(), X, formulas={target: lambda a, b, *, out: 5}).total_flops == 5


def test_an_unknown_method_name_is_refused() -> None:
    with pytest.raises(FormulaError, match="method is named 'nosuch'"):
        fxflops.formula("nosuch")(lambda x, *, out: 1)


@pytest.mark.parametrize("wrong", [None, "many", 1.5])
def test_a_formula_that_returns_no_count(wrong: Any) -> None:
    with pytest.raises(FormulaError, match=f"returned {wrong!r}; expected an int"):
        count(nn.ReLU(), X, formulas={nn.ReLU: lambda module, x, *, out: wrong})


def test_the_recipe_can_be_pasted_as_it_is() -> None:
    @torch.library.custom_op("fxflops_tests::blend", mutates_args=())
    def blend(first: torch.Tensor, other: torch.Tensor, weight: float) -> torch.Tensor:
        return first * weight + other

    blend.register_fake(lambda first, other, weight: torch.empty_like(first))

    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return blend(blend(x, x, 0.5), other=x, weight=0.5)

    exec(count(Own(), X).recipe(), {"torch": torch})
    assert count(Own(), X).total_flops == 2 * X.numel()


PASTED_INTO = """
import torch
from torch import nn

@torch.library.custom_op("fxflops_pasted::foo", mutates_args=())
def foo(x: torch.Tensor) -> torch.Tensor:
    return x + 1

foo.register_fake(torch.empty_like)

class Own(nn.Module):
    def forward(self, x):
        return foo(x)
"""


def test_the_recipe_does_not_replace_names_of_the_code_it_is_pasted_into() -> None:
    names: dict[str, Any] = {}
    exec(PASTED_INTO, names)
    before = dict(names)
    exec(count(names["Own"](), X).recipe(), names)
    assert all(names[name] is value for name, value in before.items())
    assert count(names["Own"](), X).total_flops == X.numel()


@pytest.mark.parametrize(
    ("schema", "computed", "flops"),
    [
        ("lambda(Tensor x) -> Tensor", torch.clone, 6),  # a keyword of Python
        ("scan.reverse(Tensor x) -> Tensor", torch.clone, 6),  # an overload
        ("write(Tensor x, Tensor(a!) out) -> ()", lambda x, out: None, 6),
        ("mean_and_all(Tensor x) -> (float, Tensor)", lambda x: (0.0, x.clone()), 6),
        ("mean(Tensor x) -> float", lambda x: 0.0, 6),
        ("tick() -> ()", lambda: None, 1),
    ],
)
def test_the_recipe_of_an_odd_op_can_be_pasted(schema: str, computed: Any, flops: int) -> None:
    """With a name that is no identifier, without a tensor among its results, or without tensors at all."""
    name = schema.partition("(")[0]
    torch.library.define(f"fxflops_odd::{name}", schema.removeprefix(name))
    torch.library.impl(f"fxflops_odd::{name}", "default")(computed)
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.fxflops_odd, packet), overload or "default")

    class Calls(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            operator(*[x] * schema.count("Tensor x"), *[x.clone()] * schema.count("Tensor(a!) out"))
            return x

    x = torch.ones(2, 3)
    exec(count(Calls(), x).recipe(), {"torch": torch})
    report = count(Calls(), x)
    assert (report.complete, report.total_flops) == (True, flops)


def test_the_recipe_of_an_op_with_several_results_works() -> None:
    class Svd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.svd(x)[1]

    report = count(Svd(), X)
    exec(report.recipe(), {"fxflops": fxflops, "torch": torch})
    assert count(Svd(), X).complete


def test_the_recipe_counts_every_missing_op() -> None:
    for name in ("one", "other"):
        torch.library.define(f"fxflops_recipe::{name}", "(Tensor x) -> Tensor")
        torch.library.impl(f"fxflops_recipe::{name}", "default")(torch.clone)

    class Both(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ops = torch.ops.fxflops_recipe
            return ops.other(ops.one(ops.other(x)))

    report = count(Both(), X)
    assert str(report).endswith(
        "to count them, paste where the model is made:\n"
        "    import fxflops\n"
        "    @fxflops.formula(torch.ops.fxflops_recipe.other)\n"
        "    def flops_of_fxflops_recipe_other(*args, out, **kwargs): return out.numel()  # 1 per element: a guess\n"
        "    @fxflops.formula(torch.ops.fxflops_recipe.one)\n"
        "    def flops_of_fxflops_recipe_one(*args, out, **kwargs): return out.numel()  # 1 per element: a guess"
    )
    exec(report.recipe(), {"torch": torch})
    assert count(Both(), X).total_flops == 3 * X.numel()


@pytest.mark.parametrize(
    ("target", "model", "said"),
    [
        (nn.functional.gelu, nn.GELU(), "torch.nn.functional.gelu counted nothing: the code calls gelu as torch.nn.GELU x1"),
        ("aten::gelu", nn.GELU(), "aten::gelu counted nothing: the code calls gelu as torch.nn.GELU x1"),
        (nn.GELU, Calls(nn.functional.gelu), "torch.nn.GELU counted nothing: the code calls gelu as torch.nn.functional.gelu x1"),
        (torch.ops.aten.add.Tensor, Calls(lambda x: torch.add(x, 1)), "aten::add.Tensor counted nothing: the code calls add as torch.add x1"),
        ("aten::add_.Tensor", Calls(lambda x: torch.add(x, 1)), "aten::add_.Tensor counted nothing: the code calls add as torch.add x1"),
        (torch.ops.aten.mm, Calls(lambda x: torch.matmul(x, x.T)), "aten::mm counted nothing: the code calls matmul as torch.matmul x1"),
    ],
)  # fmt: skip
def test_a_formula_that_counts_nothing_says_how_its_op_is_called(target: Any, model: nn.Module, said: str) -> None:
    with pytest.warns(UserWarning, match=re.escape(f"the formula for {said}; register the formula for this name")):
        count(model, X, formulas={target: lambda *_, out, **__: 1})
    with pytest.warns(UserWarning, match=re.escape(said)):
        count(model, X).recount(formulas={target: lambda *_, out, **__: 1})
    with pytest.warns(UserWarning, match=re.escape(said)), profile(model, formulas={target: lambda *_, out, **__: 1}):
        model(X)


def test_formulas_that_are_no_mapping() -> None:
    with pytest.raises(FormulaError, match=r"formulas must be a mapping \{target: function\}, got list"):
        count(nn.GELU(), X, formulas=[nn.GELU])  # type: ignore[arg-type]


@pytest.mark.parametrize("others", [None, {nn.Conv2d: lambda *_, out, **__: 1}])
def test_so_does_one_that_is_registered(others: Any) -> None:
    fxflops.formula(nn.functional.gelu)(lambda x, *, out: 7)
    with pytest.warns(
        UserWarning, match=r"torch.nn.functional.gelu counted nothing: the code calls gelu as torch.nn.GELU x1"
    ):
        count(nn.GELU(), X, formulas=others)


@pytest.mark.parametrize("target", [Applied, Applied.apply])
def test_an_autograd_function_has_no_formula(target: Any) -> None:
    with pytest.raises(FormulaError, match=r"(?s)cannot count .*Applied.*the module that applies"):
        fxflops.formula(target)(lambda x, *, out: 1)


def test_a_formula_for_an_op_that_is_not_there_or_spelled_in_two_ways_is_no_mistake() -> None:
    one: Any = lambda *_, out, **__: 1  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        count(nn.GELU(), X, formulas={nn.Conv2d: one})
        count(nn.GELU(), X, formulas={nn.functional.gelu: lambda x, *, out: 2, nn.GELU: one})


def test_an_operator_as_custom_op_gives_it() -> None:
    @torch.library.custom_op("fxflops_tests::as_given", mutates_args=())
    def as_given(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    as_given.register_fake(torch.empty_like)

    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return as_given(x)

    assert not count(Own(), X).complete
    report = count(Own(), X, formulas={as_given: lambda x, *, out: 5 * out.numel()})
    assert (report.complete, report.total_flops) == (True, 30)


def test_a_first_line_that_goes_on_is_not_cut_without_a_sign() -> None:
    def long(input: Any, *, out: Any) -> int:
        """x[*] -> out[*]: 2 per output of the first half,
        3 per output of the second."""
        return 5

    def whole(input: Any, *, out: Any) -> int:
        """x[*] -> out[*]: 5 in all.

        More on it.
        """
        return 5

    for function, said in ((long, "2 per output of the first half,…"), (whole, "5 in all")):
        (row,) = count(Calls(torch.special.i1), X, formulas={torch.special.i1: function}).table.to_dicts()
        assert row["counts"] == said


class Linears(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.layer(x), self.layer.weight)


def test_an_op_by_its_name_is_counted_however_it_is_called() -> None:
    def of_widths(input: Any, weight: Any, *, out: Any) -> int:
        return 100 * int(input[-1]) + int(weight[0])

    def one(*args: Any, out: Any, **kwargs: Any) -> int:
        return 1

    report = count(Linears(), X, formulas={"linear": of_widths})
    assert ops(report) == [("linear", 303, "layer"), ("linear", 303, "")]
    assert report.recount(formulas={"linear": one}).total_flops == 2
    fxflops.formula("linear")(of_widths)
    assert count(Linears(), X).total_flops == 606
    with pytest.raises(FormulaError, match=r"no op or torch.Tensor method is named 'lineer' \(did you mean linear"):
        count(Linears(), X, formulas={"lineer": one})


class Relus(nn.Module):
    """Every way to write relu. Square inputs are also multiplied: ``mm`` names some of these calls, whose op is ``matmul``."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(nn.functional.relu(self.act(x))).relu().relu_()
        return x @ torch.mm(x.T, x.T.mm(x).mm(x.T).T.T) if x.shape[0] == x.shape[1] else x


def test_a_name_is_every_way_to_call_it() -> None:
    def ten(*args: Any, out: Any, **kwargs: Any) -> int:
        return 10

    def module(*args: Any, out: Any, **kwargs: Any) -> int:
        return 1

    report = count(Relus(), X)
    relus = len(report.calls)
    assert relus == 5
    assert report.recount(formulas={"relu": ten}).total_flops == relus * 10
    for formulas in ({"relu": ten, nn.ReLU: module}, {nn.ReLU: module, "relu": ten}):
        assert report.recount(formulas=formulas).total_flops == (relus - 1) * 10 + 1  # the exact formula has priority
    square = count(Relus(), torch.ones(3, 3))
    counted = [flops for op, flops, _ in ops(square.recount(formulas={"mm": ten})) if op == "matmul"]
    assert sorted(counted) == [10, 10, 10, 3 * 3 * (3 + 2)]  # all except @
    assert {flops for op, flops, _ in ops(square.recount(formulas={"matmul": ten})) if op == "matmul"} == {10}
    fxflops.formula("relu")(ten)
    assert count(Relus(), X).total_flops == relus * 10
