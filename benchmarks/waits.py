"""Compare how long a user waits now and at another commit, for ``serving``, ``closed_form`` and ``analyze``.

    git worktree add --detach ../before COMMIT
    python benchmarks/waits.py ../before [--runs 3] [--parts serving]

Each measurement runs in its own process with one thread; the two versions take turns. Times are CPU times of that process, so other
work on the machine hardly affects them. The time of ``analyze`` is given in forwards of the model. Both versions are compiled to
bytecode first, as pip does when it installs. The results of both versions are compared, too: all numbers of ``serving``, the text of
the closed form, and the counts and bytes of ``analyze``. The table is ``benchmarks/results/waits.md``.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
RESULT = HERE / "benchmarks" / "results" / "waits.md"
SERVED = {
    "gpt-oss-20b": "hf.GptOssConfig(num_hidden_layers=24, num_local_experts=32)",
    "Llama-3-8B": "hf.LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, "
    "num_key_value_heads=8, vocab_size=128256)",
    "Mixtral-8x7B": "hf.MixtralConfig(num_key_value_heads=8)",
    "Gemma-3, window 512": "hf.Gemma3TextConfig(num_hidden_layers=26, sliding_window=512)",
    "Mamba-2, 24 layers": "hf.Mamba2Config(num_hidden_layers=24, hidden_size=768, num_heads=24, head_dim=64, n_groups=1)",
}
LENGTHS = (1000, 100), (10, 600)
VISION = {
    "ResNet-50, batch 16": "torchvision.models.resnet50().eval(), torch.rand(16, 3, 224, 224), None",
    "ViT-B/16, batch 8": "torchvision.models.vit_b_16().eval(), torch.rand(8, 3, 224, 224), None",
    "Llama, 6 layers, 512 tokens": "hf.LlamaForCausalLM(hf.LlamaConfig(hidden_size=1024, intermediate_size=2752, num_hidden_layers=6, "
    "num_attention_heads=16, vocab_size=8000)).eval(), (), {'input_ids': torch.zeros(1, 512, dtype=torch.long)}",
}
FORMS = {
    "ResNet-50": "torchvision.models.resnet50(), torch.rand(2, 3, 224, 224), None, {'x': {0: 'batch', 2: 'height'}}",
    "ViT-B/16": "torchvision.models.vit_b_16(), torch.rand(2, 3, 224, 224), None, {'x': {0: 'batch'}}",
    "Llama, 6 layers": "hf.LlamaForCausalLM(hf.LlamaConfig(hidden_size=256, intermediate_size=688, num_hidden_layers=6, "
    "num_attention_heads=8, vocab_size=1000)).eval(), (), {'input_ids': torch.zeros(2, 32, dtype=torch.long)}, {'input_ids': {0: 'batch', 1: 'seq'}}",
}
BEGIN = """
import dataclasses, json, statistics, sys, time, warnings
warnings.simplefilter("ignore")
import torch, torchvision, transformers as hf, fxflops
torch.set_num_threads(1)
def took(run):
    begin = time.process_time()
    result = run()
    return result, time.process_time() - begin
"""
SERVE = """
with torch.device("meta"):
    model = hf.AutoModelForCausalLM.from_config({config}, dtype=torch.bfloat16)
found, seconds = took(lambda: fxflops.serving(model, prompt={prompt}, new_tokens={new}))
print(json.dumps([seconds, {{name: repr(value) for name, value in dataclasses.asdict(found).items()}}]))
"""
FORM = """
model, args, kwargs, shapes = {made}
found, seconds = took(lambda: fxflops.closed_form(model, args, kwargs, dynamic_shapes=shapes))
# The lines above the formulas say how the form was checked, in words that change.
print(json.dumps([seconds, str(found)[str(found).index("\\nMACs") :]]))
"""
ANALYZE = """
model, args, kwargs = {made}
def forward():
    with torch.no_grad():
        return model(*((args,) if isinstance(args, torch.Tensor) else args), **(kwargs or {{}}))
