"""``fxflops summary``: print a torchinfo-style table of a model's modules with their shapes."""

from __future__ import annotations

from typing import Annotated

import typer

from ..render.columns import MODULE_COLUMNS, pick
from ..report.model_summary import COLUMNS, DEPTH, ModelSummary
from . import options as option
from .options import Asked, examples, spread
from .reports import report_of

EXAMPLES = examples(
    "fxflops summary timm:resnet18 --input-size 1,3,224,224",
    "fxflops summary hf:bert --input-ids 1,128 --depth 2",
    "fxflops summary model.py:make_model --input-size 1,3,64,64 --columns output,params,flops",
)


@spread("backward", "optimizer", "autocast")
def summary(
    model: option.Model,
    *,
    asked: Asked,
    depth: Annotated[int, typer.Option(min=0, metavar="N", help="Number of levels of nested modules to show.")] = DEPTH,
    columns: Annotated[str, typer.Option(metavar="A,B,...", help="Columns to show.")] = ",".join(COLUMNS),
    json: option.TableAsJson = False,
) -> None:
    """Show a table of a model's modules with their shapes, parameters and MACs, and the model's totals below the table.

    MODEL may be a saved report. If MODEL is not a saved report, the model is counted without computing anything or allocating weights.
    """
    pick(MODULE_COLUMNS, columns)
    report = report_of(model, asked)
    tree = report.tree(depth, columns=columns)
    typer.echo(tree.to_json() if json else str(ModelSummary(report, tree)))
