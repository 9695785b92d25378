"""``fxflops mesh``: the meshes of a number of devices on which a language model can be trained, by the bound of a step."""

from __future__ import annotations

import math
import os
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError
from . import options as option
from .options import SIZE, examples
from .shown import note

if TYPE_CHECKING:
    from ..distributed.meshes import Meshes

EXAMPLES = examples(
    "fxflops mesh hf:path/to/config.json --gpus 2048 --device H100 --memory 80GiB --seq 8192",
    "fxflops mesh hf:path/to/config.json --gpus 64 --seq 4096 --global-batch 1024",
    "fxflops mesh hf:path/to/config.json --gpus 64 --device A100 --seq 4096 --no-checkpoint --json",
)


def mesh(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A transformers causal language model: hf:CLASS or hf:CONFIG.json.",
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
            help="The card, with its peaks and links: H100, H200, B200, A100 ..., or cuda for the one here.",
        ),
    ] = "H100",
    memory: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            parser=SIZE,
            help="Memory for tensors on each device, such as 70GiB. Default: the card's, minus CUDA's context and NCCL's buffers.",
        ),
    ] = None,
    seq: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of a sequence.")] = 8192,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Sequences of each data-parallel rank in a pass. Default: 1, or with --global-batch as many as fit.",
        ),
    ] = None,
    global_batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Sequences per step over all ranks. A rank's share takes several passes where it does not fit at once: gradients are accumulated.",
        ),
    ] = None,
    global_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", parser=option.COUNT, help="Tokens per step over all ranks, instead of --global-batch: 4194304."
        ),
    ] = None,
    within: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            parser=SIZE,
            help="Link speed within a node, bytes a second one way: 450GB. Default: the card's.",
        ),
    ] = None,
    across: Annotated[
        int | None,
        typer.Option(metavar="BYTES", parser=SIZE, help="Link speed between nodes, per device: 50GB."),
    ] = None,
    node: Annotated[int | None, typer.Option(min=1, metavar="N", help="Devices in a node. Default: 8.")] = None,
    checkpoint: Annotated[
        bool | None,
        typer.Option(
            "--checkpoint/--no-checkpoint",
            help="Checkpoint every layer (keep only its input), or keep all activations. Default: checkpoint only on meshes that do not fit otherwise.",
        ),
    ] = None,
    json: option.TableAsJson = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV of the meshes that fit.")] = False,
) -> None:
    """Simulate a training step of a transformers causal language model on each mesh of --gpus devices, and print those
    that fit, most tokens per second first, then those that do not. Layers are checkpointed where a mesh needs it, and
    with --global-batch gradients are accumulated over several passes: of --batch sequences, or of as many as fit.

    The step: weights, gradients and AdamW's state in f32, sharded over dp by fully_shard layer by layer, gradients reduced after each pass; bf16 in between; tensor
    parallel over tp within a node, by the model's own tp_plan, for sizes that divide its heads. Pipelines are not among the meshes: how
    a model is cut into stages is its author's to say; fxflops.distributed.rank_meshes takes a step of yours. In Python this is
    fxflops.distributed.train_meshes. --json and --csv have more columns, such as the least time that the device's peaks and links allow.
    """
    if Path(model, "config.json").is_file():  # the folder of a model
        model = f"hf:{model}"
    if not model.startswith("hf:"):
        raise InputError(f"mesh is for language models of transformers, hf:CLASS or hf:CONFIG.json, not {model!r}")
    if json and csv:
        raise InputError("--json or --csv, not both")
    global_batch = _sequences(global_batch, global_tokens, seq)
    from ..distributed import train_meshes
    from ..distributed.links import LINKS, Links
    from ..render.exports import as_json
    from ..run.progress import counting_bar, working
    from .models import load
    from .tensors import card_of

    card = card_of(device)
    of_card = LINKS.get(card.name, Links(0.0, 0.0))
    links = Links(float(within or of_card.within), float(across or of_card.across), node or of_card.node)
    if not (links.within and links.across):
        raise InputError(
            f"the links of {card.name} are not known: give --within and --across, in bytes/s per device, one way, "
            "such as --within 64GB --across 25GB"
        )
    with redirect_stdout(sys.stderr), warnings.catch_warnings():  # what a model prints: stdout is for results
        warnings.simplefilter("ignore")
        with working(f"loading {model}"):
            net: Any = load(model, on_meta=True).model
        with counting_bar("simulating training steps", None) as done:
            meshes = train_meshes(
                net,
                gpus,
                device=card,
                seq=seq,
                batch=batch,
                global_batch=global_batch,
                checkpoint=checkpoint,
                memory=memory,
                links=links,
                processes=os.cpu_count() or 1,
                done=done,
            )
    if csv or json:
        for each in meshes.notes:
            note(each)
    if csv:
        typer.echo(meshes.to_csv(), nl=False)
    elif json:
        too_large = [{"mesh": each.mesh, "memory": each.max_memory} for each in meshes.too_large]
        head = {
            "device": meshes.device.name,
            "limit": meshes.limit,
            "layers": meshes.layers,
            "meshes": meshes.to_dicts(),
        }
        typer.echo(
            as_json({**head, "too_large": too_large, "failed": meshes.failed, "provenance": meshes.table.provenance})
        )
    else:
        size = f"batch {batch or 1:,} of {seq:,} tokens for each rank of dp"
        if global_batch is not None:
            size = f"{global_batch:,} sequences of {seq:,} tokens on all ranks"
        typer.echo(f"training step: {size}; weights, gradients and AdamW's state in f32, computed in bf16")
        typer.echo(str(meshes))
        if meshes.too_large and not meshes.found:
            typer.echo(_advice(meshes, batch, global_batch, checkpoint))


def _sequences(global_batch: int | None, global_tokens: int | None, seq: int) -> int | None:
    """Return the sequences of a step on all ranks, if either option gives them."""
    if global_tokens is None:
        return global_batch
    if global_batch is not None:
        raise InputError("--global-batch or --global-tokens, not both")
    if global_tokens % seq or not global_tokens:
        power = 2 ** max(0, round(math.log2(max(1, global_tokens / seq))))
        raise InputError(
            f"--global-tokens must be a positive multiple of {seq:,}, not {global_tokens:,}: e.g. --global-batch {power} is {power * seq:,} tokens"
        )
    return global_tokens // seq


def _advice(meshes: Meshes, batch: int | None, global_batch: int | None, checkpoint: bool | None) -> str:
    """Return what to try where no mesh fits."""
    try_ = []
    if checkpoint is False:
        try_.append("leave out --no-checkpoint")
    if batch is not None and batch > 1:
        smaller = (
            "a smaller --batch" if global_batch else "a smaller --batch, with --global-batch to accumulate gradients"
        )
        try_.append(smaller)
    if any(
        "hold them" in note for note in meshes.notes
    ):  # a rank's share of the experts does not shrink with more ranks
        try_.append("fewer devices (--gpus), as the experts' weights are padded for each rank that holds none")
    else:
        try_.append("more devices (--gpus)")
    return "what to do: " + ", ".join([*try_, "shorter sequences (--seq)", "cards with more memory (--device)"])
