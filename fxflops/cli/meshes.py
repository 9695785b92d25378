"""``fxflops mesh``: simulate a training step of a language model on every mesh of a number of devices, and rank the meshes by speed."""

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
from .options import SIZE, WHOLE, examples
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
    gpus: Annotated[int, typer.Option(min=1, metavar="N", help="Number of devices in a mesh.")],
    device: Annotated[
        str,
        typer.Option(
            metavar="DEVICE",
            help="The card: H100, H200, B200, A100 ..., or cuda for this machine's GPU. The card determines the peak FLOP/s and the link speeds.",
        ),
    ] = "H100",
    memory: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            parser=SIZE,
            help="Memory for tensors on each device, e.g. 70GiB. Default: the card's memory minus CUDA's context and NCCL's buffers.",
        ),
    ] = None,
    seq: Annotated[int, typer.Option(parser=WHOLE, metavar="N", help="Number of tokens in a sequence.")] = 8192,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Sequences per data-parallel rank in one forward and backward pass. Default: 1. With --global-batch, fxflops picks the number that fits into memory and is predicted to be fastest.",
        ),
    ] = None,
    global_batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Sequences per step over all ranks. If a rank's sequences do not fit into memory in one pass, the rank accumulates gradients over several passes.",
        ),
    ] = None,
    global_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            parser=option.COUNT,
            help="Tokens per step over all ranks, e.g. 4194304. Give --global-tokens instead of --global-batch.",
        ),
    ] = None,
    within: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            parser=SIZE,
            help="Link speed within a node, in bytes per second per direction, e.g. 450GB. Default: the card's link speed.",
        ),
    ] = None,
    across: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            parser=SIZE,
            help="Each device's link speed to other nodes, in bytes per second in each direction, e.g. 50GB. Default: the card's link speed.",
        ),
    ] = None,
    node: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of devices in a node. Default: 8.")
    ] = None,
    checkpoint: Annotated[
        bool | None,
        typer.Option(
            "--checkpoint/--no-checkpoint",
            help="Checkpoint every layer (keep only the layer's input), or keep all activations. Default: checkpoint only on meshes where the model would not fit into memory otherwise. With --global-batch, also checkpoint on meshes where checkpointing is faster.",
        ),
    ] = None,
    json: option.TableAsJson = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="Print the meshes on which the model fits into memory, as CSV.")
    ] = False,
) -> None:
    """Simulate a training step of a transformers causal language model on each mesh of --gpus devices. Print the meshes that fit in
    memory, fastest first, then the meshes that do not fit.

    A mesh splits the devices into dp data-parallel ranks of tp tensor-parallel devices each. Weights, gradients and AdamW's state are in
    f32. fully_shard shards them over dp, layer by layer. The forward and backward passes compute in bf16, and gradients are reduced after
    each pass. Tensor parallelism stays within a node, follows the model's tp_plan, and uses only sizes that divide the number of heads.

    Pipeline parallelism is not simulated, since only you can choose the stages of a model: to rank meshes with pipelines, pass your own
    training step to fxflops.distributed.rank_meshes. The Python function for this command is fxflops.distributed.train_meshes. --json and --csv
    print more columns, e.g. a lower bound on the step time.
    """
    if Path(model, "config.json").is_file():  # a model's folder: load its config
        model = f"hf:{model}"
    if not model.startswith("hf:"):
        raise InputError(f"mesh needs a transformers language model, hf:CLASS or hf:CONFIG.json; got {model!r}")
    if json and csv:
        raise InputError("give either --json or --csv, not both")
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
            f"the link speeds of {card.name} are unknown: give --within and --across in bytes per second per direction, "
            "e.g. --within 64GB --across 25GB"
        )
    # Stdout is for results, so text that the model prints goes to stderr.
    with (
        redirect_stdout(sys.stderr),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        with working(f"loading {model}"):
            net: Any = load(model, on_meta=True).model
        with counting_bar("simulating training steps") as counter:
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
                done=counter.done,
                started=counter.started,
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
        size = f"batch {batch or 1:,} of {seq:,} tokens per data-parallel rank"
        if global_batch is not None:
            size = f"{global_batch:,} sequences of {seq:,} tokens on all ranks"
        typer.echo(f"training step: {size}; weights, gradients and AdamW's state in f32, computed in bf16")
        typer.echo(str(meshes))
        if meshes.too_large and not meshes.found:
            typer.echo(_advice(meshes, batch, global_batch, checkpoint))


def _sequences(global_batch: int | None, global_tokens: int | None, seq: int) -> int | None:
    """Return the number of sequences in a step over all ranks; None if neither option is given."""
    if global_tokens is None:
        return global_batch
    if global_batch is not None:
        raise InputError("give either --global-batch or --global-tokens, not both")
    if global_tokens % seq or not global_tokens:
        power = 2 ** max(0, round(math.log2(max(1, global_tokens / seq))))
        raise InputError(
            f"--global-tokens must be a positive multiple of --seq {seq:,}, got {global_tokens:,}; e.g. --global-batch {power} is {power * seq:,} tokens"
        )
    return global_tokens // seq


def _advice(meshes: Meshes, batch: int | None, global_batch: int | None, checkpoint: bool | None) -> str:
    """Return advice on what to try if no mesh fits."""
    try_ = []
    if checkpoint is False:
        try_.append("leave out --no-checkpoint")
    if batch is not None and batch > 1:
        smaller = (
            "a smaller --batch" if global_batch else "a smaller --batch, with --global-batch to accumulate gradients"
        )
        try_.append(smaller)
    from ..distributed.training import HELD_BY_FEW

    # If there are already more ranks than experts, more ranks do not make the experts' part on a rank smaller.
    few = any(HELD_BY_FEW in note for note in meshes.notes)
    try_ += [] if few else ["more devices (--gpus)"]
    ways = ", ".join([*try_, "shorter sequences (--seq)", "cards with more memory (--device)"])
    return f"ways to make it fit: {ways}" + (
        "; more devices do not help, since few ranks hold most parameters" if few else ""
    )
