"""Check the formulas for other libraries' kernels against plain reference computations, forward and backward, in several shapes.

    python benchmarks/kernels.py

Each kernel is called on meta tensors, by its library's own name and parameters, and counted; it must not run. The reference counts
operation by operation: the textbook definition on numbers that tally each operation, a tape that also differentiates
(``tests/tape.py``), or torch's own layers. The table is ``benchmarks/results/kernels.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops
from tests import library_stand_ins as stand_ins
from tests.ops import test_bitsandbytes as bnb
from tests.ops import test_deformable as deformable
from tests.ops import test_flash_attn as flash
from tests.ops import test_liger as liger
from tests.ops import test_linear_attention as fla
from tests.ops import test_selective_scan as mamba
from tests.ops import test_spconv as spconv
from tests.ops import test_transformer_engine as te
from tests.ops import test_xformers as xformers
from tests.tape import Tape

RESULTS = Path(__file__).parent / "results" / "kernels.md"
Row = tuple[str, str, tuple[int, int], tuple[int, int]]
"""The kernel, its shape, the (forward, backward) FLOPs by the formula, and the same by the reference."""
HEADER = """\
# Kernels of other libraries

fxflops {version}, torch {torch}. FLOPs by the formula of each kernel, and of its plain reference, operation by operation
(`python benchmarks/kernels.py`). No kernel is run. bitsandbytes' 4-bit product and spconv's convolutions are also held to the libraries
themselves, on a CPU: `tests/ops/test_bitsandbytes.py`, `tests/ops/test_spconv.py`.

{same} of {rows} rows are the same, forward and backward.

