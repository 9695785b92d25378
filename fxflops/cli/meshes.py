"""``fxflops mesh``: the meshes of a number of devices on which a language model can be trained, by the bound of a step."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
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
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Sequences of each data-parallel rank.")] = 1,
    global_batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Sequences per step over all ranks, instead of --batch. Gradients are not accumulated.",
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
    """Simulate a training step of a causal language model of transformers on each mesh of so many devices, and print those
    that fit, most tokens per second first, then those that do not. Layers are checkpointed where a mesh needs it.

    The step: weights, gradients and AdamW's state in f32, sharded over dp by fully_shard layer by layer; bf16 in between; tensor
    parallel over tp within a node, by the model's own tp_plan, for sizes that divide its heads. Pipelines are not among the meshes: how
    a model is cut into stages is its author's to say; fxflops.distributed.rank_meshes takes a step of yours. A bound is the
    least time that the device's peaks and links allow, and stands beside the predicted one.
    """
    if Path(model, "config.json").is_file():  # the folder of a model
        model = f"hf:{model}"
    if not model.startswith("hf:"):
        raise InputError(f"mesh is for language models of transformers, hf:CLASS or hf:CONFIG.json, not {model!r}")
    if json and csv:
        raise InputError("--json or --csv, not both")
    from ..distributed import rank_meshes
    from ..distributed.bounds import with_checkpoints
    from ..distributed.causal_lm import candidates, layers_of, plan_of, training_step
    from ..distributed.links import LINKS, Links
    from ..prediction.reserved import beside
    from ..render.exports import as_json
    from ..run.progress import counting_bar, working
    from .models import load
    from .tensors import card_of

    card = card_of(device)
    known = LINKS.get(card.name, Links(0.0, 0.0))
    links = Links(float(within or known.within), float(across or known.across), node or known.node)
    if not (links.within and links.across):
        raise InputError(
            f"the links of {card.name} are not known: give --within and --across, bytes a second of a device one way, "
            "such as --within 64GB --across 25GB"
        )
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
        if global_batch is not None:
            undivided = [f"dp {mesh['dp']}" for mesh in meshes if global_batch % mesh["dp"]]
            meshes = [mesh for mesh in meshes if not global_batch % mesh["dp"]]
            if undivided and meshes:
                note(f"left out: {', '.join(undivided)}, among which {global_batch} sequences cannot be divided")
            if not meshes:
                raise InputError(
                    f"--global-batch {global_batch} cannot be divided among the data-parallel ranks of any mesh"
                )

        def tokens_of(mesh: Mapping[str, int]) -> int:
            return seq * (mesh["dp"] * batch if global_batch is None else global_batch)

        def ranked(meshes: Sequence[Mapping[str, int]], checkpointing: bool) -> Meshes:
            step = training_step(net, tokens=seq, batch=batch, global_batch=global_batch, checkpointing=checkpointing)
            with counting_bar("simulating a training step", len(meshes) + (layers_of(net) is not None)) as done:
                return rank_meshes(
                    step,
                    meshes,
                    device=card,
                    links=links,
                    memory=memory,
                    differs=(),
                    tokens=tokens_of,
                    layers=layers_of(net),
                    processes=os.cpu_count() or 1,
                    done=done,
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
        size = f"batch {batch:,} of {seq:,} tokens for each rank of dp"
        if global_batch is not None:
            size = f"{global_batch:,} sequences of {seq:,} tokens on all ranks"
        typer.echo(f"training step: {size}; weights, gradients and AdamW's state in f32, computed in bf16")
        typer.echo(str(found))
