"""All private names of torch that this library uses, each with its purpose, and what happens in a torch without it.

The import fails without a name marked Necessary. An optional name has a stand-in; :func:`absent` lists those that this
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
    """Return what torch has under this dotted name, or ``stand_in``."""
    found = reduce(lambda owner, name: getattr(owner, name, stand_in), path.split(".")[1:], torch)
    OPTIONAL[path] = found is not stand_in
    return found


def absent() -> list[str]:
    """Return the optional names that this torch lacks."""
    return [path for path, found in OPTIONAL.items() if not found]


def device_sleep(device: torch.device) -> Callable[[int], None] | None:
    """Return the function that makes a device's current stream wait for a number of cycles, ``torch.cuda._sleep``.

    None where the device has none: then a node's time there includes the device's waiting for the host.
    """
    module: Any = torch.get_device_module(device)
    sleep = getattr(module, "_sleep", None)
    if sleep is None:
        return None

    def on_device(cycles: int) -> None:
        # It takes the current device, which need not be the model's. To change it takes 4 us.
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
# The class that torch.library.custom_op returns. Without it a formula for one is registered by the operator's name.
CustomOpDef = _optional("torch._library.custom_ops.CustomOpDef", Nobody)


# The base of dispatch modes, by which operators are observed. Necessary.
TorchDispatchMode = torch.utils._python_dispatch.TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """A dispatch mode whose first operator does not import torch's compiler, only to tell it to leave the handler alone."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


# The modes that are on, so that none is entered twice. Necessary.
get_current_dispatch_mode_stack = torch.utils._python_dispatch._get_current_dispatch_mode_stack
get_current_function_mode_stack: Callable[[], list[Any]] = torch.overrides._get_current_function_mode_stack
# The function mode of a default device, which changes factories alone; other modes may make any call of any. Necessary.
DeviceContext = _device.DeviceContext


def default_device_mode() -> Any:
    """Return the mode of torch.set_default_device in this thread, which torch keeps below all others; None without one. Necessary."""
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


# The number of dispatch modes that are on. It is read at each call, and faster than the list. Necessary.
len_torch_dispatch_stack = torch._C._len_torch_dispatch_stack
# The FakeTensorMode that is on: DTensor turns one on to find shapes. Necessary.
fake_mode: Callable[[], Any] = partial(torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE)
# Hide this library's own calls from dispatch modes (disable_current_modes) and function modes. Necessary.
disable_current_modes = torch.utils._python_dispatch._disable_current_modes
DisableTorchDispatch = torch._C._DisableTorchDispatch  # does the first of these much faster
DisableTorchFunction = torch._C.DisableTorchFunction
# Reads a tensor subclass without its __torch_function__, with function modes left on. Necessary.
DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass
# Undoes DisableTorchFunction, for torch functions that must be observed while it is on. Necessary.
EnableTorchFunction = torch._C._EnableTorchFunction
is_torch_function_enabled = torch._C._is_torch_function_enabled
# Take all function modes off and put them back, for code that is not part of the model. Necessary.
len_torch_function_stack = torch._C._len_torch_function_stack
pop_torch_function_stack = torch._C._pop_torch_function_stack
push_on_torch_function_stack = torch._C._push_on_torch_function_stack
# Make a FakeTensor of a meta tensor in a fifth of the time that its class takes. Without them nothing is simulated.
make_subclass, warn_of_address = torch.Tensor._make_subclass, torch._C._set_warn_deprecated_on_mutable_data_ptr
# The default __torch_dispatch__, by which classes with one of their own are recognized. Necessary.
disabled_torch_dispatch_impl = torch._C._disabled_torch_dispatch_impl
# The package of DTensor, and the end of its file that finds shapes of results. Without them sharded tensors are counted whole.
SHARDING, SHARDING_FILE = "torch.distributed.tensor", "_sharding_prop.py"
# The end of the file that gathers FSDP's parameters ahead of time. Without it, they belong to the module called meanwhile.
FSDP_GROUP_FILE = "_fsdp_param_group.py"
# The ends of the files of DeviceMesh, which is made of numbers, and of FSDP that makes one. Without them no mesh is made or sliced in a simulation.
MESH_FILES = "device_mesh.py", "_fsdp_init.py"
# Tells whether a tensor wraps other tensors (DTensor), and so has no memory of its own. Necessary.
is_traceable_wrapper_subclass = torch.utils._python_dispatch.is_traceable_wrapper_subclass
# The active functorch transform (vmap, grad), under which shapes lack the batch dimension. Necessary.
peek_interpreter_stack = torch._C._functorch.peek_interpreter_stack


