"""Inputs and dtypes, as written on the command line."""

from __future__ import annotations

import pytest
import torch

from fxflops import InputError
from fxflops.cli.inputs import Given, read_input, read_tokens
from fxflops.cli.tensors import dtype_of, tensors_of
from fxflops.model.inputs import inputs_of_sizes

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.mark.parametrize(
    ("written", "dtype"),
    [
        ("f16", torch.float16),
        ("fp16", torch.float16),
        ("torch.float16", torch.float16),
        ("half", torch.float16),
        ("fp32", torch.float32),
        ("bf16", torch.bfloat16),
        ("long", torch.int64),
        ("c64", torch.complex64),
        ("float8_e4m3fn", torch.float8_e4m3fn),
        ("torch.float8_e5m2", torch.float8_e5m2),
    ],
)
def test_a_dtype_by_any_of_its_names(written: str, dtype: torch.dtype) -> None:
    assert dtype_of(written) is dtype
    given = read_input(f"x=2,3:{written}")
    for device in (CPU, META):
        tensor = tensors_of([given], device, torch.float32, 2)[1]["x"]
        assert (tuple(tensor.shape), tensor.dtype) == ((2, 3), dtype)


def test_inputs_are_those_of_a_summary() -> None:
    written = ["2,3", "2,3:f16", "mask=4:i64", "4:i64", "4:bool"]
    chance = torch.get_rng_state()
    made, named = tensors_of([read_input(text) for text in written], CPU, torch.float32, 2)
    dtypes = [torch.float32, torch.float16, torch.int64, torch.int64, torch.bool]
    shapes = [(2, 3), (2, 3), (4,), (4,), (4,)]
    x, half, mask, ids, flags = inputs_of_sizes(shapes, dtypes, None, CPU)
    assert all(map(torch.equal, made, (x, half, ids, flags)))
    assert 0 <= x.min() < x.max() < 1
    assert not torch.equal(x.half(), half)
    assert named["mask"].tolist() == [1] * 4
    assert (mask.tolist(), ids.tolist(), flags.tolist()) == ([0] * 4, [0] * 4, [True] * 4)
    assert torch.equal(torch.get_rng_state(), chance)


def test_rows_of_a_large_input_differ() -> None:
    (x,) = inputs_of_sizes((9, 2**14), None, None, CPU)
    assert len(x.unique(dim=0)) == 9
    assert x.untyped_storage().nbytes() == 4 * 9 * 2**14
    assert tensors_of([Given("", (0, 3))], CPU, torch.float32, 2)[0][0].shape == (0, 3)


def test_tokens_are_the_same_at_each_call() -> None:
    one, other = (tensors_of([read_tokens("2,9")], CPU, torch.float32, 100)[1]["input_ids"] for _ in range(2))
    assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["int8", "bool", "i64", "torch.uint8"])
def test_weights_are_real_or_complex(name: str) -> None:
    with pytest.raises(InputError, match="weights cannot have dtype"):
        dtype_of(name, of_weights=True)
    with pytest.raises(InputError, match="unknown dtype 'f31'") as error:
        dtype_of("f31", of_weights=True)
    assert not {"i64", "bool"} & set(str(error.value).replace(",", "").split())


@pytest.mark.parametrize("device", [CPU, META])
@pytest.mark.parametrize("dtype", ["", "i64", "tokens"])
@pytest.mark.parametrize("shape", [(10**20, 3), (2**62, 2**62)])
def test_sizes_that_nothing_can_hold(shape: tuple[int, ...], dtype: str, device: torch.device) -> None:
    with pytest.raises(InputError, match=r"cannot create an input .* on (cpu|meta): ") as error:
        tensors_of([Given("", shape, dtype)], device, torch.float32, 2)
    assert len(str(error.value).splitlines()) == 1


def test_an_input_larger_than_the_memory_is_not_tried() -> None:
    with pytest.raises(InputError, match=r"4\.00 PiB, more than this machine's memory"):
        tensors_of([Given("", (2**25, 2**25))], CPU, torch.float32, 2)
    assert tensors_of([Given("", (2**25, 2**25))], META, torch.float32, 2)[0][0].numel() == 2**50


def test_a_name_with_a_dot_is_that_of_an_entry_of_a_dict() -> None:
    written = ["batch.ids=2,3:int64", "batch.more.x=4", "y=5"]
    made, named = tensors_of([read_input(text) for text in written], CPU, torch.float32, 2)
    assert (made, {*named}, {*named["batch"]}) == ((), {"batch", "y"}, {"ids", "more"})
    assert (named["batch"]["ids"].shape, named["batch"]["more"]["x"].shape) == ((2, 3), (4,))
    with pytest.raises(InputError, match="y cannot be a dict"):
        tensors_of([read_input("y=5"), read_input("y.x=5")], CPU, torch.float32, 2)
