"""Models larger than any machine are counted exactly, in little memory, and without touching a weight."""

from __future__ import annotations

import json

from tests.fresh import Fresh

LLAMA = """
import json
import torch, transformers
import fxflops

hidden, inner, layers, heads, kv, head, vocab = 16384, 53248, 126, 128, 8, 128, 128256
config = transformers.LlamaConfig(
    hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
    num_key_value_heads=kv, vocab_size=vocab, max_position_embeddings=2**17 + 8,
)
with torch.device("meta"):
    model = transformers.LlamaForCausalLM(config)
    cache = transformers.DynamicCache(config=config)
    for layer in range(layers):
        cache.update(torch.empty(1, kv, 2**17 - 1, head), torch.empty(1, kv, 2**17 - 1, head), layer)
prompt = fxflops.count(model, kwargs={"input_ids": torch.zeros(1, 2048, dtype=torch.long), "use_cache": False})
token = {"input_ids": torch.zeros(1, 1, dtype=torch.long), "past_key_values": cache, "use_cache": True}
step = fxflops.count(model, kwargs=token)
print(json.dumps({
    "prompt": prompt.total_macs, "step": step.total_macs, "complete": prompt.complete and step.complete,
    "params": prompt.total_params, "inputs": step.memory["inputs"], "trace": [prompt.trace, step.trace],
    "megabytes": int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) / 1000,
}))
"""

UNTOUCHED = """
import json
import torch
from torch import nn
import fxflops


def resident():
    pages = open("/proc/self/statm").read().split()[1]
    return int(pages) * 4096


with torch.device("meta"):
    model = nn.Sequential(*(nn.Linear(16384, 16384, bias=False) for _ in range(10)))
model = model.to_empty(device="cpu")  # 10.7 GB that are not resident: who reads them makes them so
x = torch.randn(64, 16384)
fxflops.count(nn.Linear(4, 4), torch.randn(2, 4))
before = resident()
report = fxflops.count(model, x)
print(json.dumps({"macs": report.total_macs, "bytes": report.params.bytes, "grown": resident() - before}))
"""


def told(fresh: Fresh, script: str) -> dict[str, object]:
    """What a fresh process prints, parsed."""
    done = fresh.run("-c", script)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_llama_3_405b_by_hand(fresh: Fresh) -> None:
    found = told(fresh, LLAMA)
    hidden, inner, layers, heads, kv, head, vocab = 16384, 53248, 126, 128, 8, 128, 128256

    def macs(tokens: int, context: int) -> int:
        projections = tokens * hidden * (2 * heads * head + 2 * kv * head)  # query and output; key and value
        products = 2 * heads * tokens * context * head  # with the keys, with the values
        gated = 3 * tokens * hidden * inner  # gate, up, down
        return layers * (projections + products + gated) + tokens * hidden * vocab

    assert found["prompt"] == macs(2048, 2048)
    assert found["step"] == macs(1, 2**17)
    assert found["complete"] is True
    assert found["trace"] == ["counted on the meta device"] * 2
    weights = hidden * (2 * heads * head + 2 * kv * head) + 3 * hidden * inner + 2 * hidden  # including two norms
    assert found["params"] == layers * weights + hidden + 2 * vocab * hidden
    # Each layer replaces its past keys and values with longer ones. At the peak only the last layer's past values are left.
    assert found["inputs"] == 8 + kv * (2**17 - 1) * head * 4
    assert float(str(found["megabytes"])) < 1500


def test_weights_on_the_cpu_are_not_touched(fresh: Fresh) -> None:
    found = told(fresh, UNTOUCHED)
    assert found["macs"] == 10 * 64 * 16384**2
    assert found["bytes"] == 10 * 16384**2 * 4
    assert int(str(found["grown"])) < 100e6