@contextmanager
def outside_transforms() -> Iterator[None]:
    """Leave all functorch transforms in this block, to ask which kernels a call on one example takes. Necessary."""
    if peek_interpreter_stack() is None:
        yield
        return
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    with temporarily_clear_interpreter_stack():
        yield


# The level of forward-mode AD that is open, -1 for none: calls there compute tangents, too. Necessary.
dual_level: Callable[[], int] = partial(getattr, torch.autograd.forward_ad, "_current_level")
# Tells of the vmap of autograd (is_grads_batched, vectorize=True), which is older than functorch's. Necessary.
_VMAP: Any = torch._C._parse_dispatch_key("VmapMode")  # asking by the name takes 2 us
in_autograds_vmap: Callable[[], bool] = partial(torch._C._dispatch_tls_is_dispatch_key_included, _VMAP)
# Tells whether autocast is on for any device. Without it it counts as on, and counting is slower.
is_any_autocast_enabled: Callable[[], bool] = _optional("torch._C._is_any_autocast_enabled", lambda: True)
# How often C++ refers to a tensor: autograd saves tensors. Necessary.
_uses: Callable[[torch.Tensor], int] = torch.Tensor._use_count  # type: ignore[attr-defined]
# How often it refers to a storage: views share it. Without it a tensor that a forward replaces counts as held to the end.
_storage_uses: Callable[[int], int] = _optional("torch._C._storage_Use_Count", lambda _: sys.maxsize)


def storage_uses(cdata: int) -> int:
    """Return how many tensors in C++ have the storage at this address, which must be alive. Without the name: as many as can be."""
    uses = _storage_uses(cdata)
    return uses if uses == sys.maxsize else uses - _uses_in_asking()


@cache
def _uses_in_asking() -> int:
    """Return how many uses torch adds itself when it counts them."""
    with disable_current_modes():
        tensor = torch.empty(1, device="cpu")
        return _storage_uses(tensor.untyped_storage()._cdata) - 1


# Tells of a tensor of zeros without memory, as autograd makes for gradients that are none. Necessary.
is_zerotensor: Callable[[torch.Tensor], bool] = torch.Tensor._is_zerotensor


def use_counts(tensor: torch.Tensor) -> tuple[int, int]:
    """Return how often C++ refers to a tensor, and to its storage."""
    return _uses(tensor), _storage_uses(tensor.untyped_storage()._cdata)


# The weights that parametrize.cached() keeps, which are brought back after a count. Necessary.
cached_weights: Callable[[], dict[Any, Any]] = partial(getattr, torch.nn.utils.parametrize, "_cache")
# The hooks by which autograd saves tensors now. Without it they count as set, and profiling is slower.
saved_tensors_hooks = _optional("torch._C._autograd._top_saved_tensors_default_hooks", lambda _: ())
# The number of the running backward pass, -1 for none, which distinguishes the phases. Necessary.
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
    """Return whether a frame of that function runs a backward pass with ``create_graph=True``: gradients are enabled in it, and
    a node's code that runs under them need not be a forward. Its arguments are the outputs, then gradients, retain_graph
    and create_graph; with others, none does."""
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
# Its function that reads shape, dtype and device of a tensor, to compare a recomputed one with the first. Necessary.
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

# The function behind Module.__call__ that runs hooks and forward: a class that has another is called in its own way. Necessary.
call_impl = nn.Module._call_impl
# The global module hooks, by the names of a module's own hooks: with any hook a module is no leaf. Necessary.
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS: dict[str, dict[int, Any]] = {name: getattr(nn.modules.module, f"_global{name}") for name in HOOKS}

