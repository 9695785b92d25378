"""All private names of torch that fxflops uses. Each entry says what fxflops uses the name for, and what happens if torch does not have it.

If torch has no object for a name marked Necessary, importing fxflops fails. For an optional name, there is a replacement; :func:`absent`
lists the optional names that this torch does not have. The names here are torch's own names without the leading underscore.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    """A class without instances. The class replaces a class or function that this torch does not have."""


# From each optional name to whether this torch has the name.
OPTIONAL: dict[str, bool] = {}


def _optional(path: str, otherwise: Any) -> Any:
    """Return torch's object with this dotted name; return ``otherwise`` if torch has no such object."""
    found = reduce(lambda owner, name: getattr(owner, name, otherwise), path.split(".")[1:], torch)
    OPTIONAL[path] = found is not otherwise
    return found


def absent() -> list[str]:
    """Return the optional names that this torch does not have."""
    return [path for path, found in OPTIONAL.items() if not found]


def device_sleep(device: torch.device) -> Callable[[int], None] | None:
    """Return the function that makes a device's current stream wait for a number of cycles. For CUDA, this is ``torch.cuda._sleep``.

    Return None if the device has no such function. A node's time then includes the time in which the device waits for the host.
    """
    module: Any = torch.get_device_module(device)
    sleep = getattr(module, "_sleep", None)
    if sleep is None:
        return None

    def on_device(cycles: int) -> None:
        # sleep() acts on the current device, which may not be the model's device. Switching devices takes 4 us.
        if device.index is None or device.index == module.current_device():
            sleep(cycles)
        else:
            with module.device(device):
                sleep(cycles)

    return on_device


# The classes of the operators that dispatch modes see. Necessary.
OpOverload = torch._ops.OpOverload
OpOverloadPacket = torch._ops.OpOverloadPacket
# The class of operators that call functions, such as cond, while_loop and flex_attention. fxflops counts these functions. Necessary.
HigherOrderOperator = torch._ops.HigherOrderOperator
# The class of the objects that torch.library.custom_op returns. Without this class, a custom op's formula must name the op by a string.
CustomOpDef = _optional("torch._library.custom_ops.CustomOpDef", Nobody)


# The base class of dispatch modes. fxflops observes operators by dispatch modes. Necessary.
TorchDispatchMode = torch.utils._python_dispatch.TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """A dispatch mode that does not import torch's compiler. TorchDispatchMode imports it to exclude the handler from compilation."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


# Return the modes that are on, so that fxflops enters no mode twice. Necessary.
get_current_dispatch_mode_stack = torch.utils._python_dispatch._get_current_dispatch_mode_stack
get_current_function_mode_stack: Callable[[], list[Any]] = torch.overrides._get_current_function_mode_stack
# The function mode of torch.set_default_device. It changes only calls that create tensors; other modes may change any call. Necessary.
DeviceContext = _device.DeviceContext


def default_device_mode() -> Any:
    """Return this thread's mode of torch.set_default_device, which torch keeps below all other modes; None if it is not set. Necessary."""
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


