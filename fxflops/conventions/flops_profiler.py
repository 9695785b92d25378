"""The flops of flops-profiler 0.1.2 (https://github.com/cli99/flops-profiler), DeepSpeed's profiler as it was in 2023.

The profiler replaces functions of torch.nn.functional and of torch, and methods of tensors, by its own versions, which
charge FLOPs for each call. RNNs are charged by hooks. A replaced function is also charged when torch's own functions
call it, so F.local_response_norm has four charges. Operators (``x + y``, ``x @ y``), torch.softmax and
scaled_dot_product_attention are free. The profiler prints MACs beside its flops: see the convention
``flops_profiler_macs``. The convention ``deepspeed`` counts like today's DeepSpeed.

If the tool raises an error, the count here is what the tool's rules intend. The tool raises errors for transposed
convolutions, ``padding="same"``, and a size passed to F.interpolate by position, as nn.Upsample does.

The tool's function get_model_profile calls ``model.forward``. A call of ``model.forward`` bypasses the hooks, so the tool misses the
functions that the model's own forward calls. This convention counts the functions that the model's own forward calls, as the tool's
FlopsProfiler around ``model(x)`` does.

Two differences remain. First, the tool's number depends on how a function is looked up. The tool misses a function that
was imported by name before the tool replaced it (``from torch.nn.functional import gelu``), the second name of a
function (torch.conv2d is F.conv2d, torch.prelu is F.prelu), and Python's ``sum`` of tensors. fxflops counts ``sum``,
because it sees the same calls for ``sum`` and for ``x.add(y)``. Second, the tool counts a module with two parents once
under each parent.
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
