"""``fxflops summary``: the modules of a model with their shapes, as torchinfo's users expect them."""

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
    depth: Annotated[int, typer.Option(min=0, metavar="N", help="Levels of modules to show.")] = DEPTH,
    columns: Annotated[str, typer.Option(metavar="A,B,...", help="The columns to show.")] = ",".join(COLUMNS),
    json: option.TableAsJson = False,
) -> None:
    """Show the modules of a model, or of a saved report, with their shapes, parameters and MACs, and totals below.

    The model is counted; nothing is computed, and no weights are made.
    """
    pick(MODULE_COLUMNS, columns)
    report = report_of(model, asked)
    tree = report.tree(depth, columns=columns)
    typer.echo(tree.to_json() if json else str(ModelSummary(report, tree)))