# Return the number of dispatch modes that are on. It is read at each call, since reading the list of modes is slower. Necessary.
len_torch_dispatch_stack = torch._C._len_torch_dispatch_stack
# Return the FakeTensorMode that is on, if any: DTensor turns on a FakeTensorMode to infer shapes. Necessary.
fake_mode: Callable[[], Any] = partial(torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE)
# Hide fxflops's own calls from dispatch modes (disable_current_modes) and from function modes (DisableTorchFunction). Necessary.
disable_current_modes = torch.utils._python_dispatch._disable_current_modes
DisableTorchDispatch = torch._C._DisableTorchDispatch  # like disable_current_modes, but much faster
DisableTorchFunction = torch._C.DisableTorchFunction
# Turns off the __torch_function__ of tensor subclasses, to read their attributes, but leaves function modes on. Necessary.
DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass
# Undoes DisableTorchFunction, for torch functions that must be observed inside a DisableTorchFunction block. Necessary.
EnableTorchFunction = torch._C._EnableTorchFunction
is_torch_function_enabled = torch._C._is_torch_function_enabled
# Turn all function modes off and on again around code that is not part of the model. Necessary.
len_torch_function_stack = torch._C._len_torch_function_stack
pop_torch_function_stack = torch._C._pop_torch_function_stack
push_on_torch_function_stack = torch._C._push_on_torch_function_stack
# Makes a FakeTensor from a meta tensor, five times as fast as FakeTensor's constructor. Without these names, ranks cannot be simulated.
make_subclass, warn_of_address = torch.Tensor._make_subclass, torch._C._set_warn_deprecated_on_mutable_data_ptr
# The default __torch_dispatch__, to recognize classes that define their own __torch_dispatch__. Necessary.
disabled_torch_dispatch_impl = torch._C._disabled_torch_dispatch_impl
# DTensor's package, and the path suffix of its file that infers output shapes.
# If one of the two names changes, sharded tensors are counted as unsharded tensors.
SHARDING, SHARDING_FILE = "torch.distributed.tensor", "_sharding_prop.py"
# The path suffix of FSDP's file that gathers parameters ahead of time.
# If this path changes, the communication is assigned to the module that runs while FSDP gathers the parameters.
FSDP_GROUP_FILE = "_fsdp_param_group.py"
# Path suffixes of two files. DeviceMesh's file reads the values of tensors, and FSDP's file makes a mesh.
# If one of these paths changes, a simulation cannot make or slice a mesh.
MESH_FILES = "device_mesh.py", "_fsdp_init.py"
# Whether a tensor, such as a DTensor, wraps other tensors, so that it has no memory itself. Necessary.
is_traceable_wrapper_subclass = torch.utils._python_dispatch.is_traceable_wrapper_subclass
# Return the active functorch transform (vmap, grad). Under such a transform, shapes lack the batch dimension. Necessary.
peek_interpreter_stack = torch._C._functorch.peek_interpreter_stack


@contextmanager
def outside_transforms() -> Iterator[None]:
    """Leave all functorch transforms in this block. The kernels then found are the kernels for a single example. Necessary."""
    if peek_interpreter_stack() is None:
        yield
        return
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    with temporarily_clear_interpreter_stack():
        yield


# The open level of forward-mode AD; -1 if no level is open. In an open level, calls also compute tangents. Necessary.
dual_level: Callable[[], int] = partial(getattr, torch.autograd.forward_ad, "_current_level")
# Whether autograd's own vmap (is_grads_batched, vectorize=True) is active. It is older than functorch's vmap. Necessary.
_VMAP: Any = torch._C._parse_dispatch_key("VmapMode")  # looking up the key by name takes 2 us
in_autograds_vmap: Callable[[], bool] = partial(torch._C._dispatch_tls_is_dispatch_key_included, _VMAP)
# Whether autocast is on for any device. Without this name, autocast is always assumed to be on, and counting is slower.
is_any_autocast_enabled: Callable[[], bool] = _optional("torch._C._is_any_autocast_enabled", lambda: True)
# Return the number of references from C++ to a tensor. Autograd has such references to the tensors that it saves. Necessary.
_uses: Callable[[torch.Tensor], int] = torch.Tensor._use_count  # type: ignore[attr-defined]
# Return the number of references to a storage, e.g. from views. Without this function, tensors that a forward replaces count as alive.
_storage_uses: Callable[[int], int] = _optional("torch._C._storage_Use_Count", lambda _: sys.maxsize)


def storage_uses(cdata: int) -> int:
    """Return the number of C++ tensors that use the storage at this address. If torch cannot count them, return sys.maxsize.

    The storage must be alive.
    """
    uses = _storage_uses(cdata)
    return uses if uses == sys.maxsize else uses - _uses_in_asking()


@cache
def _uses_in_asking() -> int:
    """While torch counts the uses of a storage, it adds some uses itself. Return the number of these added uses."""
    with disable_current_modes():
        tensor = torch.empty(1, device="cpu")
        return _storage_uses(tensor.untyped_storage()._cdata) - 1


