"""Shared fixtures and skips: tests marked ``cuda`` need a CUDA device, and older packages skip the tests they cannot pass."""

from __future__ import annotations

import gc
import io
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator
from importlib.metadata import PackageNotFoundError, version

import pytest
import torch

from fxflops.counting import steps
from fxflops.meters import stopwatch, timing
from fxflops.meters.stopwatch import Costs
from fxflops.ops import BASE, FormulaRegistry
from fxflops.run import block, graph_run
from fxflops.run.entry_costs import measured_entry_costs

from .devices import DEVICES
from .fresh import Fresh, one_thread_after_fork
from .standin import StandIn

# Failed assertions in these modules then show which numbers differ.
pytest.register_assert_rewrite("tests.ops.textbook", "tests.oracle")
# A shell that starts the tests in the background may ignore SIGINT, and child processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
one_thread_after_fork()
if not torch.cuda.is_available():
    # A CUDA build of torch would search for the driver library every time it is asked for devices.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
# The models here are small, and several worker processes share the cores.
torch.set_num_threads(1)
# Without a handler, the first library that logs gives the root logger one that writes to the stderr of the test then running.
logging.getLogger().addHandler(logging.NullHandler())
# The first backward pass starts a thread per device. Forked copies of this process need those threads: fake tensors pretend
# that there are devices.
torch.ones((), requires_grad=True).backward()


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The messages logged during the test."""
    messages: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler = Handler()
    logging.getLogger().addHandler(handler)
    yield messages
    logging.getLogger().removeHandler(handler)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Keep reference cycles alive until the test ends. When the collector would free them depends on earlier tests."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def entry_costs() -> tuple[Costs, Costs]:
    """The entry costs of observing, measured once: measuring takes 20 ms, ten times as long as the rest of a small block."""
    return measured_entry_costs(BASE)


@pytest.fixture(autouse=True)
def _steady(monkeypatch: pytest.MonkeyPatch, entry_costs: tuple[Costs, Costs]) -> None:
    """Printed output must not depend on the machine's load, and a test must not wait for timings to settle."""
    monkeypatch.setattr(graph_run, "SECONDS_CAP", 0.1)
    for name in ("WIDE", "OFTEN", "WAITING"):
        monkeypatch.setattr(timing, name, float("inf"))
    monkeypatch.setattr(steps, "TOO_FAR_APART", float("inf"))

    def costs(registry: FormulaRegistry) -> tuple[Costs, Costs]:
        """Measure again under a test's own clock: the session's costs were measured with the real one."""
        return entry_costs if stopwatch.time is time else measured_entry_costs(registry)

    monkeypatch.setattr(block, "measured_entry_costs", costs)


