"""Tests marked ``cuda`` are skipped where there is no CUDA device, and with older versions those of what these do otherwise."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest
import torch

torch.set_num_threads(1)  # models here are small, and several processes share the cores


POWERS = "a norm of inf is computed with powers, and gives 1"
STRIDES = "it puts out other strides"
OTHERWISE_ON_2_6 = {
    "test_sharded_layers[sharded]": "fully_shard itself raises on a CPU",
    "test_each_op_is_charged_as_it_does[LPPool1d inf]": POWERS,
    "test_the_numbers_are_deepspeeds[LPPool1d inf]": POWERS,
    "test_functions[lp_pool of the largest]": POWERS,
    "test_a_training_step_is_flop_counter_modes[wav2vec2]": "FlopCounterMode raises: weight_norm has no backward on meta",
    "test_a_rule_says_what_the_kernel_does[Conv2d of conv]": STRIDES,
    "test_a_rule_says_what_the_kernel_does[_VariableFunctionsClass.conv_transpose2d of conv_transpose]": STRIDES,
    "test_a_rule_says_what_the_kernel_does[ConvTranspose2d of conv_transpose_module]": STRIDES,
    "test_a_rule_says_what_the_kernel_does[RMSNorm of rms_norm]": STRIDES,
    "test_what_is_printed[vit_b_16]": "MultiheadAttention is written with other views",
    "test_wrapped[compiled-function-analyze]": "the compiler warns of itself",
    "test_counted_as_it_runs[norms-True-cpu]": "meta gives the gradients of a norm's weights in the input's dtype",
    "test_the_total_is_flop_counter_modes[vectors' inner]": "the inner product of vectors is a matrix product",
}
META_AUTOCAST = "torch.autocast('meta') raises, and Llama's rotary embedding enters it"
OTHERWISE_ON_2_6_WITH_4 = dict.fromkeys(
    (
        "test_masks_and_positions_keep_their_values_where_weights_have_none",
        "test_every_example_runs",
        "test_llama_3_405b_by_hand",
        "test_the_code_prints_what_is_written[language_models.md]",
    ),
    META_AUTOCAST,
)
NEEDS_VALUES = "where it is given no mask it reads the tokens to warn of padding, which meta cannot"
OTHERWISE_WITH_4 = {
    "test_a_training_step_is_flop_counter_modes[bert]": NEEDS_VALUES,
    "test_a_training_step_is_flop_counter_modes[distilbert]": NEEDS_VALUES,
}
"""Why each of these tests cannot hold there, by its name with or without parameters."""


def otherwise() -> dict[str, str]:
    """Of these tables those of the versions at hand, torch's and transformers'."""
    try:
        four = version("transformers").startswith("4.")
    except PackageNotFoundError:
        four = False
    old = torch.__version__.startswith("2.6.")
    tables = {"torch 2.6": OTHERWISE_ON_2_6 if old else {}, "transformers 4": OTHERWISE_WITH_4 if four else {},
              "torch 2.6 with transformers 4": OTHERWISE_ON_2_6_WITH_4 if old and four else {}}  # fmt: skip
    return {name: f"{which}: {why}" for which, table in tables.items() for name, why in table.items()}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons = otherwise()
    for item in items:
        if why := reasons.get(item.name) or reasons.get(item.name.partition("[")[0]):
            item.add_marker(pytest.mark.skip(reason=why))
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "cuda" in item.keywords:
            item.add_marker(skip)


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Functions and modules by name: an address in a test's id would differ from process to process."""
    text = repr(val)
    if isinstance(val, (str, int, float, bool, type)) or " at 0x" not in text:
        return None
    return getattr(val, "__name__", None) or type(val).__name__