# Whether a tensor represents zeros without memory. Autograd makes such tensors for undefined gradients. Necessary.
is_zerotensor: Callable[[torch.Tensor], bool] = torch.Tensor._is_zerotensor


def use_counts(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the numbers of references from C++ to a tensor and to its storage."""
    return _uses(tensor), _storage_uses(tensor.untyped_storage()._cdata)


# Return the weights that parametrize.cached() keeps. They are restored after a count. Necessary.
cached_weights: Callable[[], dict[Any, Any]] = partial(getattr, torch.nn.utils.parametrize, "_cache")
# Return autograd's current saved-tensor hooks. Without this name, hooks are always assumed to be set, and profiling is slower.
saved_tensors_hooks = _optional("torch._C._autograd._top_saved_tensors_default_hooks", lambda _: ())
# Return the number of the running backward pass, or -1 if none is running, to distinguish phases. Necessary.
current_graph_task_id = torch._C._current_graph_task_id
# Return the autograd node that is running. Without this function, calls of the backward pass are not assigned to modules.
current_autograd_node: Callable[[], Any] = _optional("torch._C._current_autograd_node", lambda: None)
# The class of the autograd nodes of an autograd.Function.
# Without this class, the gradients that these nodes compute are assigned to the call after the function.
BackwardCFunction = _optional("torch.autograd.function.BackwardCFunction", Nobody)


def function_of(node: Any) -> type:
    """Return the ``autograd.Function`` that made a node. Necessary."""
    return node._forward_cls  # type: ignore[no-any-return]


# The function that calls the autograd engine. The frames below this function's frame belong to the backward pass. Necessary.
engine_run_backward = torch.autograd.graph._engine_run_backward


def engine_creates_graph(frame: FrameType) -> bool:
    """Return whether a frame of ``engine_run_backward`` has ``create_graph=True``; False if the function has unexpected arguments.

    The expected arguments are outputs, gradients, retain_graph and create_graph. With ``create_graph=True``, gradients are enabled during
    the whole backward pass. So, in such a pass, enabled gradients do not show that a node runs a forward.
    """
    given = frame.f_locals.get("args", ())
    return bool(given[2]) if len(given) > 2 else bool(frame.f_locals.get("kwargs", {}).get("create_graph"))


# Calls a function when the running backward pass has ended. Necessary.
queue_callback: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback


DataLoaderIterator: Any = _dataloader._BaseDataLoaderIter
"""The class of all iterators that a DataLoader returns."""


def workers_of(loader: Any) -> int:
    """Return the number of workers of a DataLoader, or of its iterator."""
    return int(getattr(loader, "num_workers", getattr(loader, "_num_workers", 0)))


# The file of checkpoint: a frame in it shows that checkpoint is recomputing.
CHECKPOINT_FILE = str(Path(torch.utils.__file__).with_name("checkpoint.py"))
# The function by which checkpoint reads a tensor's shape, dtype and device, to compare recomputed with original tensors. Necessary.
READS_METADATA = "_default_meta_extractor"
# The modules with torch's Python kernels for the meta device. Calls made by these modules are not calls of the model.
META_KERNELS = ("torch._meta_registrations", "torch._prims", "torch._refs", "torch._decomp")
# The operators that begin and end a range of torch's profiler. An optimizer's step is such a range. Necessary.
record_function_enter = torch.ops.profiler._record_function_enter_new.default
record_function_exit = torch.ops.profiler._record_function_exit._RecordFunction
# The code of torch's wrapper around each optimizer's step. Without this code, a step is counted as part of the forward.
STEP_CODE = next(
    (code for code in torch.optim.Optimizer.profile_hook_step.__code__.co_consts if isinstance(code, CodeType)), None
)
# The function behind torch.set_grad_enabled and no_grad. It is not counted, but recorded graphs call it. Necessary.
set_grad_enabled = torch._C._set_grad_enabled

# The function behind Module.__call__ that runs hooks and forward, to recognize module classes that override it. Necessary.
call_impl = nn.Module._call_impl
# The global module hooks, under the names that a module uses for its own hooks. A module is not a leaf if it has hooks, or if there are global hooks. Necessary.
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS: dict[str, dict[int, Any]] = {name: getattr(nn.modules.module, f"_global{name}") for name in HOOKS}

# The modules of the functions that torch.nn.functional and torch's layers call, to find these functions by name. Necessary.
C_nn = torch._C._nn
FUNCTION_MODULES = {
    "torch._VF": torch._VF,
    C_nn.__name__: C_nn,
    "torch._C._VariableFunctions": torch._C._VariableFunctions,
}
# The C++ modules of the functions of torch.special, torch.linalg and torch.fft.
# Without such a module, fxflops finds the module's functions only by their public names.
BINDINGS = [_optional(f"torch._C.{name}", None) for name in ("_special", "_linalg", "_fft")]
# The base class of torch.Tensor. It has the original methods that torch.Tensor overrides. Necessary.
TensorBase = torch._C.TensorBase
# The function torch._assert, which has a formula. Necessary.
assertion = torch._assert
# Returns the kernel that attention uses. Without this function, the attention call runs on fake tensors to find the kernel, which is slower.
fused_sdp_choice: Callable[..., int] | None = _optional("torch._fused_sdp_choice", None)
# The operator whose meta kernel makes a gradient that was not requested. Necessary.
batch_norm_backward = torch.ops.aten.native_batch_norm_backward.default
# A context in which operators run without autograd. A dispatch mode then sees an operator even if meta decomposes it. Necessary.
below_autograd = torch._C._AutoDispatchBelowAutograd
# The fused kernel of attention on the CPU. Necessary.
flash_attention_for_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
# The kernel of recurrent layers on CUDA, to distinguish a program that calls this kernel by name from a recurrent layer. Necessary.
cudnn_rnn = torch.ops.aten._cudnn_rnn
# Functions that have formulas. If torch does not have such a function, no model can call it.
int_mm = _optional("torch._int_mm", Nobody)
convolution_with_flags = _optional("torch._convolution", Nobody)

# Whether an operator has a kernel for a dispatch key, to recognize composite operators, which only call other operators. Necessary.
has_kernel_for_key: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key

# The names of all operators with a kernel for a dispatch key. Asking torch about one operator at a time is slow and may fail. Necessary.
names_with_kernel_for_key: Callable[[str], list[str]] = torch._C._dispatch_get_registrations_for_dispatch_key

# Whether autograd has already handled the current call. If so, an operator may run as a composition of other operators. Necessary.
is_below_autograd: Callable[[], bool] = partial(
    torch._C._dispatch_tls_is_dispatch_key_excluded, torch._C.DispatchKey.ADInplaceOrView
)


def composing_kernels(overload: Any) -> Callable[..., Any] | None:
    """Return the kernel that composes an operator from other operators below autograd; None if the operator has no such kernel.

    Without torch's ``_op_dk``, the temporary tensors of such operators are not seen.
    """
    for key in ("CompositeExplicitAutogradNonFunctional", "CompositeExplicitAutograd"):
        if has_kernel_for_key(overload.name(), key) and hasattr(overload, "_op_dk"):
            return partial(overload._op_dk, getattr(torch._C.DispatchKey, key))
    return None


# Return the name of a function in a graph's code. If the function has no name, the recorded graph calls it by another node. Necessary.
get_qualified_name = torch.fx.node._get_qualified_name
# Applies a function to all leaves of nested containers. Necessary.
tree_map = torch.utils._pytree.tree_map

# The name of the compiler's module, to look it up among imported modules.
COMPILER = "torch._dynamo"
# True up to torch 2.8, where importing the compiler calls torch functions. The import then fails if torch functions are disabled.
COMPILER_CALLS_FUNCTIONS = TorchVersion(torch.__version__) < "2.9"
# The compiler's prefixes for the names of its graphs, and for the names of functions that resume after a graph break.
# If these prefixes change, fxflops finds no graph breaks.
COMPILED_CODE, RESUMED_CODE = "__compiled_fn_", "__resume_at_"
# The prefix of the profiler's name for a call of a graph that inductor compiled. If this prefix changes, no compiled kernels are found.
GRAPH_CALL = "## Call CompiledFxGraph"
# The __module__ of torch's classes written in C++. Users cannot set attributes on objects of these classes.
C_MODULE = "torch._C"

# Sets the version counters of tensors. Autograd uses these counters to detect that a saved tensor was written to.
_set_version_counters = _optional("torch._C._autograd._unsafe_set_version_counter", None)


def set_versions(tensors: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
    """Set the version counters of tensors back after their values have been restored.

    Without this, if a pending backward pass of the user has saved a tensor and a count has written to it, the backward pass would raise an error.
    """
    if _set_version_counters is None:
        return
    try:
        _set_version_counters(tuple(tensors), tuple(versions))
    except TypeError:  # older versions of torch set one counter at a time
        for tensor, version in zip(tensors, versions, strict=True):
            _set_version_counters(tensor, version)


# Private attributes of torch's objects that are read directly, for speed. Necessary.
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
    """Return the process group that is passed to an operator, by name or as a C++ object. Also return whether all processes are in the group.

    Return (None, False) if no group is passed. Without torch's functions used here, a collective's group is unknown.
    """
    c10d: Any = torch.distributed.distributed_c10d
    if isinstance(given, str):
        given = c10d._resolve_process_group(given)
    elif isinstance(given, torch.ScriptObject):
        given = c10d.ProcessGroup.unbox(given)
    return (given, given.size() == c10d.get_world_size()) if isinstance(given, c10d.ProcessGroup) else (None, False)


def default_store() -> Any:
    """Return the store that connects the processes of torch.distributed. Without this store, reports of several ranks are not gathered."""
    return torch.distributed.distributed_c10d._get_default_store()


@contextmanager
def fake_group(rank: int, size: int) -> Iterator[None]:
    """Make this process one of ``size`` simulated processes: its collectives return at once. Without the private names of torch used here,
    no rank is simulated. DTensor caches meshes. The next rank's groups have other names, so the caches are cleared at the end."""
    from torch.distributed.tensor import _redistribute, debug
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not hasattr(debug, "_clear_sharding_prop_cache"):
        raise NotImplementedError(f"torch {torch.__version__} cannot simulate ranks; use a newer version, such as 2.14")
    torch.distributed.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
        debug._clear_sharding_prop_cache()
        getattr(_redistribute, "_planner_cache", {}).clear()  # older versions have no such cache
        for value in vars(_redistribute).values():
            getattr(value, "cache_clear", int)()


def done(results: list[torch.Tensor]) -> torch.ScriptObject:
    """Return the handle of a completed collective. The handle has the results that DistributedDataParallel reads; the handle of a fake
    group has none."""
    future = torch.futures.Future[list[torch.Tensor]]()
    future.set_result(results)
    return torch._C._distributed_c10d._create_work_from_future(future).boxed()


@cache
def fake_tensors() -> tuple[Any, Any]:
    """Return the classes FakeTensor and FakeTensorMode, which show how a missing device would behave. Import them on first use.

    Without them, a count under autocast, or of attention's backward pass, fails.
    """
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    return FakeTensor, FakeTensorMode


@contextmanager
def fake_errors_unlogged() -> Iterator[None]:
    """Keep fake tensors from printing this thread's errors with a traceback on stderr. The calling code handles these errors.

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
    """Return one of two classes in torch's checkpoint: the exception that stops a recomputation early, or the mode that returns saved results.

    Without the exception, a call that checkpoint stops is not counted. Without the mode, a call whose result was saved is counted again.
    Older versions of torch import checkpoint only when it is first used.
    """
    return getattr(sys.modules.get("torch.utils.checkpoint"), name, Nobody)


# Returns the hooks that pack autograd's saved tensors. If the hooks belong to checkpoint, checkpoint is running a function.
# Without this name, the random states that checkpoint saves are not counted.
_saved_tensors_hooks: Callable[[bool], Any] = _optional(
    "torch._C._autograd._top_saved_tensors_default_hooks", lambda ignores_tracing: None
)


def saving_hook() -> Any:
    """Return the hook that currently packs autograd's saved tensors; None if autograd saves tensors unchanged."""
    hooks = _saved_tensors_hooks(True)
    return None if hooks is None else hooks[0]


KEEPS_ITS_NUMBER = ("MulBackward0", "DivBackward0")
"""Autograd nodes that multiply or divide the gradient by a Python number, and keep this number as a CPU tensor."""


def saved_tensor_of(node: Any) -> torch.Tensor | None:
    """Return the CPU tensor that an autograd node keeps besides its function's arguments; None for most nodes.

    The tensor is one of two things: the number in a product or quotient, or the random state that checkpoint keeps with
    ``use_reentrant=True``. A number is not read while hooks pack saved tensors, since unpacking may run computations. If torch does not
    have these attributes, the predicted memory of a training step is too low by 8 or 5,056 bytes for each such call.
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
    """Return the CPU random state that checkpoint keeps. Also return the object that must be freed before the state's memory is freed.

    ``hook`` is a function that packs autograd's saved tensors. When checkpoint first runs a function, it saves a random state for the
    recomputation. Checkpoint keeps the state until autograd no longer needs the function. While checkpoint recomputes, ``fork_rng`` keeps
    another random state until the end. Return None if the hook is not checkpoint's, or if checkpoint keeps no random state.
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
    """Return the values of the variables in a function's closure, by name. Leave out variables that are not set yet."""
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
    """Return whether an operator only calls other operators on every device. A dispatch mode then never sees the operator itself."""
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


def is_on_fake(tensors: Iterable[torch.Tensor | None]) -> bool:
    """Return whether a run with these tensors is on fake tensors: one of them is fake, or a FakeTensorMode is on."""
    return in_fake_mode() or any(map(is_fake, {*map(type, tensors)}))


CONTROL_FLOW = frozenset({"cond", "while_loop", "while_loop_stack_output", "map_impl", "scan"})


def is_control_flow(function: Any) -> bool:
    """Return whether a function is the operator of ``torch.cond``, ``while_loop``, ``map`` or ``scan``."""
    return isinstance(function, HigherOrderOperator) and function.name() in CONTROL_FLOW


def is_tracing() -> bool:
    """Return whether ``make_fx`` is tracing the current call. Necessary."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


def dispatched(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run the kernel that a higher-order operator dispatches to, and return its result. The function modes stay on for the kernel's own calls.

    The operator's ``__call__`` would call the function modes once more, for the operator itself. Necessary.
    """
    keys = torch._ops._compute_keyset(args, kwargs, function.non_fallthrough_keys)
    return function.dispatch(keys.highestPriorityTypeId(), *args, **kwargs)


def python_kernel(function: Any) -> Any:
    """Return the kernel that runs a control flow operator in Python. Autograd then sees the closures of the functions that the operator calls.

    The operator itself computes gradients only for its operands. Parameters in closures become operands only under the compiler.
    Any other function is returned unchanged.
    """
    kernels = function.py_kernels if is_control_flow(function) else {}
    return kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd, function)


