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
NO_CARD = "give --device CARD, the card to predict for: H100, A100, L4, RTX 4090 ..."
MAY_BE_OF_TORCH = re.compile(r"[a-z_]+\d?(:\d+)?")
"""Names that may be torch devices, such as "cuda:1". Torch checks them later, as importing it takes seconds."""


def unknown_device(name: str) -> InputError:
    """Return the error for a name that is neither a card nor a torch device."""
    close = did_you_mean(name, [device.name for device in DEVICES])
    return InputError(
        f"unknown device {name!r}{close}; give cpu, cuda, cuda:1 or meta, or a card, such as H100, A100, L4, RTX 4090; "
        "describe an unlisted card by its figures: --device name=Mine,bf16=400T,bandwidth=2TB,memory=96GB"
    )


def read_by(read: Callable[[str], T]) -> Callable[[str], T]:
    """Return a typer parser that calls ``read`` and turns its ValueError into a usage error."""

    def parser(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parser


def spread(*left_out: str, **helps: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace each dataclass parameter of a command by the dataclass's fields, which typer turns into options.

    Fields in ``left_out`` are not options of this command and keep their defaults. ``helps`` replaces the help texts of fields.
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


COUNT, SIZE, SECONDS = (read_by(read) for read in (units.read_count, units.read_size, units.read_seconds))


def read_percent(text: str) -> float:
    """Read a percentage from 0, such as 1% or 0.5; ValueError for other text."""
    percent = float(text.strip().removesuffix("%"))
    if not 0 <= percent < math.inf:
        raise ValueError(f"{text!r} is not a percentage: write 1% or 0.5")
    return percent


PERCENT = read_by(read_percent)

HELP_MODEL = (
    "timm:NAME, torchvision:NAME, hf:TYPE or hf:CLASS or hf:CONFIG.json, FILE.py:NAME or PACKAGE.MODULE:NAME; "
    "a torch.export or TorchScript file (.pt2, .pt), or a folder with a config.json; a report saved as FILE.json; or a torch.profiler trace."
)

Model = Annotated[str, typer.Argument(metavar="MODEL", help=HELP_MODEL, show_default=False, callback=check_model)]


def check_models(names: list[str]) -> list[str]:
    return [check_model(name) for name in names]


Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL",
        help=f"{HELP_MODEL} Several models give one table, with a row each.",
        show_default=False,
        callback=check_models,
    ),
]
TableAsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]


@dataclass(frozen=True, slots=True)
class Asked:
    """Options for the inputs and for how to count, shared by all commands; None where not given."""

    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "--input-size",
            metavar="[NAME=]SHAPE[:DTYPE]",
            help="Shape of an input, batch included: 1,3,224,224 or mask=1,128:bool; batch.ids=1,128 for a dict's entry. Repeat for more inputs, in order. Default: inputs that fit the model.",
        ),
    ] = None
    input_ids: Annotated[
        str | None, typer.Option(metavar="SHAPE", help="Pass random tokens of this shape as input_ids, e.g. 1,128.")
    ] = None
    batch: Annotated[int | None, typer.Option(min=1, metavar="N", help="The first dimension of every input.")] = None
    # Option names are written out: typer 0.27 mistakes a metavar that is the parameter's name in capitals for the option's name.
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="Device to run on or count for: cpu, cuda, cuda:1 or meta. A card such as H100, or an unlisted card's figures (bf16=400T,bandwidth=2TB,memory=96GB): count for it, without running. Default: the CPU.",
        ),
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", metavar="DTYPE", help="Dtype of weights and real inputs: bf16, f16, f64 ..."),
    ] = None
    autocast: Annotated[
        str | None,
        typer.Option(
            "--autocast",
            metavar="bf16|f16",
            help="Count the forward as under torch.autocast with this dtype.",
            autocompletion=lambda: ["bf16", "f16"],
        ),
    ] = None
    train: Annotated[
        bool | None,
        typer.Option(
            "--train/--eval",
            help="Run in train or in eval mode. Default: train with a backward pass, else eval.",
        ),
    ] = None
    backward: Annotated[
        bool,
        typer.Option(
            "--backward",
            help="Run the backward pass too, from the loss (hf: models are given labels) or the sum of the outputs; in train mode unless --eval is given.",
        ),
    ] = False
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Also count a step of this optimizer after --backward: a class of torch.optim, such as AdamW. It does not run.",
        ),
    ] = None
    convention: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Count by this counter's rules; see fxflops conventions. Default: fxflops.",
            autocompletion=conventions,
        ),
    ] = None
    attention: Annotated[
        str | None,
        typer.Option(
            metavar="dense|exact",
            help="Count all pairs of queries and keys (dense), or those that a mask leaves (exact). Default: dense.",
            autocompletion=lambda: ["dense", "exact"],
        ),
    ] = None

    unsafe: Annotated[
        bool,
        typer.Option(
            "--unsafe",
            help="Also load pickled models (torch.save). This runs code from the file: use it only for files you trust.",
        ),
    ] = False

    @property
    def card(self) -> Device | None:
        """The card that ``device`` names; None for a torch device or no device. Raises InputError for a name that can be neither,
        before torch is imported."""
        found = None if self.device is None else listed(self.device)
        if found is None and self.device is not None and not MAY_BE_OF_TORCH.fullmatch(self.device):
            raise unknown_device(self.device)
        return found

    @property
    def place(self) -> str | None:
        """The device's name in torch."""
        return self.device if self.card is None else "cuda"

    def of_saved(self) -> Asked:
        """Return the options that apply to a saved report: convention and attention."""
        return Asked(convention=self.convention, attention=self.attention)


def given_by(asked: Asked) -> tuple[Given, ...]:
    """Return the inputs given by ``--input`` and ``--input-ids``."""
    tokens = [] if asked.input_ids is None else [read_tokens(asked.input_ids)]
    return (*map(read_input, asked.input or ()), *tokens)


@dataclass(frozen=True, slots=True)
class Limits:
    """The budgets of ``fxflops check``; None where not given."""

    max_flops: Annotated[
        int | None, typer.Option(metavar="COUNT", parser=COUNT, help="Limit, such as 4.2G; K, M, G, T, P.")
    ] = None
    max_macs: Annotated[int | None, typer.Option(metavar="COUNT", parser=COUNT, help="Limit, such as 2.1G.")] = None
    max_params: Annotated[int | None, typer.Option(metavar="COUNT", parser=COUNT, help="Limit, such as 30M.")] = None
    max_memory: Annotated[
        int | None, typer.Option(metavar="BYTES", parser=SIZE, help="Limit at the peak: 2GiB, 500MB ...")
    ] = None
    max_time: Annotated[
        float | None,
        typer.Option(
            metavar="TIME", parser=SECONDS, help="Limit for one run: 50ms, 1.5s ...; seconds if no unit is given."
        ),
    ] = None
