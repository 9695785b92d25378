"""All private names of torch that this library uses, each with its purpose, and what happens in a torch without it.

Without a name marked Necessary, the import fails. An optional name has a stand-in; :func:`absent` lists the names that this
torch lacks. The names here are torch's own, without the leading underscore.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial, reduce
from inspect import unwrap
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import nn
from torch.torch_version import TorchVersion
from torch.utils import _device
from torch.utils.data import dataloader as _dataloader


class Nobody:
    """A class without instances: the stand-in for a class or function that torch lacks."""


# The optional names, and whether this torch has them.
OPTIONAL: dict[str, bool] = {}


def _optional(path: str, stand_in: Any) -> Any:
    """Return torch's object with this dotted name, or ``stand_in``."""
    found = reduce(lambda owner, name: getattr(owner, name, stand_in), path.split(".")[1:], torch)
    OPTIONAL[path] = found is not stand_in
    return found


def absent() -> list[str]:
    """Return the optional names that this torch lacks."""
    return [path for path, found in OPTIONAL.items() if not found]


def device_sleep(device: torch.device) -> Callable[[int], None] | None:
    """Return the function that makes a device's current stream wait for a number of cycles, ``torch.cuda._sleep``.

    None if the device has no such function: a node's time then includes the device's waiting for the host.
    """
    module: Any = torch.get_device_module(device)
    sleep = getattr(module, "_sleep", None)
    if sleep is None:
        return None

    def on_device(cycles: int) -> None:
        # It acts on the current device, which need not be the model's. Switching devices takes 4 us.
        if device.index is None or device.index == module.current_device():
            sleep(cycles)
        else:
            with module.device(device):
                sleep(cycles)

    return on_device


# The classes of operators, which dispatch modes see. Necessary.
OpOverload = torch._ops.OpOverload
OpOverloadPacket = torch._ops.OpOverloadPacket
# The class of cond, while_loop, flex_attention ...: the functions that they call are counted. Necessary.
HigherOrderOperator = torch._ops.HigherOrderOperator
# The class that torch.library.custom_op returns. Without it a custom op's formula is registered by the operator's name.
CustomOpDef = _optional("torch._library.custom_ops.CustomOpDef", Nobody)