def triton_kernel_of(kwargs: dict[str, Any]) -> Any:
    """An operator wraps a Triton kernel. Return the kernel from the operator's arguments, without the autotuners around the kernel."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    kernel: Any = kernel_side_table.get_kernel(kwargs["kernel_idx"])
    while hasattr(kernel, "fn") and hasattr(kernel.fn, "run"):
        kernel = kernel.fn
    return kernel


def compilations() -> tuple[list[Any], list[Any]]:
    """Return the compiler's records of all graph breaks and of the last compilations in this process. The compiler must be loaded."""
    from torch._dynamo import utils

    return utils.graph_break_reasons, utils.get_compilation_metrics()


def compilations_begun() -> int:
    """Return the number of functions that the compiler has been asked to compile so far. The compiler must be loaded."""
    from torch._dynamo.utils import counters

    return counters["frames"]["total"]


def compile_afresh(write: Callable[[int | None, str, list[Any]], None]) -> None:
    """Clear the compiler's caches, and make it compile for the profiler. Use a separate process, since this is not undone.

    For each kernel call that inductor writes, ``write(graph, name, origins)`` is called. ``write`` gets the number of the call's graph, the
    kernel's name, and the nodes that the kernel computes. Raises RuntimeError if this torch's inductor does not report these nodes.
    """
    from torch._inductor import config, debug
    from torch._inductor.codegen import cpp  # noqa: F401  has the function to replace
    from torch._inductor.virtualized import V

    told = getattr(debug, "set_kernel_post_grad_provenance_tracing", None)
    if told is None or not hasattr(config.trace, "provenance_tracking_level"):
        raise RuntimeError(f"the inductor of torch {torch.__version__} does not report which nodes a kernel computes")

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
    """Return the module that ``torch.compile`` has wrapped. If the model is not such a wrapper, return the model itself.

    The wrapper is recognized by the name of its class, because importing the class would load the compiler.
    """
    is_wrapper = type(model).__name__ == "OptimizedModule" and "_orig_mod" in model._modules
    return vars(model)["_modules"]["_orig_mod"] if is_wrapper else model