POWERS = "a norm of inf is computed with powers, and gives 1"
UNRULED = "it has no rule for higher-order operators under a dispatch mode"
STRIDES = "it puts out other strides"
ATTENTION_VIEWS = "MultiheadAttention is written with other views"
TAKEN = "it takes on meta what the device's kernel refuses"
META_AUTOCAST = "torch.autocast('meta') raises, and Llama's rotary embedding enters it"
NEEDS_VALUES = "where it is given no mask it reads the tokens to warn of padding, which meta cannot"
NO_ORIGINS = "its inductor does not report which nodes a kernel computes"
TORCH_THROUGH: dict[str, dict[str, str]] = {
    "2.6": {
        "test_a_rule_says_what_the_kernel_does[RMSNorm of rms_norm_shape]": STRIDES,
        "test_wrapped[compiled-function-analyze]": "the compiler warns of itself",
        "test_the_total_is_flop_counter_modes[vectors' inner]": "the inner product of vectors is a matrix product",
        "test_a_break_has_its_reason_and_its_line[loop-False]": "it keeps no record of a break in a loop",
        "test_recompilations_are_told_with_the_guard_and_a_line": "it keeps no record of the guard that failed",
        "test_what_the_compiler_raises_is_told": "it raises another error",
        "test_kernels_have_the_modules_they_compute_and_the_cache_is_as_it_was": NO_ORIGINS,
        "test_a_backend_without_kernels": NO_ORIGINS,
        "test_the_other_process_raises": NO_ORIGINS,
        "test_the_other_process_takes_too_long": NO_ORIGINS,
        "test_torchs_own_reader_reads_it": "its reader has no function for pairs of alloc and free",
        "test_the_gradient_that_the_backward_pass_begins_with_is_of_it[backward1]": "it tells no mode of torch.autograd.backward",
    },
    "2.7": {
        "test_what_two_ranks_compute_hold_and_send[pp]": "its pipelines wait forever on Gloo",
    },
    "2.8": {
        "test_counts_and_table_are_the_originals[cond]": UNRULED,
        "test_higher_order_operators_of_ones_own": UNRULED,
        "test_sharded_layers[sharded]": "fully_shard itself raises on a CPU",
        "test_what_two_ranks_compute_hold_and_send[fsdp]": "fully_shard itself raises on a CPU",
        "test_what_two_ranks_compute_hold_and_send[fsdp_columns]": "fully_shard itself raises on a CPU",
        "test_gathered_weights_are_freed[fsdp]": "fully_shard itself raises on a CPU",
        "test_gathered_weights_are_freed[fsdp_columns]": "fully_shard itself raises on a CPU",
        "test_analyzed_and_counted_on_two_ranks[fsdp]": "fully_shard itself raises on a CPU",
        "test_a_sharded_model_is_counted_between_its_steps": "fully_shard itself raises on a CPU",
        "test_a_training_step_is_flop_counter_modes[wav2vec2]": "FlopCounterMode raises: weight_norm has no backward on meta",
        "test_a_rule_says_what_the_kernel_does[Conv2d of conv_shape]": STRIDES,
        "test_a_rule_says_what_the_kernel_does[_VariableFunctionsClass.conv_transpose2d of conv_transpose_shape]": STRIDES,
        "test_a_rule_says_what_the_kernel_does[ConvTranspose2d of conv_transpose_shape]": STRIDES,
        "test_counted_as_it_runs[norms-True-cpu]": "meta gives the gradients of a norm's weights in the input's dtype",
    },
    "2.10": {
        "test_the_code_prints_what_is_written[language_models.md]": "torch._grouped_mm, which Mixtral calls, takes bf16 alone on meta",
    },
    "2.11": {
        "test_a_rule_says_what_the_kernel_does[Tensor.norm of norm_shape]": "on meta a norm keeps a dimension of one element",
        "test_each_op_is_charged_as_it_does[LPPool1d inf]": POWERS,
        "test_the_numbers_are_deepspeeds[LPPool1d inf]": POWERS,
        "test_functions[lp_pool of the largest]": POWERS,
        "test_what_is_printed[vit_b_16]": ATTENTION_VIEWS,
        "test_the_first_screen[training]": ATTENTION_VIEWS,
        "test_a_users_mistake_is_a_message[run hf:bert --input 1,128 --counts-only-the model takes token ids: give integers, with --input-ids 1,128 or]": TAKEN,
        r"test_what_to_write_is_told_in_its_own_arguments[model2-settings2-token ids: pass dtypes=\\[torch\\.long\\]]": TAKEN,
        r"test_a_summary_says_in_its_own_words_how_inputs_are_given[model3-given3-token ids: pass dtypes=\\[torch.long\\]]": TAKEN,
        "test_what_two_ranks_compute_hold_and_send[ep]": "of its all_to_all's backward one module is told by the next one's",
    },
    "2.13": {
        "test_a_model_that_is_compiled_otherwise[in_place]": "it does not compile the forward of torch's own modules in place",
        "test_pp_2_dp_2_tp_2": "a stage of its pipelines states the shape of a whole DTensor, later ones that of the rank's part",
    },
    "2.14": {
        "test_no_answer_where_the_kernel_raises[conv_transpose2d-args1]": TAKEN,
        "test_no_answer_where_the_kernel_raises[conv_transpose2d-args2]": TAKEN,
    },
}
WITH_TRANSFORMERS_4: dict[str, dict[str, str]] = {
    "2.8": dict.fromkeys(
        (
            "test_masks_and_positions_keep_their_values_where_weights_have_none",
            "test_every_example_runs",
            "test_llama_3_405b_by_hand",
            "test_the_code_prints_what_is_written[language_models.md]",
            "test_a_command_prints_what_is_written[run hf:LlamaForCausalLM --input-ids 1,2048 --counts-only --attention exact]",
        ),
        META_AUTOCAST,
    ),
    "": {
        "test_a_training_step_is_flop_counter_modes[bert]": NEEDS_VALUES,
        "test_a_training_step_is_flop_counter_modes[distilbert]": NEEDS_VALUES,
    },
}
"""Reasons to skip a test, by its name with or without parameters, for torch up to that version; "" is any version."""
ANGLES = "Llama's rotary embedding computes its angles by a matrix product"
STAGES = "a RegNet cannot be made on meta, where it reads the widths of its stages"
PEERS_THROUGH: dict[tuple[str, str], dict[str, str]] = {
    ("transformers", "5.18"): {
        **dict.fromkeys(
            (
                "test_a_llama_on_four_by_four",
                "test_llama_3_405b_by_hand",
                "test_the_code_prints_what_is_written[language_models.md]",
                "test_the_code_prints_what_is_written[closed_forms.md]",
                "test_a_command_prints_what_is_written[run hf:LlamaForCausalLM --input-ids 1,2048 --counts-only --attention exact]",
            ),
            ANGLES,
        ),
        "test_the_first_screen[gpt2]": "GPT-2's attention is written with other views",
    },
    ("timm", "1.0.29"): {
        "test_complete_and_the_same_from_every_side[regnety_002]": STAGES,
        "test_timm_models[regnetx_002]": STAGES,
    },
}
"""The same for other packages, up to a version."""