# The base class of dispatch modes, which observe operators. Necessary.
TorchDispatchMode = torch.utils._python_dispatch.TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """A dispatch mode whose first operator does not import torch's compiler just to exclude the handler from compilation."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


# The modes that are on, so that no mode is entered twice. Necessary.
get_current_dispatch_mode_stack = torch.utils._python_dispatch._get_current_dispatch_mode_stack
get_current_function_mode_stack: Callable[[], list[Any]] = torch.overrides._get_current_function_mode_stack
# The function mode of a default device, which changes only factories; other modes may turn any call into any other. Necessary.
DeviceContext = _device.DeviceContext


def default_device_mode() -> Any:
    """Return the mode of torch.set_default_device in this thread, which torch keeps below all others; None without one. Necessary."""
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


# The number of dispatch modes that are on, read at each call because that is faster than the list. Necessary.
len_torch_dispatch_stack = torch._C._len_torch_dispatch_stack
# The FakeTensorMode that is on: DTensor turns one on to infer shapes. Necessary.
fake_mode: Callable[[], Any] = partial(torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE)
# Hide this library's own calls from dispatch modes (disable_current_modes) and function modes. Necessary.
disable_current_modes = torch.utils._python_dispatch._disable_current_modes
DisableTorchDispatch = torch._C._DisableTorchDispatch  # hides them from dispatch modes much faster
DisableTorchFunction = torch._C.DisableTorchFunction
# Reads a tensor subclass without its __torch_function__, but leaves function modes on. Necessary.
DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass
# Undoes DisableTorchFunction, for torch functions that must be observed while it is on. Necessary.
EnableTorchFunction = torch._C._EnableTorchFunction
is_torch_function_enabled = torch._C._is_torch_function_enabled
# Take all function modes off and put them back, for code that is not part of the model. Necessary.
len_torch_function_stack = torch._C._len_torch_function_stack
pop_torch_function_stack = torch._C._pop_torch_function_stack
push_on_torch_function_stack = torch._C._push_on_torch_function_stack
# Make a FakeTensor from a meta tensor in a fifth of its constructor's time. Without them nothing is simulated.
make_subclass, warn_of_address = torch.Tensor._make_subclass, torch._C._set_warn_deprecated_on_mutable_data_ptr
# The default __torch_dispatch__, to recognize classes that define their own. Necessary.
disabled_torch_dispatch_impl = torch._C._disabled_torch_dispatch_impl
# DTensor's package, and the suffix of its file that infers output shapes. Without them, sharded tensors are counted as unsharded.
SHARDING, SHARDING_FILE = "torch.distributed.tensor", "_sharding_prop.py"
# The suffix of FSDP's file that gathers parameters ahead of time. Without it, this communication is charged to whichever module is being called.
FSDP_GROUP_FILE = "_fsdp_param_group.py"
# The suffixes of DeviceMesh's file, which needs real numbers, and of FSDP's file that makes a mesh. Without them, a simulation cannot
# make or slice a mesh.
MESH_FILES = "device_mesh.py", "_fsdp_init.py"
# Whether a tensor wraps other tensors (DTensor), and so has no memory itself. Necessary.
is_traceable_wrapper_subclass = torch.utils._python_dispatch.is_traceable_wrapper_subclass
# The active functorch transform (vmap, grad), under which shapes lack the batch dimension. Necessary.
peek_interpreter_stack = torch._C._functorch.peek_interpreter_stack


@contextmanager
def outside_transforms() -> Iterator[None]:
    """Leave all functorch transforms in this block, to ask which kernels a call on one example uses. Necessary."""
    if peek_interpreter_stack() is None:
        yield
        return
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    with temporarily_clear_interpreter_stack():
        yield


# The open level of forward-mode AD, -1 for none: calls there also compute tangents. Necessary.
dual_level: Callable[[], int] = partial(getattr, torch.autograd.forward_ad, "_current_level")
# Whether autograd's own vmap (is_grads_batched, vectorize=True), which is older than functorch's, is active. Necessary.
_VMAP: Any = torch._C._parse_dispatch_key("VmapMode")  # looking it up by name takes 2 us
in_autograds_vmap: Callable[[], bool] = partial(torch._C._dispatch_tls_is_dispatch_key_included, _VMAP)
# Whether autocast is on for any device. Without this name autocast counts as on, and counting is slower.
is_any_autocast_enabled: Callable[[], bool] = _optional("torch._C._is_any_autocast_enabled", lambda: True)
# The number of references from C++ to a tensor, e.g. from autograd, which saves tensors. Necessary.
_uses: Callable[[torch.Tensor], int] = torch.Tensor._use_count  # type: ignore[attr-defined]
# The number of references to a storage, which views share. Without it a tensor that a forward replaces counts as held to the end.
_storage_uses: Callable[[int], int] = _optional("torch._C._storage_Use_Count", lambda _: sys.maxsize)


def storage_uses(cdata: int) -> int:
    """Return how many C++ tensors use the storage at this address, which must be alive; sys.maxsize if torch cannot count them."""
    uses = _storage_uses(cdata)
    return uses if uses == sys.maxsize else uses - _uses_in_asking()


@cache
def _uses_in_asking() -> int:
    """Return how many uses torch itself adds while it counts them."""
    with disable_current_modes():
        tensor = torch.empty(1, device="cpu")
        return _storage_uses(tensor.untyped_storage()._cdata) - 1


# Whether a tensor is zeros without memory, as autograd makes for undefined gradients. Necessary.
is_zerotensor: Callable[[torch.Tensor], bool] = torch.Tensor._is_zerotensor


def use_counts(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the numbers of references from C++ to a tensor and to its storage."""
    return _uses(tensor), _storage_uses(tensor.untyped_storage()._cdata)