@cache
def quantile_selects() -> bool:
    """Return whether this torch's ``quantile`` selects elements instead of sorting rows. Which of the two ``quantile`` does is read from
    the autograd graph of a small example."""
    with disable_current_modes(), torch.enable_grad():
        out = torch.quantile(torch.zeros(64, device="cpu", requires_grad=True), 0.5)
    nodes = [out.grad_fn]
    for node in nodes:
        nodes += [] if node is None else [before for before, _ in node.next_functions]
    return not any(node is not None and node.name().startswith("Sort") for node in nodes)


def graphs_of(module: Any) -> list[Any]:
    """Return the graphs of a scripted module's methods.

    The graphs contain the tensors that ``torch.jit.freeze`` has made constants. Without the graphs, a frozen model has no weights.
    """
    compiled = getattr(module, "_c", None)
    methods = [] if compiled is None else [compiled._get_method(name) for name in compiled._method_names()]
    return [method.graph for method in methods if hasattr(method, "graph")]


def script_module_of(method: Any) -> Any:
    """Return the module that a scripted method belongs to; None if torch has no function for this.

    Purpose: to count ``scripted.encode`` with the parameters of its module. Without this function of torch, these parameters are missing in
        the report.
    """
    wrap = getattr(getattr(torch.jit, "_recursive", None), "wrap_cpp_module", None)
    return None if wrap is None else wrap(method.owner)