# Modules with the functions that torch.nn.functional and torch's layers call, to find these by name. Necessary.
C_nn = torch._C._nn
FUNCTION_MODULES = {
    "torch._VF": torch._VF,
    C_nn.__name__: C_nn,
    "torch._C._VariableFunctions": torch._C._VariableFunctions,
}
# The same for torch.special, torch.linalg and torch.fft. Without one its functions have only their public names.
BINDINGS = [_optional(f"torch._C.{name}", None) for name in ("_special", "_linalg", "_fft")]
# The base class of torch.Tensor, which has the methods that Tensor overrides. Necessary.
TensorBase = torch._C.TensorBase
# A function with a formula of its own. Necessary.
assertion = torch._assert
# Tells which kernel attention takes. Without it the call is run on fake tensors, which is slower.
fused_sdp_choice: Callable[..., int] | None = _optional("torch._fused_sdp_choice", None)
# The operator whose kernel on meta makes a gradient that nobody asked for. Necessary.
batch_norm_backward = torch.ops.aten.native_batch_norm_backward.default
# Calls an operator without autograd, so that a dispatch mode sees it even where meta takes it apart. Necessary.
below_autograd = torch._C._AutoDispatchBelowAutograd
# The fused kernel of attention on the CPU. Necessary.
flash_attention_for_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
# The kernel of recurrent layers on CUDA. A program that calls it by name is told from the layers. Necessary.
cudnn_rnn = torch.ops.aten._cudnn_rnn
# Functions with formulas of their own. A torch without one cannot call it.
int_mm = _optional("torch._int_mm", Nobody)
convolution_with_flags = _optional("torch._convolution", Nobody)

# Tells of a kernel for one dispatch key, by which composite operators are known: they only call others. Necessary.
has_kernel_for_key: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key

# Tells that autograd has had its turn, so that an operator may be called by the kernel that composes it of others. Necessary.
is_below_autograd: Callable[[], bool] = partial(
    torch._C._dispatch_tls_is_dispatch_key_excluded, torch._C.DispatchKey.ADInplaceOrView
)


def composing_kernels(overload: Any) -> Callable[..., Any] | None:
    """Return the kernel that composes an operator of others below autograd; None if it has none.

    A torch without ``_op_dk`` hides what such operators hold on their way.
    """
    for key in ("CompositeExplicitAutogradNonFunctional", "CompositeExplicitAutograd"):
        if has_kernel_for_key(overload.name(), key) and hasattr(overload, "_op_dk"):
            return partial(overload._op_dk, getattr(torch._C.DispatchKey, key))
    return None


# The name of a function in a graph's code. A recorded graph calls a function without one by another node. Necessary.
get_qualified_name = torch.fx.node._get_qualified_name
# Maps the leaves of nested containers. Necessary.
tree_map = torch.utils._pytree.tree_map

# The name of the compiler's module, to look it up among the imported ones.
COMPILER = "torch._dynamo"
# Up to torch 2.8 its import calls torch functions, and fails where they are disabled.
COMPILER_CALLS_FUNCTIONS = TorchVersion(torch.__version__) < "2.9"
# How the compiler names, in the functions that it rewrites, its graphs and the functions that go on after a graph's break.
# Under other names no break is found.
COMPILED_CODE, RESUMED_CODE = "__compiled_fn_", "__resume_at_"
# The beginning of the profiler's name for a call of a graph that inductor compiled. Without it no kernel is found.
GRAPH_CALL = "## Call CompiledFxGraph"
# The __module__ of torch's classes written in C++, whose objects have no attributes of the user's.
C_MODULE = "torch._C"

# Sets tensors' version counters, by which autograd notices that a saved tensor was written to.
_set_version_counters = _optional("torch._C._autograd._unsafe_set_version_counter", None)


