"""What the commands share: the options that several of them have, each once, and how their words are read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from .. import units
from ..errors import InputError, not_installed

T = TypeVar("T")


def read_by(read: Callable[[str], T]) -> Callable[[str], T]:
    """What typer takes to read a value: its errors become those of the command line."""

    def parser(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parser


def examples(*lines: str) -> str:
    """The end of a command's help. A line ``# ...`` says what the next one does."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def conventions() -> list[str]:
    from ..conventions import CONVENTIONS

    return list(CONVENTIONS)


COUNT, SIZE, SECONDS = (read_by(read) for read in (units.read_count, units.read_size, units.read_seconds))

HELP_MODEL = (
    "timm:NAME, torchvision:NAME, hf:TYPE or hf:CLASS or hf:CONFIG.json, FILE.py:NAME or PACKAGE.MODULE:NAME; "
    "or a report saved as FILE.json."
)

PACKAGES = {"timm": "timm", "torchvision": "torchvision", "hf": "transformers"}
"""The packages of models that are named by a library's prefix."""


def there(name: str) -> str:
    """The name of a model whose library, or file, is there: InputError before torch is loaded for one that is not."""
    library, colon, _ = name.partition(":")
    package = PACKAGES.get(library, "") if colon else ""
    if package and package not in sys.modules and find_spec(package) is None:
        raise not_installed(package)
    place = name.rpartition(":")[0]
    if place.endswith(".py") and not Path(place).expanduser().is_file():
        raise InputError(f"there is no file {place!r}")
    return name


Model = Annotated[str, typer.Argument(metavar="MODEL", help=HELP_MODEL, show_default=False, callback=there)]
Other = Annotated[
    str, typer.Argument(metavar="OTHER", help="Another, or another report.", show_default=False, callback=there)
]

Input = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]SHAPE[:DTYPE]",
        help="An input, as 1,3,224,224 or mask=1,128:bool; once for each, in order. Default: what the model says itself.",
    ),
]
InputIds = Annotated[str | None, typer.Option(metavar="SHAPE", help="Random tokens as input_ids, as 1,128.")]
Batch = Annotated[int | None, typer.Option(min=1, metavar="N", help="The first size of every input.")]
Device = Annotated[str | None, typer.Option(metavar="DEVICE", help="cpu, cuda, cuda:1 or meta.")]
Dtype = Annotated[str | None, typer.Option(metavar="DTYPE", help="Of the weights and real inputs: bf16, f16, f64 ...")]
Train = Annotated[bool, typer.Option("--train", help="Run in train mode, not in eval mode.")]
Backward = Annotated[
    bool,
    typer.Option(
        "--backward", help="The backward pass, too, from the sum of the outputs; in eval mode without --train."
    ),
]
Convention = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What counts how much; see fxflops conventions. Default: fxflops.",
        autocompletion=conventions,
    ),
]
Attention = Annotated[
    str | None,
    typer.Option(
        metavar="dense|exact",
        help="All pairs of queries and keys, or those that a mask leaves. Default: dense.",
        autocompletion=lambda: ["dense", "exact"],
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Fail (exit code 1) where an operation has no formula.")]

Trace = Annotated[
    str,
    typer.Option(
        metavar="auto|symbolic|record",
        help="How the graph is made.",
        autocompletion=lambda: ["auto", "symbolic", "record"],
    ),
]
Repeats = Annotated[
    str, typer.Option(metavar="auto|N", help="How often to time; auto: until stable or 2 s are over, 0: not at all.")
]
CountsOnly = Annotated[bool, typer.Option("--counts-only", help="Count on the meta device: no weights, no time.")]

AsTree = Annotated[bool, typer.Option("--tree", help="The modules, too, one inside the other.")]
AsTable = Annotated[bool, typer.Option("--table", help="Every operation, too, in run order.")]
Depth = Annotated[int | None, typer.Option(min=0, metavar="N", help="Levels of the --tree.")]
Top = Annotated[int | None, typer.Option(min=1, metavar="N", help="Rows of the --table.")]
SortBy = Annotated[str | None, typer.Option(metavar="COLUMN", help="Largest first: flops, time, memory ...")]
Columns = Annotated[str | None, typer.Option(metavar="A,B,...", help="The columns to show.")]
Units = Annotated[str | None, typer.Option(metavar="UNIT", help="One unit for all rows: G, M, ms, MiB ...")]
AsJson = Annotated[bool, typer.Option("--json", help="The report as JSON, and nothing else, on stdout.")]
TableAsJson = Annotated[bool, typer.Option("--json", help="As JSON, for other programs.")]
Save = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="Write the report: .html, .json, .csv, .md ... by suffix; once for each file."),
]

MaxFlops = Annotated[int | None, typer.Option(metavar="COUNT", parser=COUNT, help="As 4.2G; K, M, G, T, P.")]
MaxMacs = Annotated[int | None, typer.Option(metavar="COUNT", parser=COUNT, help="As 2.1G.")]
MaxParams = Annotated[int | None, typer.Option(metavar="COUNT", parser=COUNT, help="As 30M.")]
MaxMemory = Annotated[int | None, typer.Option(metavar="BYTES", parser=SIZE, help="At the peak: 2GiB, 500MB ...")]
MaxTime = Annotated[
    float | None,
    typer.Option(metavar="TIME", parser=SECONDS, help="Of one run: 50ms, 1.5s ...; seconds where no unit is said."),
]
AllowIncomplete = Annotated[
    bool, typer.Option("--allow-incomplete", help="Pass although operations without a formula are not in the counts.")
]
