"""The flops of flops-profiler 0.1.2 (https://github.com/cli99/flops-profiler), DeepSpeed's profiler as it was in 2023.

It replaces functions of torch.nn.functional and of torch, and methods of tensors, by versions that charge for their
arguments; hooks charge RNNs. A replaced function is also charged when torch's own functions call it, so F.local_response_norm
is four charges. Operators (``x + y``, ``x @ y``), torch.softmax and scaled_dot_product_attention are free. The macs that it
prints beside the flops are :mod:`.flops_profiler_macs`; today's DeepSpeed is :mod:`.deepspeed`.

Where the tool raises (transposed convolutions, ``padding="same"``, sizes passed by position to F.interpolate, as nn.Upsample
does), the count is what its rules intend. Its get_model_profile calls ``model.forward``, bypassing the hooks, and so misses the
functions that the model's own forward calls; here they are counted, as with its FlopsProfiler around ``model(x)``.

Two differences remain. The tool's number depends on how a function is looked up: it misses a function imported by name
before it replaced them (``from torch.nn.functional import gelu``), the second name of a function (torch.conv2d is F.conv2d,
torch.prelu is F.prelu), and Python's ``sum`` of tensors, which is the same call as ``x.add(y)`` here. It counts a module
with two parents under each.
"""

from __future__ import annotations

from ._convention import CONVENTIONS
from ._replaced import REPLACED, convention_of
from ._rows import POINTWISE, recurrent

CONVENTION = convention_of(
    "flops_profiler",
    CONVENTIONS["flops_profiler"],
    REPLACED,
    dict.fromkeys(POINTWISE, recurrent),
)