def graphs_by_name(script: Any) -> dict[str, Any]:
    """Return the graphs of a scripted module's methods by name.

    Purpose: to find the calls of the module's submodules. Necessary.
    """
    compiled = script._c
    methods = {name: compiled._get_method(name) for name in compiled._method_names()}
    return {name: method.graph for name, method in methods.items() if hasattr(method, "graph")}


def class_of_script(script: Any) -> str:
    """Return the full name of a scripted module's TorchScript class.

    Purpose: to show the class's name, and to find the modules that have the same TorchScript graphs. Necessary.
    """
    compiled = vars(script).get("_c")
    return "" if compiled is None else str(compiled._type().qualified_name())


def set_in_script(script: Any, name: str, value: Any) -> None:
    """Set an attribute of a scripted module.

    Purpose: to let a copy of a script share the script's tensors. Necessary.
    """
    script._c.setattr(name, value)


def composite_name(schema: str) -> str | None:
    """Return the name of torch's operator with this schema if the operator is composed of other operators on every device. Otherwise return None.

    Purpose: to call the operator from Python, so that it is observed as a whole. Necessary.
    """
    name = schema.partition("(")[0]
    try:
        is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
    except RuntimeError:  # a TorchScript-only operator, e.g. the length of a list
        return None
    return name if is_composite else None