# The weights that parametrize.cached() keeps, which are restored after a count. Necessary.
cached_weights: Callable[[], dict[Any, Any]] = partial(getattr, torch.nn.utils.parametrize, "_cache")
# Autograd's current saved-tensor hooks. Without this name hooks count as set, and profiling is slower.
saved_tensors_hooks = _optional("torch._C._autograd._top_saved_tensors_default_hooks", lambda _: ())
# The number of the running backward pass, -1 for none, to distinguish phases. Necessary.
current_graph_task_id = torch._C._current_graph_task_id
# The autograd node that is running. Without it calls of the backward pass belong to no module.
current_autograd_node: Callable[[], Any] = _optional("torch._C._current_autograd_node", lambda: None)
# The class of an autograd.Function's nodes. Without it their gradients belong to the call after the function.
BackwardCFunction = _optional("torch.autograd.function.BackwardCFunction", Nobody)


def function_of(node: Any) -> type:
    """Return the ``autograd.Function`` that made a node. Necessary."""
    return node._forward_cls  # type: ignore[no-any-return]


# The function that calls the autograd engine: frames above it on the call stack belong to the backward pass. Necessary.
engine_run_backward = torch.autograd.graph._engine_run_backward


def engine_creates_graph(frame: FrameType) -> bool:
    """Return whether a frame of ``engine_run_backward`` has ``create_graph=True``: gradients are then enabled throughout, so a node
    that runs with gradients enabled need not run a forward. The function's arguments are outputs, gradients, retain_graph and
    create_graph; False for any others."""
    given = frame.f_locals.get("args", ())
    return bool(given[2]) if len(given) > 2 else bool(frame.f_locals.get("kwargs", {}).get("create_graph"))


# Calls a function when the running backward pass has ended. Necessary.
queue_callback: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback


DataLoaderIterator: Any = _dataloader._BaseDataLoaderIter
"""The class of all iterators that a DataLoader returns."""


def workers_of(loader: Any) -> int:
    """Return the number of workers of a DataLoader, or of its iterator."""
    return int(getattr(loader, "num_workers", getattr(loader, "_num_workers", 0)))


# The file whose frames show that checkpoint recomputes.
CHECKPOINT_FILE = str(Path(torch.utils.__file__).with_name("checkpoint.py"))
# Checkpoint's function that reads a tensor's shape, dtype and device, to compare recomputed tensors with the originals. Necessary.
READS_METADATA = "_default_meta_extractor"
# Modules with torch's Python kernels for the meta device: their calls are not the model's.
META_KERNELS = ("torch._meta_registrations", "torch._prims", "torch._refs", "torch._decomp")
# The operators that begin and end a range of torch's profiler, such as an optimizer's step. Necessary.
record_function_enter = torch.ops.profiler._record_function_enter_new.default
record_function_exit = torch.ops.profiler._record_function_exit._RecordFunction
# The code of torch's wrapper around each optimizer's step. Without it a step belongs to the forward.
STEP_CODE = next(
    (code for code in torch.optim.Optimizer.profile_hook_step.__code__.co_consts if isinstance(code, CodeType)), None
)
# The function behind torch.set_grad_enabled and no_grad, which is not counted; recorded graphs call it. Necessary.
set_grad_enabled = torch._C._set_grad_enabled

# The function behind Module.__call__ that runs hooks and forward: a class that overrides it is called in its own way. Necessary.
call_impl = nn.Module._call_impl
# The global module hooks, by the names of a module's own hooks: a module with any hook is not a leaf. Necessary.
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS: dict[str, dict[int, Any]] = {name: getattr(nn.modules.module, f"_global{name}") for name in HOOKS}

# Modules with the functions that torch.nn.functional and torch's layers call, to find these functions by name. Necessary.
C_nn = torch._C._nn
FUNCTION_MODULES = {
    "torch._VF": torch._VF,
    C_nn.__name__: C_nn,
    "torch._C._VariableFunctions": torch._C._VariableFunctions,
}
# The same for torch.special, torch.linalg and torch.fft. Without one of them its functions are found only by their public names.
BINDINGS = [_optional(f"torch._C.{name}", None) for name in ("_special", "_linalg", "_fft")]
# The base class of torch.Tensor, which has the methods that Tensor overrides. Necessary.
TensorBase = torch._C.TensorBase
# A function with its own formula. Necessary.
assertion = torch._assert
# Returns which kernel attention uses. Without it the call is run on fake tensors, which is slower.
fused_sdp_choice: Callable[..., int] | None = _optional("torch._fused_sdp_choice", None)
# The operator whose meta kernel makes a gradient that was not requested. Necessary.
batch_norm_backward = torch.ops.aten.native_batch_norm_backward.default
# Calls an operator without autograd, so that a dispatch mode sees it even if meta decomposes it. Necessary.
below_autograd = torch._C._AutoDispatchBelowAutograd
# The fused kernel of attention on the CPU. Necessary.
flash_attention_for_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
# The kernel of recurrent layers on CUDA. A program that calls it by name is distinguished from the layers. Necessary.
cudnn_rnn = torch.ops.aten._cudnn_rnn
# Functions with their own formulas. If torch lacks one, no model can call it.
int_mm = _optional("torch._int_mm", Nobody)
convolution_with_flags = _optional("torch._convolution", Nobody)