def set_versions(tensors: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
    """Set the version counters of tensors back, once their values are restored. Otherwise a backward pass of the user's that was
    pending when a count wrote to a tensor would raise."""
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
    """Return the process group that an operator is given, by name or in an object of C++, and whether all processes are in
    it; (None, False) if it is given none. Without these functions a collective's group is unknown."""
    c10d: Any = torch.distributed.distributed_c10d
    if isinstance(given, str):
        given = c10d._resolve_process_group(given)
    elif isinstance(given, torch.ScriptObject):
        given = c10d.ProcessGroup.unbox(given)
    return (given, given.size() == c10d.get_world_size()) if isinstance(given, c10d.ProcessGroup) else (None, False)


def default_store() -> Any:
    """Return the store by which torch.distributed brought its processes together. Without it reports are not gathered."""
    return torch.distributed.distributed_c10d._get_default_store()


@contextmanager
def fake_group(rank: int, size: int) -> Iterator[None]:
    """Make this process one of so many that do not exist: its collectives return at once. Without it nothing is simulated.
    DTensor remembers meshes, whose groups have other names in the next rank: what it remembers is cleared at the end."""
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
    """Return the handle of a collective that is complete. That of a fake group has no results, which DistributedDataParallel reads."""
    future = torch.futures.Future[list[torch.Tensor]]()
    future.set_result(results)
    return torch._C._distributed_c10d._create_work_from_future(future).boxed()


@cache
def fake_tensors() -> tuple[Any, Any]:
    """Return the classes FakeTensor and FakeTensorMode, imported on first use, which show how a missing device would act. Without them
    a count under autocast, or of attention's backward pass, fails."""
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    return FakeTensor, FakeTensorMode


@contextmanager
def fake_errors_unlogged() -> Iterator[None]:
    """Keep fake tensors from logging errors of this thread, with a traceback, on stderr: who tries a call handles them.

    Without the logger of this name they would be logged.
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
    """Return the exception by which checkpoint stops recomputing, or the mode in which it returns what it saved. Without them a call
    that is stopped is not counted, and one that was saved is. Older versions of torch import checkpoint when it is first used."""
    return getattr(sys.modules.get("torch.utils.checkpoint"), name, Nobody)


# The hooks that pack what autograd saves: checkpoint's own show that it runs a function. Without it random states are not counted.
_saved_tensors_hooks: Callable[[bool], Any] = _optional(
    "torch._C._autograd._top_saved_tensors_default_hooks", lambda ignores_tracing: None
)


def saving_hook() -> Any:
    """Return the function that packs what autograd saves now; None if tensors are saved as they are."""
    hooks = _saved_tensors_hooks(True)
    return None if hooks is None else hooks[0]


KEEPS_ITS_NUMBER = ("MulBackward0", "DivBackward0")
"""Nodes that keep a Python number as a tensor of the CPU, by which the gradient is multiplied or divided."""


def kept_by(node: Any) -> torch.Tensor | None:
    """Return the tensor of the CPU that a node of the autograd graph keeps beside what its function was given; None for most.

    That is the number of a product or quotient, and the state of random numbers that checkpoint keeps with ``use_reentrant=True``. A number is not
    asked for where hooks pack what is saved now: to unpack it may compute. Without these attributes of torch's, 8 and 5,056 bytes for
    each such call are not in the memory of a training step.
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

    ``hook`` is a function that packs what autograd saves. While checkpoint first runs a function that is the state to recompute with; its
    storage leaves when autograd needs the function no longer. While it recomputes, ``fork_rng`` keeps another one until that is over.
    None for hooks that are not checkpoint's, and where it keeps no state.
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
    """Return the variables that a function has of the functions around it, those that are set."""
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
    except RuntimeError:  # an overload of TorchScript alone, which has no kernels
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
    """Return whether ``make_fx`` traces what is called now. Necessary."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


def dispatched(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return what a higher-order operator returns, with the function modes on in the kernel that it dispatches to.

    Its ``__call__`` would call these modes for the operator itself, again. Necessary.
    """
    keys = torch._ops._compute_keyset(args, kwargs, function.non_fallthrough_keys)
    return function.dispatch(keys.highestPriorityTypeId(), *args, **kwargs)


def python_kernel(function: Any) -> Any:
    """Return what runs a control flow operator as Python would, so that autograd sees what its functions close over.

    Without the compiler, which makes operands of parameters, the operator itself differentiates its operands alone.
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
    """Return for how many functions the compiler was asked so far. It must be loaded."""
    from torch._dynamo.utils import counters

    return counters["frames"]["total"]


def compile_afresh(write: Callable[[int | None, str, list[Any]], None]) -> None:
    """Make the compiler forget all, and compile for the profiler: for a process of its own, since it is not undone.

    ``write(graph, name, origins)`` is called for each kernel call that inductor writes, with the number of its graph and
    the nodes it computes. Raises RuntimeError where this torch's inductor does not tell.
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
    """Return whether this torch selects few quantiles instead of sorting the rows, as the graph of a small one tells."""
    with disable_current_modes(), torch.enable_grad():
        out = torch.quantile(torch.zeros(64, device="cpu", requires_grad=True), 0.5)
    nodes = [out.grad_fn]
    for node in nodes:
        nodes += [] if node is None else [before for before, _ in node.next_functions]
    return not any(node is not None and node.name().startswith("Sort") for node in nodes)


def graphs_of(module: Any) -> list[Any]:
    """Return the graphs of a scripted module's methods, which hold what ``torch.jit.freeze`` made constants. Without them a frozen
    model has no weights."""
    held = getattr(module, "_c", None)
    methods = [] if held is None else [held._get_method(name) for name in held._method_names()]
    return [method.graph for method in methods if hasattr(method, "graph")]


def script_module_of(method: Any) -> Any:
    """Return the module whose scripted method this is; None without a way to know.

    Purpose: to count ``scripted.encode`` with the parameters of its module. Without it they are not among the report's.
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
    """Return the full name of the class in TorchScript of a scripted module.

    Purpose: to show the module by its class's name, and to know which modules share their graphs. Necessary.
    """
    compiled = vars(script).get("_c")
    return "" if compiled is None else str(compiled._type().qualified_name())


def set_in_script(script: Any, name: str, value: Any) -> None:
    """Set an attribute of a scripted module.

    Purpose: a copy of a script shares the tensors of the script. Necessary.
    """
    script._c.setattr(name, value)


def composite_name(schema: str) -> str | None:
    """Return the name of the operator of torch with this schema, if it is composed of others on every device; else None.

    Purpose: to call it from Python, where it is seen as a whole. Necessary.
    """
    name = schema.partition("(")[0]
    try:
        is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
    except RuntimeError:  # an operator of TorchScript alone: the length of a list
        return None
    return name if is_composite else None


def packed_in_script(script: Any) -> list[Any]:
    """Return the objects in which a scripted module of quantized layers keeps weights for its kernels.

    Purpose: to count its parameters. Necessary.
    """
    compiled = vars(script).get("_c")
    names = ("_packed_params", "_packed_weight")
    held = [compiled.getattr(name) for name in names if compiled is not None and compiled.hasattr(name)]
    objects = [value for value in held if isinstance(value, torch.ScriptObject)]
    return [value for value in objects if class_of_script_object(value).startswith("__torch__.torch.classes.")]


def attributes_of_script(script: Any) -> dict[str, Any]:
    """Return the attributes of a scripted module, which its code may set: tensors, numbers, lists and dicts, these as copies.

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

    Purpose: to know weights that a kernel packs in half precision, which it gives back in f32. Necessary.
    """
    return str(value._type().qualified_name())


tree_flatten = torch.utils._pytree.tree_flatten
tree_unflatten = torch.utils._pytree.tree_unflatten
"""Purpose: to take inputs and give outputs nested as those of a program of torch.export, whose ``call_spec`` is of this module.
Necessary."""


def children_of(spec: Any) -> list[Any]:
    """Return the parts of a tree's spec; torch before 2.10 has no method for them.

    Purpose: to name the inputs of a program of torch.export. Necessary.
    """
    return list(spec.children() if hasattr(spec, "children") else spec.children_specs)


def expression_of(size: Any) -> Any:
    """Return a size as an integer, or as sympy's expression in the symbols of a program of torch.export.

    Purpose: to say which sizes of an input may vary, and to check those that are given. Necessary.
    """
    return int(size) if type(size) is int or size.node.expr.is_number else size.node.expr


def programs_in(path: Path) -> dict[str, Any]:
    """Return the programs of torch.export in an archive, by name.

    Purpose: ``torch.export.load`` reads the one that is named "model"; archives may use other names. Torch before 2.8 writes
    no others.
    """
    from torch.export.pt2_archive import _package

    return dict(_package.load_pt2(path).exported_programs)


def is_persistent(module: nn.Module, name: str) -> bool:
    """Return whether a buffer is part of a module's state dict.

    Purpose: to hold it as the program of torch.export does. Necessary.
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
"""The names that a pickle of tensors imports. Purpose: to name the class of a pickled module. Not needed to refuse it."""


def inline(graph: Any) -> None:
    """Replace the calls of methods and functions in a graph of TorchScript by their graphs.

    Purpose: to see what a script calls, wherever it is written. Necessary.
    """
    unoptimized: Any = torch.jit.optimized_execution  # type: ignore[attr-defined]
    with unoptimized(False):  # optimized graphs lack operators whose results nobody uses
        before = 0
        while before != (before := nodes_in(graph)):  # what is put in has calls again
            torch._C._jit_pass_inline(graph)


def nodes_in(block: Any) -> int:
    """Return the number of nodes in a graph of TorchScript, or in a block of one."""
    return sum(1 + sum(map(nodes_in, node.blocks())) for node in block.nodes())