def packed_in_script(script: Any) -> list[Any]:
    """Return the objects in which a scripted module keeps the packed weights of quantized layers.

    Purpose: to count the module's parameters. Necessary.
    """
    compiled = vars(script).get("_c")
    names = ("_packed_params", "_packed_weight")
    attributes = [compiled.getattr(name) for name in names if compiled is not None and compiled.hasattr(name)]
    objects = [value for value in attributes if isinstance(value, torch.ScriptObject)]
    return [value for value in objects if class_of_script_object(value).startswith("__torch__.torch.classes.")]


def attributes_of_script(script: Any) -> dict[str, Any]:
    """Return the attributes that the code of a scripted module may set: tensors, numbers, and copies of lists and dicts.

    Purpose: to restore the attributes after a run. Necessary.
    """
    compiled, known = vars(script).get("_c"), vars(script).get("_concrete_type")
    if compiled is None or known is None:
        return {}
    return {name: compiled.getattr(name) for name in known.get_attributes() if compiled.hasattr(name)}


def set_attribute_of_script(script: Any, name: str, value: Any) -> None:
    """Set an attribute of a scripted module as the module's own code does.

    Purpose: to restore the attribute after a run. Necessary: ordinary assignment from Python does not accept lists.
    """
    vars(script)["_c"].setattr(name, value)


