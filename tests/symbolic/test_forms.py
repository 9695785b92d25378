"""What a closed form gives: arrays, text, source, LaTeX, a plot, packed sequences. And what it refuses."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any
from xml.etree import ElementTree

import numpy
import pytest
import sympy

from fxflops import ClosedFormError, InputError
from fxflops.symbolic.costs import QUANTITIES, Cell, Range, in_words
from fxflops.symbolic.forms import ClosedForm
from fxflops.symbolic.sizes import Size

LINEAR, ATTENTION = ("forward", "layer.fc", "linear"), ("forward", "layer", "attention")


def form_of(*pieces: tuple[tuple[Range, Range], dict[Any, Any]]) -> ClosedForm:
    cells = {what: [Cell(ranges, costs) for ranges, costs in pieces] for what in QUANTITIES[:4]}
    sizes = Size("batch", 2), Size("seq", 16)
    return ClosedForm("Net", sizes, {**cells, "bytes": [], "memory": []}, "fxflops", "dense", 9, {"seq": "so it is"})


BATCH = Range(1, 64)
FORM = form_of(
    ((BATCH, Range(8, 96, 8)), {LINEAR: {(1, 1): Fraction(5, 4), (0, 0): 3}, ATTENTION: {(1, 2): Fraction(1)}}),
    ((BATCH, Range(104, 800, 8)), {LINEAR: {(1, 1): Fraction(5, 4), (0, 0): 3}, ATTENTION: {(1, 1): Fraction(96)}}),
)


def by_hand(batch: int, seq: int) -> int:
    return batch * seq * 5 // 4 + 3 + batch * seq * min(seq, 96)


def test_values_at_points_and_arrays() -> None:
    assert FORM.evaluate(batch=3, seq=80) == by_hand(3, 80)
    assert FORM.evaluate(batch=3, seq=800, operator="attention") == 3 * 800 * 96
    assert FORM.evaluate(batch=3, seq=80, module="layer.fc") == 303
    seqs = numpy.arange(8, 801, 8)
    assert FORM.evaluate(batch=7, seq=seqs).tolist() == [by_hand(7, seq) for seq in seqs.tolist()]
    assert FORM.evaluate(batch=numpy.array([[1], [2]]), seq=seqs).shape == (2, 100)


def test_expressions() -> None:
    batch, seq = (sympy.Symbol(name, integer=True, positive=True) for name in ("batch", "seq"))
    assert FORM.by_operator()["linear"] == sympy.Rational(5, 4) * batch * seq + 3
    assert [*FORM.by_operator()] == ["linear", "attention"]
    assert [*FORM.by_module()] == ["", "layer", "layer.fc"]
    assert FORM.flops.subs({batch: 2, seq: 400}) == by_hand(2, 400)
    assert FORM.flops.subs({batch: 2, seq: 40}) == by_hand(2, 40)
    assert r"\mathrm{batch} \mathrm{seq}^{2}" in FORM.latex()


def test_python_source_needs_nothing_and_refuses_what_the_form_refuses() -> None:
    space: dict[str, Any] = {}
    exec(FORM.to_python(), space)
    assert space["flops"](3, 80) == by_hand(3, 80)
    assert space["flops"](3, 800) == by_hand(3, 800)
    assert space["flops"].__doc__.startswith("Return the FLOPs of Net: convention fxflops")
    with pytest.raises(ValueError, match="batch=3, seq=81: the formula holds for batch from 1 to 64, seq from 8"):
        space["flops"](3, 81)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"batch": 1, "seq": 12},
            "at seq=12: it holds for multiples of 8. A stride, a patch or a window rounds other sizes",
        ),
        ({"batch": 1, "seq": 808}, "at seq=808: it holds for seq from 8 to 800 in steps of 8; so it is"),
        ({"batch": 0, "seq": 8}, "at batch=0: it holds for batch from 1 to 64$"),
        ({"batch": 1, "seq": numpy.array([8, 12])}, "at seq=12"),
    ],
)
def test_outside_its_domain_the_reason_is_said(sizes: Any, message: str) -> None:
    with pytest.raises(ClosedFormError, match=message):
        FORM.evaluate(**sizes)


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        ("flop", {}, r"unknown quantity 'flop' \(did you mean flops"),
        ("flops", {"phase": "training"}, "backward=True"),
        ("flops", {"phase": "sideways"}, "unknown phase"),
        ("flops", {"module": "layer.fx"}, r"unknown module 'layer.fx' \(did you mean layer.fc"),
        ("flops", {"operator": "conv"}, "unknown operator"),
        ("bytes", {}, "no closed form of bytes for Net: the values are not a polynomial"),
    ],
)
def test_unknown_names_are_refused(what: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FORM.evaluate(what, batch=1, seq=8, **options)


def test_sizes_are_needed_by_name_and_whole() -> None:
    with pytest.raises(InputError, match="needs the sizes batch, seq; got batch"):
        FORM.evaluate(batch=1)
    with pytest.raises(InputError, match="ints or arrays with an integer dtype"):
        FORM.evaluate(batch=1.5, seq=8)


def test_text() -> None:
    assert str(FORM).splitlines()[:5] == [
        "Net   in batch, seq   (convention fxflops, attention dense)",
        "holds for    batch from 1 to 64, seq from 8 to 800 in steps of 8; "
        "checked against count() at 9 held-out points",
        "2 pieces; shown is the largest: batch from 1 to 64, seq from 104 to 800 in steps of 8",
        "MACs              389/4 batch seq + 3",
        "FLOPs             389/4 batch seq + 3",
    ]


def test_what_is_no_polynomial_is_said_with_the_reason() -> None:
    said = "not a polynomial in batch, seq: the call at which memory peaks depends on the sizes"
    assert f"bytes at the peak {said}" in str(FORM).splitlines()
    with pytest.raises(ClosedFormError, match=f"^no closed form of memory for Net: the values are {said}$"):
        FORM.evaluate("memory", batch=1, seq=8)


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ([Range(1, 1), Range(2, 4096)], "from 1 to 4096"),
        ([Range(1, 4), Range(6, 9)], "from 1 to 4 and from 6 to 9"),
        ([Range(240, 512, 16), Range(224, 224, 16)], "from 224 to 512 in steps of 16"),
        ([Range(1, 7), Range(8, None)], "from 1"),
        ([Range(5, 5)], "5"),
    ],
)
def test_ranges_in_words(ranges: list[Range], said: str) -> None:
    assert in_words(ranges) == said


def test_a_plot_has_a_band_for_each_operator() -> None:
    svg = str(FORM.plot("seq", batch=4))
    texts = ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert texts[:3] == ["FLOPs of Net, batch 4", "■ attention", "■ linear"]
    assert {"200", "800", "seq"} <= {*texts}
    bands = {name: path for path, name in re.findall(r'd="([^"]*)"><title>(\w+)<', svg)}
    assert all(path.count("L") == 100 for path in bands.values())  # from 8 to 800 in steps of 8
    with pytest.raises(InputError, match="batch, seq; got 'height'"):
        FORM.plot("height")


def test_packed_sequences() -> None:
    packed = FORM.packed("seq", batch=1)
    assert packed.sizes == ("sum_seq", "sum_seq_squared")
    lengths = [8, 16, 64]
    total, squares = sum(lengths), sum(n * n for n in lengths)
    assert packed.evaluate(sum_seq=total, sum_seq_squared=squares) == total * 5 // 4 + 3 + squares
    square = form_of(((BATCH, Range(1, 99)), {LINEAR: {(0, 2): Fraction(1)}}))
    with pytest.raises(ClosedFormError, match=r"linear in layer.fc \(forward\)"):
        square.packed("seq", batch=1)
    with pytest.raises(InputError, match="batch, seq"):
        FORM.packed("seq")