| kernel | shape | forward | reference | backward | reference |
|---|---|---:|---:|---:|---:|
"""


def both(counted: Any) -> tuple[int, int]:
    return counted.forward.flops, counted.backward.flops


def attention(find: Callable[[str], Any]) -> Iterator[Row]:
    for b, n, s, h, g, d, v in flash.SHAPES:
        given = {"q": torch.randn(b, n, h, d), "k": torch.randn(b, s, g, d), "v": torch.randn(b, s, g, v)}
        reference = b * flash.textbook(n, s, h, d, v).flops, b * flash.gradients(n, s, h, g, d, v).flops
        for version, name in ((flash.V2, "flash_attn 2"), (flash.V3, "flash_attn 3")):
            counted = stand_ins.counts(find(f"{version}:flash_attn_func"), given)
            yield f"{name}: flash_attn_func", f"{b}x{n}x{h}x{d}, {s} keys of {g}", both(counted), reference
        same = {
            name: torch.randn(b, length, h, width)
            for name, length, width in (("query", n, d), ("key", s, d), ("value", s, v))
        }
        reference = b * flash.textbook(n, s, h, d, v).flops, b * flash.gradients(n, s, h, h, d, v).flops
        counted = stand_ins.counts(find(xformers.NAMES[0]), same)
        yield "xformers: memory_efficient_attention", f"{b}x{n}x{h}x{d}, {s} keys", both(counted), reference
    for queries, keys in flash.LENGTHS:
        h, d = 2, 3
        given = {
            "q": torch.randn(sum(queries), h, d),
            "k": torch.randn(sum(keys), h, d),
            "v": torch.randn(sum(keys), h, d),
        }
        given |= {"cu_seqlens_q": flash.starts(queries), "cu_seqlens_k": flash.starts(keys)}
        counted = stand_ins.counts(
            find(f"{flash.V2}:flash_attn_varlen_func"), given, max_seqlen_q=max(queries), max_seqlen_k=max(keys)
        )
        pairs = [*zip(queries, keys, strict=True)]
        reference = (
            sum(flash.textbook(n, s, h, d, d).flops for n, s in pairs),
            sum(flash.gradients(n, s, h, h, d, d).flops for n, s in pairs),
        )
        yield "flash_attn: flash_attn_varlen_func", f"queries {queries}, keys {keys}", both(counted), reference
    for lengths, n in flash.CACHES:
        b, h, d = len(lengths), 2, 4
        given = {"q": torch.randn(b, n, h, d), "k_cache": torch.randn(b, 8, h, d), "v_cache": torch.randn(b, 8, h, d)}
        given |= {"cache_seqlens": torch.tensor([max(each, 1) for each in lengths], dtype=torch.int32)}
        counted = stand_ins.counts(find(f"{flash.V2}:flash_attn_with_kvcache"), given, backward=False)
        forward = sum(flash.textbook(n, max(s, 1), h, d, d).flops for s in lengths)
        yield "flash_attn: flash_attn_with_kvcache", f"{n} queries, keys {lengths}", both(counted), (forward, 0)


def scans(find: Callable[[str], Any]) -> Iterator[Row]:
    for shape in mamba.SCANS:
        b, d, length, n, g = shape
        tape = Tape()
        outs = mamba.scanned(tape, *shape)
        letters = (b, n, length) if g == 1 else (b, g, n, length)
        parts = dict.fromkeys(("u", "delta", "z"), (b, d, length)) | {
            "A": (d, n),
            "B": letters,
            "C": letters,
            "D": (d,),
            "delta_bias": (d,),
        }
        counted = stand_ins.counts(find(mamba.SCAN), stand_ins.tensors(parts), delta_softplus=True)
        yield (
            "mamba_ssm: selective_scan_fn",
            f"{b}x{d}x{length}, {n} states",
            both(counted),
            (tape.forward.flops, tape.backward(*outs).flops),
        )
    for shape in mamba.HEADS:
        b, length, h, p, g, n = shape
        tape = Tape()
        outs = mamba.heads_scanned(tape, *shape, True, True, True)
        parts = dict.fromkeys(("x", "z"), (b, length, h, p)) | {
            "dt": (b, length, h),
            "A": (h,),
            "D": (h,),
            "dt_bias": (h,),
        }
        parts |= dict.fromkeys("BC", (b, length, g, n))
        counted = stand_ins.counts(find(mamba.CHUNKS), stand_ins.tensors(parts), chunk_size=64, dt_softplus=True)
        yield "mamba_ssm: mamba_chunk_scan_combined", f"{b}x{length}x{h}x{p}, {n} states", both(counted), (
            tape.forward.flops, tape.backward(*outs).flops,
        )  # fmt: skip
    for shape in mamba.CONVS:
        b, d, length, w = shape
        tape = Tape()
        y = mamba.convolved(tape, *shape, True, True)
        given = stand_ins.tensors({"x": (b, d, length), "weight": (d, w), "bias": (d,)})
        counted = stand_ins.counts(find(mamba.CONV), given, activation="silu")
        yield (
            "causal_conv1d: causal_conv1d_fn",
            f"{b}x{d}x{length}, width {w}",
            both(counted),
            (tape.forward.flops, tape.backward(y).flops),
        )


def recurrences(find: Callable[[str], Any]) -> Iterator[Row]:
    kinds: list[tuple[str, dict[str, Any], str]] = [
        (fla.RECURRENT, {}, ""), (fla.RETENTION, {"decay": "fixed"}, ""), (fla.SIMPLE, {"decay": "head"}, "g"), (fla.GLA, {"decay": "keys"}, "g"),
        (fla.DELTA, {"delta": True}, ""), (fla.GATED, {"delta": True, "decay": "head"}, "g"), (fla.KDA, {"delta": True, "decay": "keys"}, "g"),
    ]  # fmt: skip
    for name, options, decay in kinds:
        for shape in fla.SHAPES:
            b, t, h, k, v = shape
            tape = Tape()
            outs = fla.recurrence(tape, *shape, **options)
            parts: dict[str, Any] = {"q": (b, t, h, k), "k": (b, t, h, k), "v": (b, t, h, v)}
            parts |= {decay: (b, t, h, *((k,) if options["decay"] == "keys" else ()))} if decay else {}
            parts |= {"beta": (b, t, h)} if options.get("delta") else {}
            counted = stand_ins.counts(find(name), stand_ins.tensors(parts))
            yield (
                f"fla: {name.partition(':')[2]}",
                "x".join(map(str, shape)),
                both(counted),
                (tape.forward.flops, tape.backward(*outs).flops),
            )


def layers(find: Callable[[str], Any]) -> Iterator[Row]:
    product = "bitsandbytes.autograd._functions:matmul_4bit"
    for n, i, o in bnb.PRODUCTS:
        tape = Tape()
        y = tape.contract("ni,oi->no", tape.leaf(n, i), tape.leaf(o, i, needs=False))
        packed = {"B": torch.zeros(1, i * o // 2, dtype=torch.uint8), "quant_state": SimpleNamespace(shape=(o, i))}
        counted = stand_ins.counts(find(product), {"A": torch.randn(n, i)}, **packed)
        yield (
            "bitsandbytes: matmul_4bit",
            f"{n}x{i}, {o}x{i} unpacked",
            both(counted),
            (tape.forward.flops + o * i, tape.backward(y).flops + o * i),
        )
    for n, c in liger.ROWS:
        call = liger.positional(lambda *given: find(liger.RMS).apply(*given), "X", "W", "eps")
        counted = stand_ins.counts(call, stand_ins.tensors({"X": (n, c), "W": (c,)}), eps=1e-6)
        yield "liger: LigerRMSNormFunction", f"{n}x{c}", both(counted), liger.in_torch(liger.rms_norm, (n, c), (c,))
        call = liger.positional(lambda *given: find(liger.SWIGLU).apply(*given), "a", "b")
        counted = stand_ins.counts(call, stand_ins.tensors({"a": (n, c), "b": (n, c)}))
        reference = liger.in_torch(lambda a, b: torch.nn.functional.silu(a) * b, (n, c), (n, c))
        yield "liger: LigerSiLUMulFunction", f"{n}x{c}", both(counted), reference
    for n, i, o in te.SHAPES:
        x = torch.randn(n, i, requires_grad=True)
        own, torchs = (
            te.both(module, x)
            for module in (te.made(find(te.LINEAR), {"weight": (o, i)}), torch.nn.Linear(i, o, bias=False))
        )
        yield (
            "transformer_engine: Linear",
            f"{n}x{i}, {o}x{i}",
            *((each["forward"][0], each["backward"][0]) for each in (own, torchs)),
        )
    for shape in deformable.SHAPES:
        own, torchs = (
            deformable.counted(call, *shape)
            for call in (lambda *given: find(deformable.MMCV).apply(*given), deformable.plain)
        )
        figures = ((each["forward"][0], each["backward"][0]) for each in (own, torchs))
        yield "mmcv: MultiScaleDeformableAttnFunction", str(shape), *figures


def main() -> None:
    functions = {
        **flash.FUNCTIONS, **dict.fromkeys(xformers.NAMES, xformers.ARGUMENTS), **mamba.FUNCTIONS, **fla.FUNCTIONS, **liger.FUNCTIONS, **te.FUNCTIONS,
        "bitsandbytes.autograd._functions:matmul_4bit": "A, B, quant_state, out=None, bias=None",
        deformable.MMCV: "value, value_spatial_shapes, value_level_start_index, sampling_locations, attention_weights, im2col_step",
    }  # fmt: skip
    with ExitStack() as stack:
        find = stack.enter_context(stand_ins.library(functions))
        rows = [row for each in (attention, scans, recurrences, layers) for row in each(find)]
    for n, i, o in spconv.SHAPES:
        pairs, number = spconv.points(n)
        with stand_ins.library(
            {spconv.FUNCTION: "features, filters, indice_pairs, indice_pair_num, num_activate_out, algo"}, _sparse
        ) as find:
            report = fxflops.count(spconv.Model(find(spconv.FUNCTION), i, o, n, pairs, None, n, None), backward=True)
        flops = [each.flops for each in report.counted if each.call.op.startswith("sparse_conv")]
        products, places = number * i * o, int(pairs[0].ge(0).any(1).sum()) * i * o
        reference = 2 * products - n * o, 4 * products - n * i - places
        rows.append(
            ("spconv: indice_subm_conv", f"{n} points, {number} pairs, {i} to {o}", (flops[0], flops[1]), reference)
        )
    same = sum(formula == reference for _, _, formula, reference in rows)
    lines = [
        f"| {kernel} | {shape} | {formula[0]:,} | {reference[0]:,} | {formula[1]:,} | {reference[1]:,} |"
        for kernel, shape, formula, reference in rows
    ]
    header = HEADER.format(version=fxflops.__version__, torch=torch.__version__, same=same, rows=len(rows))
    RESULTS.write_text(header + "\n".join(lines) + "\n")
    print(RESULTS, f"{same} of {len(rows)} rows are the same")


def _sparse(features: Any, filters: Any, indice_pairs: Any, **others: Any) -> Any:
    return spconv.Conv.apply(features, filters, indice_pairs)


if __name__ == "__main__":
    main()
