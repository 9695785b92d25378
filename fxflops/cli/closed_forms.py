"""``fxflops closed-form``: print the costs of a model as formulas in the sizes of its inputs."""

from __future__ import annotations

import re
import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from ..errors import InputError
from . import options as option
from .options import Asked, examples, spread
from .shown import note

NAMED = re.compile(r"(_|[A-Za-z]\w*)(?::(\d+))?")
EXAMPLES = examples(
    "fxflops closed-form hf:path/to/config.json --dynamic batch,seq",
    "fxflops closed-form hf:path/to/config.json --dynamic _,seq:8192 --attention exact --latex",
    "fxflops closed-form torchvision:resnet18 --dynamic batch:64,_,height:512,width:512",
)


@spread("optimizer", "autocast")
def closed_form(
    model: option.Model,
    *,
    dynamic: Annotated[
        str,
        typer.Option(
            metavar="NAME,NAME,...",
            help="Names for the first dims of every input tensor, e.g. batch,seq. Use _ for a dim of fixed size. Write seq:8192 to compare the formulas with counts for seq up to 8192.",
        ),
    ],
    python: Annotated[
        bool, typer.Option("--python", help="Print the FLOPs as a Python function that imports no package.")
    ] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print the FLOPs as a LaTeX formula.")] = False,
    asked: Asked,
) -> None:
    """Print a model's costs as polynomials in the sizes of its inputs, and the range of sizes for which the polynomials hold.

    --python and --latex print only the FLOPs. The printed FLOPs are those of the forward pass or, with --backward, of the forward and
    backward passes together.
    """
    names = [NAMED.fullmatch(each.strip()) for each in dynamic.split(",")]
    if None in names or (python and latex):
        wrong = (
            "give either --python or --latex, not both"
            if None not in names
            else f"--dynamic {dynamic!r}: expected names, such as batch,seq"
        )
        raise InputError(wrong)
    from torch.export import Dim

    from ..model.inputs import as_call
    from ..symbolic.fitting import closed_form as fitted
    from .runs import settings_of, subject

    dims = {
        i: Dim(each[1], max=int(each[2]) if each[2] else None)
        for i, each in enumerate(names)
        if each and each[1] != "_"
    }
    with redirect_stdout(sys.stderr):  # stdout is for results, so text that the model prints goes to stderr
        on_meta = asked.card is not None or asked.device in (None, "meta")
        net, own_args, own_kwargs = subject(model, asked, on_meta, counts=on_meta)
        args, kwargs = as_call(net, own_args, own_kwargs)
        form = fitted(net, args, kwargs, dynamic_shapes=[dims] * (len(args) + len(kwargs)), **settings_of(asked))
    if asked.card is not None:
        note(f"the closed form was counted for the CPU; peak memory may differ on {asked.card.name}")
    phase = "training" if asked.backward else "forward"
    typer.echo(form.to_python(phase=phase) if python else form.latex(phase=phase) if latex else str(form))
