"""Arguments and options that several commands share, and the parsers of their values.

Related options are fields of a dataclass; :func:`spread` adds them to a command.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, TypeVar, get_args

import typer

from .. import units
from ..conventions import CONVENTIONS
from ..errors import InputError, did_you_mean
from ..roofline.devices import DEVICES, Device, listed
from .inputs import Given, read_input, read_tokens
from .libraries import check_model

T = TypeVar("T")
ATTENTION = "dense"
NO_CARD = "give --device CARD, such as H100, A100, L4 or RTX 4090"
MAY_BE_OF_TORCH = re.compile(r"[a-z_]+\d?(:\d+)?")
"""Pattern of names that may be torch devices, such as "cuda:1". Torch checks the name later, since importing torch takes seconds."""


def unknown_device(name: str) -> InputError:
    """Return the error for a name that is neither a card nor a torch device."""
    close = did_you_mean(name, [device.name for device in DEVICES])
    return InputError(
        f"unknown device {name!r}{close}; give cpu, cuda, cuda:1 or meta, or a card, such as H100, A100, L4, RTX 4090; "
        "for an unlisted card, give its specifications: --device name=Mine,bf16=400T,bandwidth=2TB,memory=96GB"
    )


def read_by(read: Callable[[str], T]) -> Callable[[str], T]:
    """Return a typer parser that calls ``read`` and turns its ValueError into a usage error."""

    def parser(text: str | T) -> T:
        if not isinstance(text, str):  # a default value
            return text
        try:
            return read(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parser


def spread(*left_out: str, **helps: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace each dataclass parameter of a command by the dataclass's fields, so that typer turns every field into an option.

    Fields named in ``left_out`` do not become options of this command and keep their defaults. ``helps`` has other help texts for fields,
    by name.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        options: dict[str, inspect.Parameter] = {}
        records: dict[str, Any] = {}
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
            if is_dataclass(parameter.annotation):
                records[name] = parameter.annotation
                options |= inspect.signature(records[name], eval_str=True).parameters
            else:
                options[name] = parameter

        @wraps(command)
        def with_options(**given: Any) -> None:
            for name, record in records.items():
                names = [field.name for field in fields(record) if field.name in given]
                given[name] = record(**{each: given.pop(each) for each in names})
            command(**given)

        for name, text in helps.items():
            kind, option = get_args(options[name].annotation)
            option = copy(option)
            option.help = text
            options[name] = options[name].replace(annotation=Annotated[kind, option])
        shown = [each.replace(kind=each.KEYWORD_ONLY) for name, each in options.items() if name not in left_out]
        with_options.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        return with_options

    return decorate


def examples(*lines: str) -> str:
    """Return the end of a command's help: its examples, one per line."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def conventions() -> list[str]:
    return list(CONVENTIONS)


COUNT, SIZE, SECONDS, WHOLE = map(read_by, (units.read_count, units.read_size, units.read_seconds, units.read_whole))


def read_percent(text: str) -> float:
    """Read a percentage of at least 0, written as "1%" or "0.5". Raises ValueError for other text."""
    percent = float(text.strip().removesuffix("%"))
    if not 0 <= percent < math.inf:
        raise ValueError(f"{text!r} is not a percentage: write e.g. 1% or 0.5")
    return percent


PERCENT = read_by(read_percent)

HELP_MODEL = (
    "A library's model: timm:NAME, torchvision:NAME, hf:TYPE, hf:CLASS or hf:CONFIG.json. "
    "Your own model: FILE.py:NAME, PACKAGE.MODULE:NAME, a torch.export or TorchScript file (.pt2, .pt), or a folder with a config.json. "
    "An earlier run: a report saved as FILE.json, or a torch.profiler trace."
)

Model = Annotated[str, typer.Argument(metavar="MODEL", help=HELP_MODEL, show_default=False, callback=check_model)]


