"""Why the sides differ. Each entry has three patterns and a reason. The patterns must match the set and case, the way, and the printed
place with both values. The reason uses the words of CHANGELOG.md. These entries explain the changes since 74eede1.

An entry reads ``("fuzz/.*", "train", r"calls.* einsum .*: 12 -> 6", "an einsum's backward was counted twice")``. If the
match depends on numbers, use a function of the text instead of a pattern. Remove entries that no longer explain anything: a new
reference starts with an empty list.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Matches = str | Callable[[str], bool]


def numbers(text: str) -> tuple[int, int]:
    """Return the old and the new number of a difference. Return zeros if the values are not numbers."""
    found = re.fullmatch(r".*: (\d+) -> (\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def more_by_eights(text: str) -> bool:
    """Return True if activations grew by a multiple of 8 bytes, at most 8,000 bytes."""
    old, new = numbers(text)
    return ".live[3]: " in text and 0 < new - old <= 8 * 1000 and (new - old) % 8 == 0


def more_by_states(text: str) -> bool:
    """Return True if activations grew by the saved random states of some checkpoints (5,056 bytes each) and at most 64 bytes more."""
    old, new = numbers(text)
    return ".live[3]: " in text and new - old >= 5056 and (new - old) % 5056 <= 64


def more_by_booleans(text: str) -> bool:
    """Return True if the peak grew by one boolean for each of 1030 x 1030 scores, one boolean for each row, and one number."""
    old, new = numbers(text)
    return text.startswith("memory.") and new - old - 1030 * 1030 - 1030 in (2, 4, 8)


CAUSES: list[tuple[Matches, Matches, Matches, str]] = [
    (
        ".*",
        ".*",
        r"calls\[\d+\] complex (abs|addcdiv|div|mean|neg|norm|pow|reciprocal|sgn|square|std|var) .*\.cost\.\w+: .*",
        "arithmetic of complex numbers counts the real operations of its definition: a quotient was 1, now 11",
    ),
    (
        ".*",
        ".*",
        r"calls\[\d+\] .*\.out(\[0\])?\.tensor\[2\]: 2 items, here 0:  -> 4 items, here 2: strided, .*\"(pairs|share)\".*",
        "the pairs that a mask leaves are kept with each call of attention and of its products, for rooflines",
    ),
    (
        ".*",
        ".*",
        r"calls\[\d+\] .*\.missing: what it computed was not observed -> the observer did not see what this call computed",
        "the reason why a call is not counted is worded more plainly",
    ),
    (
        ".*",
        ".*",
        r"traffic\[\d+\] attention(_backward)? .*\.(flops|bound_seconds|binds): .*",
        "attention under a mask without values has only its bytes in `roofline`, as it may leave no pairs",
    ),
    (
        ".*",
        "train",
        more_by_eights,
        "autograd keeps 8 bytes for the number in `x * 0.5`, on the CPU",
    ),
    (
        "odd/another's in a leaf",
        ".*",
        r"timeline.*\.live\[0\]: 576 -> 864",
        "parameters that a model uses without registering them are parameters in the memory, they were buffers",
    ),
    (
        "programs/.*",
        "count",
        more_by_booleans,
        "attention by plain products has the booleans of its softmax, with which rows without a pair are found",
    ),
    (
        "programs/.*",
        "count",
        r"live_at_peak\[0\]: 0 items, here 0:  -> 3 items, here 3: attention .*, attention .*, attention .*",
        "attention by plain products has the booleans of its softmax, with which rows without a pair are found",
    ),
    (
        ".*",
        ".*",
        r"live_at_peak\[\d+\] (attention|lstm|gru|rnn) .*\.spec\.tensor\[0\]\[0\]: .*",
        "a storage that a kernel makes inside is shown in another of its shapes, with the same bytes",
    ),
    (
        r"programs/\d+ values",
        "count",
        r"timeline\.repeated: \d+ -> \d+",
        "a table of the forward lives as long as it does: it was freed with the first view of it, and entered again",
    ),
    (
        ".*",
        ".*",
        r"timeline\.repeated: \d+ -> \d+",
        "a call that returns its input, such as a dropout, adds no moment to the memory over time that repeats the one before",
    ),
    (
        "programs/123 values",
        "count",
        r"timeline\[25\] to .*|timeline\[26\]: 34 items, here 1: to in \(root\) -> 33 items, here 0: ",
        "a table of the forward lives as long as it does: it was freed with the first view of it, and entered again",
    ),
    (
        "torchvision/swin.*|transformers/(mask2former|kimi_k25|qwen4_exp|inkling2_loop_text|musicgen_melody_decoder)|"
        r"menagerie/(rs_L717_prosst|rs_L1696_pointe_diffusion_transformer|lerobot_vla_policies|rs_L933_2_smilesbert)\..*",
        "count|train",
        r"timeline\[\d+\] .*\.live\[3\]: .*",
        "a table of the forward lives as long as it does: it was freed with the first view of it, and entered again",
    ),
    (
        "transformers/(dots3_note_text|kimi_k25|axk2|mistral_large4_text)",
        "train",
        r"calls\[\d+\]: .*, here 0:  -> .*, here 6: zeros_like in .*, copy in .*, new_empty_strided in .*|"
        r"calls\[\d+\]: .*, here 1: zeros in .* -> .*, here 0: ",
        "gradients are followed through writes to a view of a table that the forward makes",
    ),
    (
        "ranks/fsdp.*",
        "simulate.*|processes.*",
        r"timeline.*|figures\[0\]\[2\]\[3\]: .*|figures\[0\]\[3\].*|memory.*|live_at_peak.*|facts\.(memory\..*|last|uncopied): .*",
        "memory that is freed by resizing a storage, as FSDP does, is seen at the next call",
    ),
    (
        "ranks/Llama.*",
        "simulate.*",
        r"timeline\[\d+\]: .*|timeline\[\d+\] .*\.live\[\d+\]: .*",
        "memory that is freed by resizing a storage, as FSDP does, is seen at the next call",
    ),
    (
        "ranks/Llama.* dp 1( .*)?",
        "simulate",
        r"figures\[0\]\[2\]\[3\]: .*|figures\[0\]\[3\]\.(activations|gradients|temporaries|gathered): .*",
        "memory that is freed by resizing a storage, as FSDP does, is seen at the next call",
    ),
    (
        "ranks/.*",
        "simulate.*|processes.*",
        r"traffic\[\d+\] (split_with_sizes_copy|all_gather_copy_in|copy|recv) in .*",
        "a copy writes the tensors that it is given, and does not read them: FSDP's copies around an all-gather, and recv",
    ),
    (
        "ranks/ring",
        "(simulate|processes).*",
        r"timeline.*\.live\[[12]\]: .*|facts\.memory\.(inputs|buffers): .*|figures\[0\]\[3\]\.(inputs|buffers): .*|memory.*|live_at_peak.*",
        "tensors that a model holds in an attribute count as its buffers, from the start",
    ),
    (
        "menagerie/rs_L933_2_smilesbert.0|transformers/musicgen_melody_decoder",
        "count|train",
        r"timeline\[\d+\]: .*, here 0:  -> .*, here 1: detach in .*embed_positions",
        "a table of the forward lives as long as it does: it was freed with the first view of it, and entered again",
    ),
    (
        "menagerie/rs_L933_2_smilesbert.0",
        "train",
        r"timeline.*",
        "tensors that a model holds in an attribute count as its buffers, from the start",
    ),
    (
        ".*",
        "train",
        r"timeline\[\d+\]: .*, here 0:  -> .*, here 1: (mul|div) in .*",
        "autograd keeps 8 bytes for the number in `x * 0.5`, on the CPU",
    ),
    (
        "fuzz/.*",
        "train",
        more_by_states,
        "checkpoint's states of random numbers are in the peak, 5,056 bytes for each call",
    ),
    (
        "fuzz/(331f42976f82d980|e11f63ff5ad6880b|184986ffc06a336b)",
        "train",
        r"timeline\[\d+\]: .*, here 0:  -> .*, here 1: detach .*",
        "checkpoint's states of random numbers are in the peak, 5,056 bytes for each call",
    ),
    (
        "fuzz/(48b08a5805cb143f|e00e2b480219307b|9cf5a96ccc69f84c|0c9b7c675b8333a9|"
        "83ec66a32c23f371|2d5d8b938deee767|ae1342a77b76bf6a|f4b508d05f76a8cf)",
        "count|train",
        r"timeline.*",
        "the zeros that autograd makes without memory, for a gradient that is zero, are not in the peak",
    ),
    (
        "fuzz/(1ca5b768ef77f90e|2f3611c1377e1ef9|6475062161ea3214)",
        "train",
        r"calls.*|timeline.*",
        "the step that is counted is not the optimizer's first, also where a forward adds modules",
    ),
    (
        "fuzz/c3d37d6dad32223d",
        "count|train",
        r"timeline\[\d+\] .*\.live\[0\]: 400 -> 336",
        "what a forward replaces by `x.data = y` is free from then on",
    ),
    (
        "torchvision/((faster|mask|keypoint)rcnn|raft)_.*",
        "count|train",
        r"timeline\[\d+\] .*\.live\[1\]: .*",
        "what a forward replaces in a list that the model holds (anchors, a pyramid) is free from then on",
    ),
    (
        "fuzz/(d66c9f384fd8d6e8|384dcbe951a2fb1a|0b8848ad03ec30cc)",
        "count|train",
        r"timeline\[\d+\] .*\.live\[1\]: (16|64|128) -> 0",
        "a weight that `weight_norm` replaces in the forward is free from then on",
    ),
    (
        "fuzz/(4acf52e84fc14fa2|2c653e507692b2e9|0be73fbdd32b5942)",
        "count",
        r"memory\..*: \d+ -> \d+|live_at_peak.*",
        "attention by plain products has the booleans of its softmax, with which rows without a pair are found",
    ),
    (
        "fuzz/(055ea2d1051893f1|cc122bc496fe1823|9e722ebbf045d92e|4c9e96419c0aa388)",
        "count|train",
        r"timeline.*",
        "what another thread made is free when that thread has ended, which is before or after the last moment",
    ),
    (
        ".*",
        ".*",
        r"calls\[\d+\] .*\.(kwargs\.device|args\[\d\]\.device|kwargs\.device\.device): .* -> .*",
        "a call records the device that the model passed",
    ),
    (
        ".*",
        ".*",
        r"calls\[\d+\] rnn_backward .*\.(learns|requires_grad): .*",
        "the fact which arguments of an RNN need a gradient has another name",
    ),
    (
        "transformers/blt",
        ".*",
        r"calls\[252\] getitem .*\.slice\[1\]: .*|(timeline|nodes)\[\d+\] .*",
        "a tensor that bounds a slice is recorded by its spec, and no longer kept alive",
    ),
    (
        "transformers/sam3_vision_model|diffusers/(BriaFibo2Transformer2DModel|QwenImageMultiControlNetModel)",
        "analyze|profile",
        r"(calls|nodes|timeline|steps)\[\d+\].*",
        "what a library's cached function returns is forgotten after a count or an analysis, so the next run computes it again",
    ),
    (
        "diffusers/(Lumina2|BriaFibo2|QwenImageMulti).*|transformers/swin",
        "train",
        r"timeline\[\d+\].*",
        "a table of the forward lives as long as it does: it was freed with the first view of it, and entered again",
    ),
    (
        "diffusers/.*|torchvision/.*",
        "profile",
        r"timeline\[\d+\] .*\.live\[1\]: .*",
        "tensors that a model holds in an attribute count as its buffers, from the start",
    ),
    (
        "diffusers/AutoencoderKLMiniMaxH3Audio",
        "train|analyze",
        r"timeline\[\d+\] .*\.live\[1\]: .*",
        "a weight that `weight_norm` replaces in the forward is free from then on",
    ),
    (
        "timm/.*",
        "analyze",
        r"live_at_peak.*batch_norm.*|memory\..*: \d+ -> \d+",
        "batch norm in eval mode keeps no mean and no deviation, as the live storages of a real run show",
    ),
    (
        "odd/(another's in a leaf|with another's parameter)",
        "analyze|profile",
        r"(nodes|timeline)\[\d+\] .*",
        "parameters that a model uses without registering them are parameters in the memory, they were buffers",
    ),
    (
        "odd/autocast",
        "analyze|profile",
        r"(nodes|timeline)\[\d+\] .*",
        "the weights that autocast has cast are freed with its region",
    ),
    (
        "diffusers/(AutoencoderDC|AutoencoderKLHunyuanImage|UNet3DConditionModel)|transformers/(pp_formulanet_vision|sam3_vision_model|unlimited_ocr_vision)",
        "train|analyze",
        r"(calls|timeline|nodes)\[\d+\].*",
        "channels-last images keep their memory format, so a counted training step has the operators of a real one",
    ),
    (
        "diffusers/UNet1DModel@value",
        "train",
        r"(calls|timeline)\[\d+\] (mish_backward|add) .*\.path: .*",
        "the gradient of mish belongs to its own module",
    ),
    (
        ".*",
        "analyze",
        r"run\.environment\.device: meta -> cpu",
        "the environment of a model on meta names the device for which it is analyzed",
    ),
    (
        "transformers/granite_speech",
        "analyze",
        r"memory\..*|live_at_peak.*",
        "attention by plain products has the booleans of its softmax, with which rows without a pair are found",
    ),
    (
        ".*",
        "profile",
        r"run\.environment\.grad: grad -> ",
        "the header of a profiled block has the grad mode only if it is known",
    ),
    (
        ".*",
        "profile",
        r"steps\[0\]\[3\]\[0\]: 1 items, here 1: between -> 0 items.*",
        "the clock makes no phase negative: before the first call there was only the time of observing",
    ),
    (
        "ranks/.*",
        "simulate.*",
        r"run\.trace: profiled as it ran -> simulated",
        "a simulated rank says that it was simulated",
    ),
    (
        ".*",
        ".*",
        r"traffic\[\d+\] index_put in .*",
        "an indexed write in place moves only the elements that it changes",
    ),
]