# Whether an operator has a kernel for a dispatch key, to recognize composite operators, which only call others. Necessary.
has_kernel_for_key: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key

# Whether autograd has already handled the call, so that an operator may run by the kernel that composes it of others. Necessary.
is_below_autograd: Callable[[], bool] = partial(
    torch._C._dispatch_tls_is_dispatch_key_excluded, torch._C.DispatchKey.ADInplaceOrView
)


def composing_kernels(overload: Any) -> Callable[..., Any] | None:
    """Return the kernel that composes an operator of others below autograd; None if it has no such kernel.

    Without torch's ``_op_dk`` the temporaries of such operators are not seen.
    """
    for key in ("CompositeExplicitAutogradNonFunctional", "CompositeExplicitAutograd"):
        if has_kernel_for_key(overload.name(), key) and hasattr(overload, "_op_dk"):
            return partial(overload._op_dk, getattr(torch._C.DispatchKey, key))
    return None


# The name of a function in a graph's code. A recorded graph calls a function without a name by another node. Necessary.
get_qualified_name = torch.fx.node._get_qualified_name
# Maps the leaves of nested containers. Necessary.
tree_map = torch.utils._pytree.tree_map

# The name of the compiler's module, to look it up among imported modules.
COMPILER = "torch._dynamo"
# Up to torch 2.8 importing the compiler calls torch functions, and fails if these are disabled.
COMPILER_CALLS_FUNCTIONS = TorchVersion(torch.__version__) < "2.9"
# The compiler's names, in the functions that it rewrites, for its graphs and for functions that resume after a graph break.
# If the names change, no break is found.
COMPILED_CODE, RESUMED_CODE = "__compiled_fn_", "__resume_at_"
# The prefix of the profiler's name for a call of a graph that inductor compiled. Without it no kernel is found.
GRAPH_CALL = "## Call CompiledFxGraph"
# The __module__ of torch's classes written in C++, whose objects have no attributes of the user's.
C_MODULE = "torch._C"

# Sets tensors' version counters, by which autograd notices that a saved tensor was written to.
_set_version_counters = _optional("torch._C._autograd._unsafe_set_version_counter", None)


