"""The one door to torch's insides: each private name that this library uses, what for, and what happens without it.

Without a necessary one the import fails and says which. An optional one has a stand-in, and :func:`absent` lists those
that the torch at hand lacks. Names are torch's own, without the underscore in front.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial, reduce
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn


class Nobody:
    """A class without objects: it stands in for a class or function that torch lacks."""


# Whether the torch at hand has each optional name.
OPTIONAL: dict[str, bool] = {}


def _optional(path: str, stand_in: Any) -> Any:
    """What torch has under this dotted name, or ``stand_in``."""
    found = reduce(lambda owner, name: getattr(owner, name, stand_in), path.split(".")[1:], torch)
    OPTIONAL[path] = found is not stand_in
    return found


def absent() -> list[str]:
    """The optional names that the torch at hand lacks."""
    return [path for path, found in OPTIONAL.items() if not found]


# Operators. Necessary: a call below torch's functions is one of these.
OpOverload = torch._ops.OpOverload
OpOverloadPacket = torch._ops.OpOverloadPacket
# cond, while_loop, flex_attention ...: what they call is counted. Necessary.
HigherOrderOperator = torch._ops.HigherOrderOperator
# What torch.library.custom_op returns. Without it a formula for one is registered by the operator's name.
CustomOpDef = _optional("torch._library.custom_ops.CustomOpDef", Nobody)

# The mode under which operators are seen. Necessary.
TorchDispatchMode = torch.utils._python_dispatch.TorchDispatchMode
# Which modes are on: none is entered twice. Necessary.
get_current_dispatch_mode_stack = torch.utils._python_dispatch._get_current_dispatch_mode_stack
get_current_function_mode_stack: Callable[[], list[Any]] = torch.overrides._get_current_function_mode_stack
# How many dispatch modes are on, asked at each call: the list is slower to make. Necessary.
len_torch_dispatch_stack = torch._C._len_torch_dispatch_stack
# The mode of fake tensors that is on: a subclass turns it on to work out shapes. Necessary.
fake_mode: Callable[[], Any] = partial(torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE)
# What this library computes meanwhile is not to be seen: by no dispatch mode, by no function mode. Necessary.
disable_current_modes = torch.utils._python_dispatch._disable_current_modes
# The same of dispatch modes alone, at no cost. Necessary.
DisableTorchDispatch = torch._C._DisableTorchDispatch
DisableTorchFunction = torch._C.DisableTorchFunction
# Reads a tensor subclass as the plain tensor that it is, with the function modes left on. Necessary.
DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass
# Undoes DisableTorchFunction, for functions of torch that are entered while it is on. Necessary.
EnableTorchFunction = torch._C._EnableTorchFunction
is_torch_function_enabled = torch._C._is_torch_function_enabled
# Take all function modes off and put them back, for what runs beside the model. Necessary.
len_torch_function_stack = torch._C._len_torch_function_stack
pop_torch_function_stack = torch._C._pop_torch_function_stack
push_on_torch_function_stack = torch._C._push_on_torch_function_stack
# The __torch_dispatch__ of a tensor class that has none of its own. Necessary.
disabled_torch_dispatch_impl = torch._C._disabled_torch_dispatch_impl
# Whether a tensor is made of other tensors (DTensor): it has no memory of its own. Necessary.
is_traceable_wrapper_subclass = torch.utils._python_dispatch.is_traceable_wrapper_subclass
# The functorch transform at work, under which shapes lack a dimension. Necessary.
peek_interpreter_stack = torch._C._functorch.peek_interpreter_stack
# Autocast on any device, in one question. Without it autocast is taken to be on: no result is told from specs alone.
is_any_autocast_enabled: Callable[[], bool] = _optional("torch._C._is_any_autocast_enabled", lambda: True)

# The backward pass under way, -1 for none: it tells the forward from the backward phase. Necessary.
current_graph_task_id = torch._C._current_graph_task_id
# The node of autograd's graph that runs. Without it a call of the backward pass belongs to no module of the forward.
current_autograd_node: Callable[[], Any] = _optional("torch._C._current_autograd_node", lambda: None)
# The nodes of autograd.Functions. Without it such a node's gradient belongs to the call after the function.
BackwardCFunction = _optional("torch.autograd.function.BackwardCFunction", Nobody)
# What calls autograd's engine: of a call made by it, what runs between the two is Python's own. Necessary.
engine_run_backward = torch.autograd.graph._engine_run_backward
# Where checkpoint runs again what it dropped.
CHECKPOINT_FILE = str(Path(torch.utils.__file__).with_name("checkpoint.py"))
# Where torch has kernels for the meta device in Python: what these call, the model does not.
META_KERNELS = ("torch._meta_registrations", "torch._prims", "torch._refs", "torch._decomp")
# By what torch's profiler is told that something begins and ends, an optimizer's step among others. Necessary.
record_function_enter = torch.ops.profiler._record_function_enter_new.default
record_function_exit = torch.ops.profiler._record_function_exit._RecordFunction
# The code of what torch puts around each optimizer's step. Without it a step belongs to the forward.
STEP_CODE = next(
    (code for code in torch.optim.Optimizer.profile_hook_step.__code__.co_consts if isinstance(code, CodeType)), None
)
# What torch.set_grad_enabled and no_grad call: it is no operation, and a recorded graph calls it. Necessary.
set_grad_enabled = torch._C._set_grad_enabled

# What a call of a module runs first: who calls a module's forward directly is told by it. Necessary.
call_impl = nn.Module._call_impl
# The hooks of all modules, by the name of each module's own: with any of them a module is no leaf. Necessary.
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS: dict[str, dict[int, Any]] = {name: getattr(nn.modules.module, f"_global{name}") for name in HOOKS}

# Where torch keeps the functions that torch.nn.functional and torch's layers call: they are told by name. Necessary.
C_nn = torch._C._nn
FUNCTION_MODULES = {
    "torch._VF": torch._VF,
    C_nn.__name__: C_nn,
    "torch._C._VariableFunctions": torch._C._VariableFunctions,
}
# The same of torch.special, torch.linalg and torch.fft. Without one its functions go by their public names alone.
BINDINGS = [_optional(f"torch._C.{name}", None) for name in ("_special", "_linalg", "_fft")]
# The base class of torch.Tensor: methods that Tensor overrides are called on it. Necessary.
TensorBase = torch._C.TensorBase
# Functions that have rows of their own. The first is necessary; without the others no call can be of them.
assertion = torch._assert
# Which kernel attention takes. Without it fake tensors are asked, which takes longer.
fused_sdp_choice: Callable[..., int] | None = _optional("torch._fused_sdp_choice", None)
# What it is on the CPU where that is fused. Necessary.
flash_attention_for_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
int_mm = _optional("torch._int_mm", Nobody)
convolution_with_flags = _optional("torch._convolution", Nobody)

# The name of a function in a graph's code: a recorded graph calls by another way what has none. Necessary.
get_qualified_name = torch.fx.node._get_qualified_name
# Maps the leaves of nested containers. Necessary.
tree_map = torch.utils._pytree.tree_map

# The compiler's module: it is looked for among those imported.
COMPILER = "torch._dynamo"
# The module that classes written in C++ say they are of: their objects hold nothing of the user's.
C_MODULE = "torch._C"

# Private attributes of torch's objects, read in place: a function around each would cost a call. Necessary.
ATTRIBUTES: dict[Any, tuple[str, ...]] = {
    nn.Module: (
        *HOOKS, "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs",
        "_parameters", "_buffers", "_modules", "_get_name", "_compiled_call_impl",
    ),
    torch.Tensor: ("_values", "_version", "_backward_hooks", "_is_view", "_post_accumulate_grad_hooks"),
    torch.UntypedStorage: ("_cdata",),
    torch.optim.Optimizer: ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"),
    OpOverload: ("_schema", "_overloadname", "_can_decompose"),
    OpOverloadPacket: ("_qualified_op_name",),
    CustomOpDef: ("_opoverload",),
}  # fmt: skip


def fake_tensors() -> tuple[Any, Any]:
    """FakeTensor and its mode, imported when first asked for: they tell what a device would do that is not there.

    Without them a count raises where it asks: under autocast, and of attention's backward pass.
    """
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    return FakeTensor, FakeTensorMode


def stops_recomputation(error: BaseException | None) -> bool:
    """Whether checkpoint stops with this what it runs again, once all is there. Without it a call that it stops is none.

    Older versions of torch load checkpoint when it is asked for: it is looked for among what is imported.
    """
    checkpoint = sys.modules.get("torch.utils.checkpoint")
    return isinstance(error, getattr(checkpoint, "_StopRecomputationError", Nobody))


def is_fake(cls: type) -> bool:
    """Whether tensors of this class are fake: they have shapes on a device, but no values."""
    return issubclass(cls, fake_tensors()[0])


def in_fake_mode() -> bool:
    """Whether what is made now is fake."""
    return any(isinstance(mode, fake_tensors()[1]) for mode in get_current_dispatch_mode_stack())


def triton_kernel_of(kwargs: dict[str, Any]) -> Any:
    """The Triton kernel that the operator which wraps it was called with, without its tuners. Without it none is counted."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    kernel: Any = kernel_side_table.get_kernel(kwargs["kernel_idx"])
    while hasattr(kernel, "fn") and hasattr(kernel.fn, "run"):
        kernel = kernel.fn
    return kernel


def is_compiled(modules: Iterable[nn.Module]) -> bool:
    """Whether ``torch.compile`` wraps one of these modules, or a forward or a function that is kept in one."""
    if COMPILER not in sys.modules:
        return False
    modules = [*modules]
    functions = [getattr(cls, "forward", None) for cls in {*map(type, modules)}]
    for module in modules:
        held = module.__dict__.values()
        if FunctionType in map(type, held):
            functions += [value for value in held if type(value) is FunctionType]
    return any(hasattr(function, "_torchdynamo_orig_callable") for function in functions)


def original_of(model: nn.Module) -> nn.Module:
    """The module that ``torch.compile`` wraps, or the model itself.

    The wrapper is known by names: to import its class would load the compiler. Without them it is counted as it is.
    """
    is_wrapper = type(model).__name__ == "OptimizedModule" and "_orig_mod" in model._modules
    return model.get_submodule("_orig_mod") if is_wrapper else model