def class_of_script_object(value: torch.ScriptObject) -> str:
    """Return the full name of the class of an object that C++ or TorchScript defines.

    Purpose: to recognize weights that are packed in half precision. The kernel of such weights unpacks the weights to f32. Necessary.
    """
    return str(value._type().qualified_name())


tree_flatten = torch.utils._pytree.tree_flatten
tree_unflatten = torch.utils._pytree.tree_unflatten
"""Purpose: to nest inputs and outputs as a torch.export program does. The program's ``call_spec`` is made by these functions. Necessary."""


def children_of(spec: Any) -> list[Any]:
    """Return the child specs of a tree spec. Before version 2.10, torch has no method for this.

    Purpose: to name the inputs of a torch.export program. Necessary.
    """
    return list(spec.children() if hasattr(spec, "children") else spec.children_specs)


def expression_of(size: Any) -> Any:
    """Return a size as an integer, or as a sympy expression in the symbols of a torch.export program.

    Purpose: to show which sizes of an input may vary, and to check the sizes of the tensors that the user passes. Necessary.
    """
    return int(size) if type(size) is int or size.node.expr.is_number else size.node.expr


def programs_in(path: Path) -> dict[str, Any]:
    """Return the torch.export programs in an archive, by name.

    Purpose: to read programs with any name, since ``torch.export.load`` reads only the program named "model". Torch before 2.8 does not
    write other names.
    """
    from torch.export.pt2_archive import _package

    return dict(_package.load_pt2(path).exported_programs)


def is_persistent(module: nn.Module, name: str) -> bool:
    """Return whether a buffer is part of a module's state dict.

    Purpose: to register the buffer as persistent or not, as in the torch.export program. Necessary.
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
"""The names that a pickle of tensors imports. Purpose: to find the class of a pickled module among all imported names, for the error
that refuses the module; without these names the module is refused, too."""


def inline(graph: Any) -> None:
    """Replace each call of a method or function in a TorchScript graph by the graph of that method or function.

    Purpose: to see all operators that a script calls, in whichever function they are called. Necessary.
    """
    optimized_execution: Any = torch.jit.optimized_execution  # type: ignore[attr-defined]
    with optimized_execution(False):  # optimized graphs lack operators with unused results
        before = 0
        while before != (before := nodes_in(graph)):  # inlined graphs contain further calls
            torch._C._jit_pass_inline(graph)


def nodes_in(block: Any) -> int:
    """Return the number of nodes in a TorchScript graph or block."""
    return sum(1 + sum(map(nodes_in, node.blocks())) for node in block.nodes())