def set_versions(tensors: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
    """Set the version counters of tensors back, once their values are restored. Otherwise a user's pending backward pass would raise
    if a count wrote to a tensor that it saved."""
    if _set_version_counters is None:
        return
    try:
        _set_version_counters(tuple(tensors), tuple(versions))
    except TypeError:  # older versions of torch set one at a time
        for tensor, version in zip(tensors, versions, strict=True):
            _set_version_counters(tensor, version)


# Private attributes of torch's objects, which are read directly, for speed. Necessary.
ATTRIBUTES: dict[Any, tuple[str, ...]] = {
    nn.Module: (
        *HOOKS, "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs",
        "_parameters", "_buffers", "_modules", "_get_name", "_call_impl", "_compiled_call_impl",
    ),
    torch.Tensor: ("_values", "_version", "_backward_hooks", "_is_view", "_post_accumulate_grad_hooks"),
    torch.UntypedStorage: ("_cdata",),
    torch.optim.Optimizer: ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"),
    OpOverload: ("_schema", "_overloadname", "_can_decompose"),
    OpOverloadPacket: ("_qualified_op_name",),
    CustomOpDef: ("_opoverload",),
}  # fmt: skip


def process_group_of(given: Any) -> tuple[Any, bool]:
    """Return the process group passed to an operator, by name or as a C++ object, and whether all processes are in it;
    (None, False) if none is passed. Without these functions a collective's group is unknown."""
    c10d: Any = torch.distributed.distributed_c10d
    if isinstance(given, str):
        given = c10d._resolve_process_group(given)
    elif isinstance(given, torch.ScriptObject):
        given = c10d.ProcessGroup.unbox(given)
    return (given, given.size() == c10d.get_world_size()) if isinstance(given, c10d.ProcessGroup) else (None, False)


def default_store() -> Any:
    """Return the store that connects torch.distributed's processes. Without it reports are not gathered."""
    return torch.distributed.distributed_c10d._get_default_store()


@contextmanager
def fake_group(rank: int, size: int) -> Iterator[None]:
    """Make this process one of ``size`` simulated processes: its collectives return at once. Without it nothing is simulated.
    DTensor caches meshes, whose groups have other names for the next rank, so its caches are cleared at the end."""
    from torch.distributed.tensor import _redistribute, debug
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not hasattr(debug, "_clear_sharding_prop_cache"):
        raise NotImplementedError(f"torch {torch.__version__} cannot simulate ranks: a newer one can, such as 2.14")
    torch.distributed.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
        debug._clear_sharding_prop_cache()
        getattr(_redistribute, "_planner_cache", {}).clear()  # not in older versions
        for held in vars(_redistribute).values():
            getattr(held, "cache_clear", int)()


def done(results: list[torch.Tensor]) -> torch.ScriptObject:
    """Return the handle of a completed collective, with the results that DistributedDataParallel reads: a fake group's handle has none."""
    future = torch.futures.Future[list[torch.Tensor]]()
    future.set_result(results)
    return torch._C._distributed_c10d._create_work_from_future(future).boxed()


@cache
def fake_tensors() -> tuple[Any, Any]:
    """Return the classes FakeTensor and FakeTensorMode, imported on first use, which show how a missing device would behave. Without
    them a count under autocast, or of attention's backward pass, fails."""
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    return FakeTensor, FakeTensorMode


@contextmanager
def fake_errors_unlogged() -> Iterator[None]:
    """Keep fake tensors from logging this thread's errors, with a traceback, on stderr: the code that tries a call handles them.

    If torch's logger has another name, the errors are logged.
    """
    logger, thread = logging.getLogger("torch._subclasses.fake_tensor"), threading.get_ident()

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(is_of_others)
    try:
        yield
    finally:
        logger.removeFilter(is_of_others)


STOPS_RECOMPUTING, RETURNS_SAVED = "_StopRecomputationError", "_CachedTorchDispatchMode"


def of_checkpoint(name: str) -> Any:
    """Return the exception by which checkpoint stops recomputing, or the mode in which it returns saved results. Without them a stopped
    call is not counted, and a saved one is. Older versions of torch import checkpoint when it is first used."""
    return getattr(sys.modules.get("torch.utils.checkpoint"), name, Nobody)


# The hooks that pack autograd's saved tensors: checkpoint's hooks show that it runs a function. Without it random states are not counted.
_saved_tensors_hooks: Callable[[bool], Any] = _optional(
    "torch._C._autograd._top_saved_tensors_default_hooks", lambda ignores_tracing: None
)


def saving_hook() -> Any:
    """Return the hook that now packs autograd's saved tensors; None if tensors are saved as they are."""
    hooks = _saved_tensors_hooks(True)
    return None if hooks is None else hooks[0]


KEEPS_ITS_NUMBER = ("MulBackward0", "DivBackward0")
"""Nodes that keep a Python number, by which they multiply or divide the gradient, as a CPU tensor."""


def kept_by(node: Any) -> torch.Tensor | None:
    """Return the CPU tensor that an autograd node keeps besides its function's arguments; None for most nodes.

    It is the number in a product or quotient, or the random state that checkpoint keeps with ``use_reentrant=True``. A number is not
    read while hooks pack saved tensors, since unpacking may compute. Without these attributes of torch, a training step's memory
    lacks 8 or 5,056 bytes for each such call.
    """
    if type(node).__name__ in KEEPS_ITS_NUMBER:
        kept = None if saving_hook() is not None else getattr(node, "_saved_other", None)
    elif isinstance(node, BackwardCFunction) and function_of(node).__module__ == "torch.utils.checkpoint":
        kept = getattr(node, "fwd_cpu_state", None)
    else:
        return None
    if not isinstance(kept, torch.Tensor) or kept.device.type != "cpu":
        return None
    return kept if not kept.ndim or kept.dtype is torch.uint8 else None


def random_state_of_checkpoint(hook: Any) -> tuple[torch.Tensor, Any] | None:
    """Return the CPU's random state that checkpoint keeps, and the object whose end frees its memory.

    ``hook`` is a function that packs autograd's saved tensors. When checkpoint first runs a function, it keeps the state to recompute
    with, until autograd no longer needs the function. While it recomputes, ``fork_rng`` keeps another state until the end. None for
    hooks that are not checkpoint's, and if checkpoint keeps no state.
    """
    function = unwrap(hook)
    if not isinstance(function, FunctionType) or function.__code__.co_filename != CHECKPOINT_FILE:
        return None
    cells = _cells_of(function)
    frame = cells.get("frame") or (cells["target_frame_ref"]() if "target_frame_ref" in cells else None)
    state = _cells_of(getattr(frame, "recompute_fn", None)).get("fwd_cpu_state")
    if not isinstance(state, torch.Tensor):
        return None
    return state, state.untyped_storage() if "frame" in cells else function


def _cells_of(function: Any) -> dict[str, Any]:
    """Return the variables in a function's closure that are set, by name."""
    if not isinstance(function, FunctionType):
        return {}
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not set yet
            continue
    return found


def is_composite(overload: Any) -> bool:
    """Return whether an operator only calls others, on every device, so that a dispatch mode never sees it."""
    try:
        return has_kernel_for_key(overload.name(), "CompositeImplicitAutograd")
    except RuntimeError:  # a TorchScript-only overload, which has no kernels
        return False


def is_fake(cls: type) -> bool:
    """Return whether tensors of this class are fake: they have shapes and a device, but no values."""
    return issubclass(cls, fake_tensors()[0])


def in_fake_mode() -> bool:
    """Return whether a FakeTensorMode is on."""
    return any(isinstance(mode, fake_tensors()[1]) for mode in get_current_dispatch_mode_stack())


CONTROL_FLOW = frozenset({"cond", "while_loop", "while_loop_stack_output", "map_impl", "scan"})


def is_control_flow(function: Any) -> bool:
    """Return whether a function is the operator of ``torch.cond``, ``while_loop``, ``map`` or ``scan``."""
    return isinstance(function, HigherOrderOperator) and function.name() in CONTROL_FLOW


def is_tracing() -> bool:
    """Return whether ``make_fx`` is tracing the current call. Necessary."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


def dispatched(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of a higher-order operator, run with the function modes on in the kernel that it dispatches to.

    Its ``__call__`` would call these modes once more for the operator itself. Necessary.
    """
    keys = torch._ops._compute_keyset(args, kwargs, function.non_fallthrough_keys)
    return function.dispatch(keys.highestPriorityTypeId(), *args, **kwargs)


def python_kernel(function: Any) -> Any:
    """Return the kernel that runs a control flow operator in Python, so that autograd sees its functions' closures.

    Without the compiler, which turns parameters into operands, the operator itself differentiates only its operands.
    Other functions are returned as they are.
    """
    kernels = function.py_kernels if is_control_flow(function) else {}
    return kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd, function)


