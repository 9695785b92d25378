"""``fxflops mesh``: the meshes of a number of devices on which a language model can be trained, by the bound of a step."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError
from . import options as option
from .options import SIZE, examples
from .shown import note

if TYPE_CHECKING:
    from ..distributed.bounds import Meshes

EXAMPLES = examples(
    "fxflops mesh hf:path/to/config.json --gpus 2048 --device H100 --memory 80GiB --seq 8192",
    "fxflops mesh hf:path/to/config.json --gpus 64 --device A100 --seq 4096 --no-checkpoint --json",
)


def mesh(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A causal language model of transformers: hf:CLASS or hf:CONFIG.json.",
            show_default=False,
            callback=option.check_model,
        ),
    ],
    *,
    gpus: Annotated[int, typer.Option(min=1, metavar="N", help="The number of devices.")],
    device: Annotated[
        str,
        typer.Option(
            metavar="DEVICE",
            help="The card, with its peaks and links: H100, H200, B200, A100 ...; cuda is the one here.",
        ),
    ] = "H100",
    memory: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            parser=SIZE,
            help="Bytes for tensors on a device, such as 70GiB. Default: the card's, without CUDA's context and NCCL's buffers.",
        ),
    ] = None,
    seq: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of a sequence.")] = 8192,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Sequences of each data-parallel rank.")] = 1,
    checkpoint: Annotated[
        bool | None,
        typer.Option(
            "--checkpoint/--no-checkpoint",
            help="Checkpoint each layer (keep only its input), or keep all activations. Default: checkpoint on meshes that do not fit without.",
        ),
    ] = None,
    json: option.TableAsJson = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV of the meshes that fit.")] = False,
) -> None:
    """Simulate a training step of a causal language model of transformers on each mesh of so many devices, and print those
    that fit, the lowest bound of a token first, then those that do not. Layers are checkpointed where a mesh needs it.

    The step: weights, gradients and AdamW's state in f32, sharded over dp by fully_shard layer by layer; bf16 in between; tensor
    parallel over tp within a node, by the model's own tp_plan, for sizes that divide its heads. Pipelines are not among the meshes: how
    a model is cut into stages is its author's to say; fxflops.distributed.rank_meshes takes a step of yours. A bound is the
    least time that the device's peaks and links allow, and stands beside the predicted one.
    """
    if not model.startswith("hf:"):
        raise InputError(f"mesh is for language models of transformers, hf:CLASS or hf:CONFIG.json, not {model!r}")
    if json and csv:
        raise InputError("--json or --csv, not both")
    from ..distributed import rank_meshes
    from ..distributed.bounds import with_checkpoints
    from ..distributed.causal_lm import candidates, layers_of, plan_of, training_step
    from ..distributed.links import links_of
    from ..prediction.reserved import beside
    from ..render.exports import as_json
    from ..run.progress import working
    from .models import load
    from .tensors import card_of

    card = card_of(device)
    links = links_of(card)
    if memory is None and card.memory is not None:
        memory = card.memory - beside(gpus)
    with redirect_stdout(sys.stderr), warnings.catch_warnings():  # what a model prints: stdout is for results
        warnings.simplefilter("ignore")
        with working(f"loading {model}"):
            net: Any = load(model, on_meta=True).model
        meshes = candidates(net, gpus, links.node)
        widest = max(mesh["tp"] for mesh in meshes)
        if not plan_of(net):
            note(f"{model} has no tp_plan, or one of styles that torch has not: its meshes are data parallel alone")
        elif widest < min(gpus, links.node):
            note(
                f"tensor parallel by {widest} at most: larger sizes do not divide the model's heads, or the {gpus} devices"
            )
        if sys.stderr.isatty():  # a spinner's thread would forbid copies of this process
            note(f"simulating a step on {len(meshes)} meshes")

        def ranked(meshes: Sequence[Mapping[str, int]], checkpointing: bool) -> Meshes:
            return rank_meshes(
                training_step(net, tokens=seq, batch=batch, checkpointing=checkpointing),
                meshes,
                device=card,
                memory=memory,
                differs=(),
                tokens=lambda sizes: sizes["dp"] * batch * seq,
                layers=layers_of(net),
                processes=os.cpu_count() or 1,
            )

        found = ranked(meshes, bool(checkpoint))
        if checkpoint is None and found.too_large:
            found = with_checkpoints(found, ranked([each.mesh for each in found.too_large], True))
    if csv:
        typer.echo(found.to_csv(), nl=False)
    elif json:
        too_large = [{"mesh": each.mesh, "memory": each.max_memory} for each in found.too_large]
        said = {"device": found.device.name, "limit": found.limit, "layers": found.layers, "meshes": found.to_dicts()}
        typer.echo(
            as_json({**said, "too_large": too_large, "failed": found.failed, "provenance": found.table.provenance})
        )
    else:
        typer.echo(
            f"training step: batch {batch:,} of {seq:,} tokens for each rank of dp; weights, gradients and AdamW's state in f32, computed in bf16"
        )
        typer.echo(str(found))
