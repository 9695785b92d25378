"""flops-profiler 0.1.2 (https://github.com/cli99/flops-profiler): its flops. It is DeepSpeed's profiler as it was in 2023.

It replaces functions of torch.nn.functional and of torch, and methods of tensors, by ones that charge their arguments;
RNNs are charged by hooks. What it replaces is also charged where torch's own functions call it, so F.local_response_norm
is four charges. Operators (``x + y``, ``x @ y``), torch.softmax and scaled_dot_product_attention are free. The macs that
stand beside the flops are :mod:`.flops_profiler_macs`; what DeepSpeed counts today is :mod:`.deepspeed`.

Where it raises (transposed convolutions, ``padding="same"``, sizes passed by position to F.interpolate, as nn.Upsample
does) this is what it means. Its get_model_profile calls ``model.forward``, not the model, so that what the outermost
forward itself calls is lost; here it is counted, as by its FlopsProfiler around ``model(x)``.

Not as in the tool is what depends on how a function is found. It does not see one imported by name before it replaced
them (``from torch.nn.functional import gelu``), nor the second name of one (torch.conv2d is F.conv2d, torch.prelu is
F.prelu), nor Python's ``sum`` of tensors, which looks here like ``x.add(y)``. A module under two parents it sums once for each.
"""

from __future__ import annotations

from ._replaced import REPLACED, convention_of
from ._rows import POINTWISE, recurrent

CONVENTION = convention_of(
    "flops_profiler",
    "flops-profiler: DeepSpeed's profiler of 2023, to which operators (x @ y) and attention are free",
    REPLACED,
    dict.fromkeys(POINTWISE, recurrent),
)