def triton_kernel_of(kwargs: dict[str, Any]) -> Any:
    """Return the Triton kernel in the arguments of its wrapping operator, without autotuners."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    kernel: Any = kernel_side_table.get_kernel(kwargs["kernel_idx"])
    while hasattr(kernel, "fn") and hasattr(kernel.fn, "run"):
        kernel = kernel.fn
    return kernel


def compilations() -> tuple[list[Any], list[Any]]:
    """Return the compiler's records of all graph breaks and of the last compilations in this process. It must be loaded."""
    from torch._dynamo import utils

    return utils.graph_break_reasons, utils.get_compilation_metrics()


def compilations_begun() -> int:
    """Return how many functions the compiler has been asked to compile so far. It must be loaded."""
    from torch._dynamo.utils import counters

    return counters["frames"]["total"]


def compile_afresh(write: Callable[[int | None, str, list[Any]], None]) -> None:
    """Clear the compiler's caches, and make it compile for the profiler. Use a separate process, since this is not undone.

    ``write(graph, name, origins)`` is called for each kernel call that inductor writes, with the number of its graph and
    the nodes that it computes. Raises RuntimeError where this torch's inductor does not tell.
    """
    from torch._inductor import config, debug
    from torch._inductor.codegen import cpp  # noqa: F401  it has the function to replace
    from torch._inductor.virtualized import V

    told = getattr(debug, "set_kernel_post_grad_provenance_tracing", None)
    if told is None or not hasattr(config.trace, "provenance_tracking_level"):
        raise RuntimeError(f"inductor of torch {torch.__version__} does not tell which nodes a kernel computes")

    def tell(scheduled: Any, name: str, is_extern: bool = False) -> Any:
        if is_extern:
            origins = [scheduled.origin_node] if scheduled.origin_node else [*scheduled.origins]
        else:
            nodes = [each.node for each in scheduled if getattr(each, "node", None) is not None]
            origins = [origin for node in nodes for origin in node.origins]
        write(V.graph.graph_id, name, [origin for origin in origins if origin.op == "call_function"])
        return told(scheduled, name, is_extern)

    for module in [*sys.modules.values()]:
        if vars(module).get("set_kernel_post_grad_provenance_tracing") is told:
            vars(module)["set_kernel_post_grad_provenance_tracing"] = tell
    config.cpp.enable_kernel_profile, config.trace.provenance_tracking_level = True, 1
    config.compile_threads, config.force_disable_caches = 1, True
    torch._dynamo.reset()