fxflops.analyze(torch.nn.Linear(2, 2), torch.rand(2, 2), repeats=1)  # what is imported, and compiled, once
forward()
alone = [took(forward)[1] for _ in range(3)]
report, seconds = took(lambda: fxflops.analyze(model, args, kwargs, trace={trace!r}, repeats={repeats!r}, progress=False))
alone += [took(forward)[1] for _ in range(3)]
numbers = [report.total_flops, report.max_memory, [(n.name, n.bytes_before, n.bytes_after, n.bytes_peak) for n in report.nodes]]
print(json.dumps([seconds / statistics.median(alone), repr(numbers), statistics.median(alone), report.timing.repeats]))
"""


def ran(place: Path, code: str) -> Any:
    """Run a program that imports fxflops from a checkout. Return the JSON value in the last line that it prints."""
    settings = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code], capture_output=True, text=True, check=True, cwd=place, env=settings
    )
    return json.loads(done.stdout.splitlines()[-1])


def _alike(old: Any, new: Any) -> bool:
    """Return whether two versions give the same numbers. The new version may have additional fields."""
    return all(new.get(name) == value for name, value in old.items()) if isinstance(old, dict) else bool(old == new)


def row(name: str, code: str, before: Path, runs: int, unit: str) -> str:
    """Return a row of the table: the medians of both versions, and whether they give the same numbers. The versions take turns."""
    pairs = [(ran(before, code), ran(HERE, code)) for _ in range(runs)]
    old, new = (statistics.median(pair[i][0] for pair in pairs) for i in (0, 1))
    same = "yes" if all(_alike(one[1], other[1]) for one, other in pairs) else "no"
    print(name, f"{old:.2f}", f"{new:.2f}", same, flush=True)
    more = [f"{pairs[0][1][2]:.2f}", str(pairs[0][0][3]), str(pairs[0][1][3])] if len(pairs[0][1]) > 2 else []
    return f"| {' | '.join([name, f'{old:.2f}{unit}', f'{new:.2f}{unit}', same, *more])} |"


def serving(before: Path, runs: int) -> list[str]:
    return [
        "| model, prompt + new tokens | before (s) | now (s) | same numbers |",
        "|---|--:|--:|---|",
        *[
            row(f"{name}, {p} + {n}", SERVE.format(config=config, prompt=p, new=n), before, runs, "")
            for name, config in SERVED.items()
            for p, n in LENGTHS
        ],
    ]


def closed_form(before: Path, runs: int) -> list[str]:
    return [
        "| model | before (s) | now (s) | same form |",
        "|---|--:|--:|---|",
        *[row(name, FORM.format(made=made), before, runs, "") for name, made in FORMS.items()],
    ]


def analyze(before: Path, runs: int) -> list[str]:
    return [
        "How many forwards `analyze` takes: its time divided by the median of six bare forwards in the same process, three before and three after.",
        "",
        "| model, graph, repeats | before | now | same counts and bytes | forward (s) | timed runs before | now |",
        "|---|--:|--:|---|--:|--:|--:|",
        *[
            row(
                f"{name}, {trace}, {repeats}", ANALYZE.format(made=made, trace=trace, repeats=repeats), before, runs, ""
            )
            for name, made in VISION.items()
            for trace in ("symbolic", "record")
            for repeats in (1, "auto")
            if trace == "record" or "Llama" not in name
        ],
    ]


SECTIONS = {"serving": serving, "closed_form": closed_form, "analyze, in forwards": analyze}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--parts", nargs="*", choices=[*SECTIONS], help="sections to measure anew; the others are kept")
    arguments = parser.parse_args()
    before, runs = arguments.before.resolve(), arguments.runs
    for place in (before, HERE):
        compileall.compile_dir(place / "fxflops", quiet=1)

    import torch
    import transformers

    from benchmarks.machine import processor

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=before).stdout
    kept = dict(part.split("\n", 1) for part in RESULT.read_text().split("\n## ")[1:]) if RESULT.exists() else {}
    lines = [
        "# Waiting",
        "",
        f"{processor()}, one thread, torch {torch.__version__}, transformers {transformers.__version__}; before is {commit.strip()}. Seconds are the "
        f"processor's; medians of {runs} runs, each in a process of its own, the two versions in turn ([waits.py](../waits.py)).",
        "",
    ]
    for title, section in SECTIONS.items():
        is_kept = arguments.parts and title not in arguments.parts and title in kept
        body = kept[title].strip("\n") if is_kept else "\n".join(section(before, runs))
        lines += [f"## {title}", "", body, ""]
    RESULT.write_text("\n".join(lines))


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
