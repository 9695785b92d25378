"""Commands that answer one question about a counted model: how close to the roofline it is, what serving it costs, what training it costs,
or what a trainer estimates for it."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import units
from ..errors import InputError
from ..render.exports import as_json
from ..report.training_run import check_mfu
from ..roofline.devices import Device
from . import options as option
from .libraries import check_model
from .options import Asked, examples, read_by, spread
from .reports import is_saved, report_of
from .shown import note

if TYPE_CHECKING:
    from torch import nn

TOKENS = read_by(units.read_tokens)
ROOFLINE_EXAMPLES = examples(
    "fxflops roofline timm:resnet50 --device A100 --batch 64",
    "fxflops roofline report.json --device 4090",
    "fxflops roofline hf:bert --input-ids 8,512 --backward --phase backward --device L4",
)
SERVING_EXAMPLES = examples(
    "fxflops serving hf:LlamaForCausalLM --prompt 1000 --new-tokens 100 --dtype bf16 --device H100",
    "fxflops serving hf:path/to/config.json --prompt 4000 --new-tokens 500 --batch 16 --device H200",
)
TRAINING_EXAMPLES = examples(
    "fxflops training-run hf:LlamaForCausalLM --input-ids 1,4096 --dtype bf16 --tokens 15T --device H100 --gpus 1024",
    "fxflops training-run hf:path/to/config.json --input-ids 1,8192 --dtype bf16 --tokens 300B --device A100 --mfu 0.5",
)
ESTIMATE_EXAMPLES = examples(
    "fxflops estimate megatron hf:path/to/config.json --lengths 8192",
    "fxflops estimate verl hf:LlamaForCausalLM --lengths 512,1024 --against fxflops",
)


@spread(
    "convention",
    "attention",
    device="The card, such as H100, 'A100 40GB' or 4090. Default: the device that a timed report was measured on.",
)
def roofline(
    model: option.Model,
    *,
    asked: Asked,
    phase: Annotated[
        str, typer.Option(metavar="forward|backward|optimizer|all", help="The phase whose calls are shown.")
    ] = "forward",
    json: option.TableAsJson = False,
) -> None:
    """Show a lower bound on the time of each call of a model on a card, and what limits the call. The model is counted, not run."""
    saved = is_saved(model)
    if asked.device is None and not saved:
        raise InputError(option.NO_CARD)
    card = _card(asked)
    report = report_of(
        model, replace(asked, device=None) if saved or card is None else replace(asked, device=card.name)
    )
    result = report.roofline(card or "auto", phase)
    typer.echo(result.to_json() if json else str(result))


@spread(
    "input",
    "input_ids",
    "batch",
    "autocast",
    "train",
    "backward",
    "optimizer",
    "convention",
    device="The card to show times for, such as H100. Default: show no times.",
)
def serving(
    model: option.Model,
    *,
    prompt: Annotated[int, typer.Option(parser=option.WHOLE, metavar="N", help="Number of tokens in each prompt.")],
    new_tokens: Annotated[
        int, typer.Option(parser=option.WHOLE, metavar="N", help="Number of tokens to generate after the prompt.")
    ],
    sequences: Annotated[
        int, typer.Option("--batch", min=1, metavar="N", help="Number of sequences served together.")
    ] = 1,
    draft: Annotated[str | None, typer.Option(metavar="MODEL", help="Draft model for speculative decoding.")] = None,
    draft_tokens: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of tokens that the draft model proposes at a time.")
    ] = 4,
    acceptance: Annotated[
        float,
        typer.Option(
            min=0, max=1, metavar="SHARE", help="Share of the draft model's tokens that the main model accepts."
        ),
    ] = 0.8,
    asked: Asked,
    json: option.TableAsJson = False,
) -> None:
    """Show the cost of serving a transformers causal language model: FLOPs, bytes and cache size. With a card, also show times."""
    from ..symbolic.inference import serving as cost_of

    result = cost_of(
        _network(model, asked),
        prompt=prompt,
        new_tokens=new_tokens,
        batch=sequences,
        device=_card(asked),
        attention=asked.attention or option.ATTENTION,
        draft=None if draft is None else _network(check_model(draft), asked),
        draft_tokens=draft_tokens,
        acceptance=acceptance,
    )
    typer.echo(as_json(asdict(result)) if json else str(result))
    if result.dtype in ("f32", "tf32") and not json:
        note("the model computes in f32, but servers mostly use bf16: give --dtype bf16")


@spread(
    "backward", "optimizer", "convention", "autocast", "train", device="The card to train on, such as H100. Required."
)
def training_run(
    model: option.Model,
    *,
    tokens: Annotated[
        int, typer.Option(parser=TOKENS, metavar="N", help="Number of tokens to train on: 15T, 300B ...")
    ],
    mfu: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Share of the card's peak FLOP/s that training reaches. The default is what large runs reach (Llama 3 405B on H100: 0.38 to 0.43, arXiv:2407.21783). 'fxflops mesh' predicts the share for a cluster.",
        ),
    ] = 0.4,
    gpus: Annotated[
        int | None, typer.Option(parser=option.WHOLE, metavar="N", help="Also show the days on this number of GPUs.")
    ] = None,
    asked: Asked,
    json: option.TableAsJson = False,
) -> None:
    """Show how many GPU-hours a training run takes, computed from the count of one step. Compare these hours with the 6ND estimate."""
    card = _card(asked)
    if card is None:
        raise InputError(option.NO_CARD)
    check_mfu(mfu)
    saved = is_saved(model)
    report = report_of(model, asked.of_saved() if saved else replace(asked, device=None, backward=True))
    result = report.training_run(tokens, card, mfu)
    if json:
        hours = {"hours": result.hours, "six_nd_hours": result.six_nd_hours, "exact_hours": result.exact_hours}
        if gpus is not None:
            hours["days"] = result.days(gpus)
        typer.echo(
            as_json({"device": card.name, "tokens": tokens, "mfu": mfu, **hours, "provenance": report.provenance})
        )
    else:
        days = "" if gpus is None else f"\n{result.days(gpus):,.1f} days on {gpus:,} GPUs"
        typer.echo(
            f"{result}{days}\ncounted for a step of {report.per_token().tokens:,} tokens ({report.rules}): the cost per token depends on the sequence length, which --input-ids 1,LENGTH sets"
        )
        if result.dtype in ("f32", "tf32"):
            note("the model computes in f32, but most training runs use bf16: give --dtype bf16")


def estimate(
    trainer: Annotated[
        str,
        typer.Argument(
            metavar="TRAINER", help="The trainer: verl, megatron, torchtitan ..., or fxflops for the true count."
        ),
    ],
    model: option.Model,
    *,
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Number of tokens in each sequence of the batch. Default: the sequence lengths in the saved report.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="TRAINER", help="Another trainer, to explain why the two trainers' estimates differ."),
    ] = None,
) -> None:
    """Show the FLOPs that a trainer (verl, Megatron-LM, torchtitan ...) estimates for a batch, term by term of the trainer's formula.

    MODEL must be a transformers config or class (hf:...), or a saved report with a backward pass.
    """
    from .. import trainers

    given = None
    if lengths is not None:
        try:
            given = [int(each) for each in lengths.split(",")]
        except ValueError:
            raise InputError(f"--lengths {lengths!r}: expected whole numbers, such as 512,1024") from None
    source: Any = report_of(model, Asked()) if is_saved(model) else _network(model, Asked())
    if given is None and not is_saved(model):
        raise InputError("give --lengths N,N,..., the number of tokens in each sequence of the batch")
    result = (
        trainers.estimate(trainer, source, given)
        if against is None
        else trainers.explain(trainer, against, source, given)
    )
    typer.echo(str(result))


def _card(asked: Asked) -> Device | None:
    """Return the requested card; None if none was requested."""
    if asked.device is None or asked.card is not None:
        return asked.card
    from .tensors import card_of  # imported here: only an unlisted device needs torch

    return card_of(asked.device)


def _network(model: str, asked: Asked) -> nn.Module:
    """Return the model on the meta device, in the requested dtype."""
    from .models import load
    from .tensors import dtype_of

    network: nn.Module = load(model, on_meta=True).model
    return network if asked.dtype is None else network.to(dtype_of(asked.dtype))