def original_of(model: nn.Module) -> nn.Module:
    """Return the module that ``torch.compile`` wraps, or the model itself. The wrapper is recognized by name, since importing its
    class would load the compiler."""
    is_wrapper = type(model).__name__ == "OptimizedModule" and "_orig_mod" in model._modules
    return vars(model)["_modules"]["_orig_mod"] if is_wrapper else model


@cache
def quantile_selects() -> bool:
    """Return whether this torch selects a few quantiles instead of sorting the rows, as a small example's graph shows."""
    with disable_current_modes(), torch.enable_grad():
        out = torch.quantile(torch.zeros(64, device="cpu", requires_grad=True), 0.5)
    nodes = [out.grad_fn]
    for node in nodes:
        nodes += [] if node is None else [before for before, _ in node.next_functions]
    return not any(node is not None and node.name().startswith("Sort") for node in nodes)


def graphs_of(module: Any) -> list[Any]:
    """Return the graphs of a scripted module's methods, which hold the tensors that ``torch.jit.freeze`` made constants. Without them
    a frozen model has no weights."""
    held = getattr(module, "_c", None)
    methods = [] if held is None else [held._get_method(name) for name in held._method_names()]
    return [method.graph for method in methods if hasattr(method, "graph")]


def script_module_of(method: Any) -> Any:
    """Return the module that a scripted method belongs to; None if torch cannot tell.

    Purpose: to count ``scripted.encode`` with the parameters of its module. Without it the report lacks them.
    """
    wrap = getattr(getattr(torch.jit, "_recursive", None), "wrap_cpp_module", None)
    return None if wrap is None else wrap(method.owner)


def graphs_by_name(script: Any) -> dict[str, Any]:
    """Return the graphs of a scripted module's methods by name.

    Purpose: to see its submodules called. Necessary.
    """
    compiled = script._c
    methods = {name: compiled._get_method(name) for name in compiled._method_names()}
    return {name: method.graph for name, method in methods.items() if hasattr(method, "graph")}


def class_of_script(script: Any) -> str:
    """Return the full name of a scripted module's TorchScript class.

    Purpose: to show the class's name, and to find modules that share their graphs. Necessary.
    """
    compiled = vars(script).get("_c")
    return "" if compiled is None else str(compiled._type().qualified_name())


def set_in_script(script: Any, name: str, value: Any) -> None:
    """Set an attribute of a scripted module.

    Purpose: to let a copy of a script share the script's tensors. Necessary.
    """
    script._c.setattr(name, value)