def check_models(names: list[str]) -> list[str]:
    return [check_model(name) for name in names]


Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL",
        help=f"{HELP_MODEL} Several models are compared in one table, with a row for each model.",
        show_default=False,
        callback=check_models,
    ),
]
TableAsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@dataclass(frozen=True, slots=True)
class Asked:
    """Options for the inputs and for how to count, shared by all commands. An option that the user does not give is None."""

    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "--input-size",
            metavar="[NAME=]SHAPE[:DTYPE]",
            help="Shape of one input, including the batch, e.g. 1,3,224,224 or mask=1,128:bool. If the argument 'batch' is a dict with a key 'ids', write batch.ids=1,128. If the model takes several inputs, repeat the option in the order of the inputs. Default: inputs that the model accepts.",
        ),
    ] = None
    input_ids: Annotated[
        str | None,
        typer.Option(metavar="SHAPE", help="Pass random tokens of this shape as the argument input_ids, e.g. 1,128."),
    ] = None
    batch: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Set the first dimension of every input to N.")
    ] = None
    # Name the option explicitly: if the metavar is the parameter's name in capitals, typer 0.27 uses the metavar as the option's name.
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="Device to run on or to count for: cpu, cuda, cuda:1 or meta. For a card, such as H100, the model is only counted, not run. For an unlisted card, give its specifications: bf16=400T,bandwidth=2TB,memory=96GB. Default: the CPU.",
        ),
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", metavar="DTYPE", help="Dtype of weights and floating-point inputs: bf16, f16, f64 ..."),
    ] = None
    autocast: Annotated[
        str | None,
        typer.Option(
            "--autocast",
            metavar="bf16|f16",
            help="Count the forward pass as if it ran under torch.autocast with this dtype.",
            autocompletion=lambda: ["bf16", "f16"],
        ),
    ] = None
    train: Annotated[
        bool | None,
        typer.Option(
            "--train/--eval",
            help="Run the model in train mode or in eval mode. Default: train mode with a backward pass, else eval mode.",
        ),
    ] = None
    backward: Annotated[
        bool,
        typer.Option(
            "--backward",
            help="Also run the backward pass, from the loss or, without a loss, from the sum of the outputs. Models named hf:... also get labels as an input, so that they compute a loss. The model is in train mode unless --eval is given.",
        ),
    ] = False
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Also count a step of this optimizer from torch.optim, such as AdamW. This requires --backward. The step is only counted, not run.",
        ),
    ] = None
    convention: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Count FLOPs by the rules of this counter. The command 'fxflops conventions' lists the counters. Default: fxflops.",
            autocompletion=conventions,
        ),
    ] = None
    attention: Annotated[
        str | None,
        typer.Option(
            metavar="dense|exact",
            help="Count all pairs of queries and keys (dense), or only the pairs that the attention mask keeps (exact). Default: dense.",
            autocompletion=lambda: ["dense", "exact"],
        ),
    ] = None

    unsafe: Annotated[
        bool,
        typer.Option(
            "--unsafe",
            help="Also load pickled models (torch.save). Loading runs code from the file, so give --unsafe only for files that you trust.",
        ),
    ] = False

    @property
    def card(self) -> Device | None:
        """The card that ``device`` names; None for a torch device or no device.

        Raises InputError for a name that can be neither a card nor a torch device. Checking the name does not import torch.
        """
        found = None if self.device is None else listed(self.device)
        if found is None and self.device is not None and not MAY_BE_OF_TORCH.fullmatch(self.device):
            raise unknown_device(self.device)
        return found

    @property
    def place(self) -> str | None:
        """The torch device to use: ``device`` itself, "cuda" if ``device`` names a card, or None."""
        return self.device if self.card is None else "cuda"

    def of_saved(self) -> Asked:
        """Return only the options that apply to a saved report: convention and attention."""
        return Asked(convention=self.convention, attention=self.attention)


def given_by(asked: Asked) -> tuple[Given, ...]:
    """Return the inputs given by ``--input`` and ``--input-ids``."""
    tokens = [] if asked.input_ids is None else [read_tokens(asked.input_ids)]
    return (*map(read_input, asked.input or ()), *tokens)


@dataclass(frozen=True, slots=True)
class Limits:
    """The budgets of ``fxflops check``. A budget that the user does not give is None."""

    max_flops: Annotated[
        int | None,
        typer.Option(metavar="COUNT", parser=COUNT, help="Limit for FLOPs, e.g. 4.2G. Suffixes: K, M, G, T, P."),
    ] = None
    max_macs: Annotated[int | None, typer.Option(metavar="COUNT", parser=COUNT, help="Limit for MACs, e.g. 2.1G.")] = (
        None
    )
    max_params: Annotated[
        int | None, typer.Option(metavar="COUNT", parser=COUNT, help="Limit for parameters, e.g. 30M.")
    ] = None
    max_memory: Annotated[
        int | None, typer.Option(metavar="BYTES", parser=SIZE, help="Limit for peak memory, e.g. 2GiB or 500MB.")
    ] = None
    max_time: Annotated[
        float | None,
        typer.Option(
            metavar="TIME",
            parser=SECONDS,
            help="Limit for the time of one run, e.g. 50ms or 1.5s. A number without a unit is in seconds.",
        ),
    ] = None