@pytest.fixture(scope="session")
def fresh() -> Iterator[Fresh]:
    processes = Fresh()
    yield processes
    processes.close()


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A device to run the test on. Tensors at the top level of the test's module are moved to it."""
    for name, value in [*vars(request.module).items()]:
        if isinstance(value, torch.Tensor):
            monkeypatch.setattr(request.module, name, value.to(request.param))
    return str(request.param)


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """The CPU as an accelerator."""
    device = StandIn()
    device.take_over(monkeypatch)
    return device


class Terminal(io.StringIO):
    """A stdout that claims to be a terminal."""

    encoding = "utf8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set stdout to a terminal this many columns wide."""

    def set_columns(width: int) -> None:
        monkeypatch.setattr(sys, "stdout", Terminal())
        monkeypatch.setenv("COLUMNS", str(width))

    return set_columns


def is_through(release: str, last: str) -> bool:
    """Whether a release is this version or older: 2.11.1 is through 2.11."""
    numbers = [[int(number) for number in re.findall(r"\d+", each)] for each in (release, last)]
    return numbers[0][: len(numbers[1])] <= numbers[1]


def installed(package: str) -> str:
    """The installed version of a package, or "" if it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def otherwise() -> dict[str, str]:
    """The entries of these tables that apply to the installed versions."""
    four = installed("transformers").startswith("4.")
    found = {}
    for tables, beside in ((TORCH_THROUGH, ""), (WITH_TRANSFORMERS_4 if four else {}, "transformers 4")):
        for last, table in tables.items():
            if not last or is_through(torch.__version__, last):
                which = " with ".join(filter(None, (last and f"torch to {last}", beside)))
                found |= {name: f"{which}: {why}" for name, why in table.items()}
    for (package, last), table in PEERS_THROUGH.items():
        if (release := installed(package)) and is_through(release, last):
            found |= {name: f"{package} to {last}: {why}" for name, why in table.items()}
    return found


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


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Freeze what a finished test module has loaded, so that later collections skip it."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freeze all collected tests and modules: a garbage collection that walks them takes half a second each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(*gc.get_threshold()[:2], 50)


def pytest_configure(config: pytest.Config) -> None:
    # Some libraries warn about leftover objects, so unfreeze at the end. The first cleanup added runs last. It must come after pytest's
    # own garbage collections, which take seconds once everything the tests have loaded is unfrozen.
    config.add_cleanup(gc.unfreeze)


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name functions and modules in test ids: an address would differ between processes."""
    text = repr(val)
    if isinstance(val, (str, int, float, bool, type)) or " at 0x" not in text:
        return None
    return getattr(val, "__name__", None) or type(val).__name__