def composite_name(schema: str) -> str | None:
    """Return the name of torch's operator with this schema, if it is composed of others on every device; else None.

    Purpose: to call the operator from Python, where it is seen as a whole. Necessary.
    """
    name = schema.partition("(")[0]
    try:
        is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
    except RuntimeError:  # a TorchScript-only operator, e.g. the length of a list
        return None
    return name if is_composite else None


def packed_in_script(script: Any) -> list[Any]:
    """Return the objects in which a scripted module of quantized layers keeps packed weights.

    Purpose: to count its parameters. Necessary.
    """
    compiled = vars(script).get("_c")
    names = ("_packed_params", "_packed_weight")
    held = [compiled.getattr(name) for name in names if compiled is not None and compiled.hasattr(name)]
    objects = [value for value in held if isinstance(value, torch.ScriptObject)]
    return [value for value in objects if class_of_script_object(value).startswith("__torch__.torch.classes.")]


def attributes_of_script(script: Any) -> dict[str, Any]:
    """Return the attributes of a scripted module, which its code may set: tensors, numbers, and copies of lists and dicts.

    Purpose: to restore them after a run. Necessary.
    """
    compiled, known = vars(script).get("_c"), vars(script).get("_concrete_type")
    if compiled is None or known is None:
        return {}
    return {name: compiled.getattr(name) for name in known.get_attributes() if compiled.hasattr(name)}


def set_attribute_of_script(script: Any, name: str, value: Any) -> None:
    """Set an attribute of a scripted module, as its code does.

    Purpose: to restore it after a run. Necessary: torch takes no lists from Python.
    """
    vars(script)["_c"].setattr(name, value)


def class_of_script_object(value: torch.ScriptObject) -> str:
    """Return the full name of the class of an object that C++ or TorchScript defines.

    Purpose: to recognize weights that a kernel packs in half precision but unpacks to f32. Necessary.
    """
    return str(value._type().qualified_name())


tree_flatten = torch.utils._pytree.tree_flatten
tree_unflatten = torch.utils._pytree.tree_unflatten
"""Purpose: to nest inputs and outputs as a torch.export program does, whose ``call_spec`` comes from this module. Necessary."""


def children_of(spec: Any) -> list[Any]:
    """Return the parts of a tree's spec; torch before 2.10 has no method for them.

    Purpose: to name the inputs of a torch.export program. Necessary.
    """
    return list(spec.children() if hasattr(spec, "children") else spec.children_specs)


def expression_of(size: Any) -> Any:
    """Return a size as an integer, or as a sympy expression in the symbols of a torch.export program.

    Purpose: to show which sizes of an input may vary, and to check the actual sizes. Necessary.
    """
    return int(size) if type(size) is int or size.node.expr.is_number else size.node.expr


def programs_in(path: Path) -> dict[str, Any]:
    """Return the torch.export programs in an archive, by name.

    Purpose: ``torch.export.load`` reads only the program named "model"; archives may use other names. Torch before 2.8 writes
    no other name.
    """
    from torch.export.pt2_archive import _package

    return dict(_package.load_pt2(path).exported_programs)


def is_persistent(module: nn.Module, name: str) -> bool:
    """Return whether a buffer is part of a module's state dict.

    Purpose: to register the buffer as the torch.export program does. Necessary.
    """
    return name not in module._non_persistent_buffers_set


OF_TENSORS = (
    "collections.OrderedDict",
    "torch._utils.",
    "torch.storage.",
    "torch.FloatStorage",
    "torch.device",
    "torch.Size",
)
"""The names that a pickle of tensors imports. Purpose: to name the class of a pickled module, which is refused even without them."""


def inline(graph: Any) -> None:
    """Replace calls of methods and functions in a TorchScript graph by their graphs.

    Purpose: to see all operators that a script calls, wherever they are written. Necessary.
    """
    unoptimized: Any = torch.jit.optimized_execution  # type: ignore[attr-defined]
    with unoptimized(False):  # optimized graphs lack operators with unused results
        before = 0
        while before != (before := nodes_in(graph)):  # inlined graphs contain further calls
            torch._C._jit_pass_inline(graph)


def nodes_in(block: Any) -> int:
    """Return the number of nodes in a TorchScript graph or block."""
    return sum(1 + sum(map(nodes_in, node.blocks())) for node in block.nodes())
