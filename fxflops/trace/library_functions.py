"""Pass calls of other libraries' functions to the thread's observer during a run.

No torch mode sees such a function, and its kernel cannot run on meta. However a model imports the function, it calls the same
function object. So during a run this object gets another ``__code__`` with the same parameters. In other threads, and when one
library function calls another, the functions run as usual. For an ``autograd.Function``, ``apply`` is replaced on the class; a
function written in C is replaced in its module.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from ..names import looked_up
from ..ops._libraries import Given, LibraryFunction
from ..ops._rules import parameters_of
from ..records import Spec
from ..records.tensors import spec_of
from ..torch_internals import DisableTorchFunction, is_fake
from .autograd_owners import accumulates_gradient, grad_node_of
from .per_thread import PerThread
from .single_kernels import SingleKernel

Handler = Callable[[LibraryFunction, tuple[Any, ...], dict[str, Any]], Any]
_HANDLERS = PerThread[Handler]()
_LOCK = threading.Lock()
_REPLACED: dict[str, _Replaced] = {}
"""The functions that are replaced now, by name."""
_RUNNING = threading.local()
"""Whether this thread is inside a library's function: calls in that function are part of it."""


class _Replaced:
    """A replaced function. ``original`` is a copy that behaves as before the replacement; ``restore`` undoes the replacement."""

    def __init__(self, function: LibraryFunction, original: Callable[..., Any], restore: Callable[[], None]) -> None:
        self.function = function
        self.original = original
        self.restore = restore


@contextmanager
def library_calls_handled_by(handler: Handler, names: Mapping[str, Iterable[str]]) -> Iterator[None]:
    """In the block, replace each call of a library's function in this thread by ``handler(function, args, kwargs)``.

    ``names`` has the functions' names by module.
    """
    with _HANDLERS.on(handler, lambda: None, _restore):
        replace_in_modules(names)
        yield


def replace_in_modules(names: Mapping[str, Iterable[str]]) -> None:
    """Replace the functions whose modules have been imported since the last call of this function."""
    with _LOCK:
        for name in [name for module in names if module in sys.modules for name in names[module]]:
            if name not in _REPLACED and (replaced := _replace(name)) is not None:
                _REPLACED[name] = replaced


def called(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Handle a call of a replaced function."""
    replaced = _REPLACED[name]
    handler = None if getattr(_RUNNING, "is_on", False) else _HANDLERS.now()
    return replaced.original(*args, **kwargs) if handler is None else handler(replaced.function, args, kwargs)


def run_original(function: LibraryFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a library's function as without an observer."""
    replaced = _REPLACED.get(function.name)
    original = function.function if replaced is None else replaced.original
    before, _RUNNING.is_on = getattr(_RUNNING, "is_on", False), True
    try:
        return original(*args, **kwargs)
    finally:
        _RUNNING.is_on = before


def has_values(arguments: Any) -> bool:
    """Return whether all tensors have values, so that no tensor is on meta or fake."""
    with DisableTorchFunction():  # otherwise is_meta would be answered for the target device
        return not any(tensor.is_meta or is_fake(type(tensor)) for tensor in tensors_of(arguments))


def run_without_values(function: LibraryFunction, arguments: Mapping[str, Any]) -> Any:
    """Make the result of a library's function by its rule, with an autograd node like the node that the library would make."""
    rule = function.kernel
    assert rule.result is not None
    with DisableTorchFunction():  # otherwise .device would be the target device
        specs, tensors = {name: spec_of(value) for name, value in arguments.items()}, tensors_of(arguments)
        device = tensors[0].device
    result = _with_names(rule.result, specs)
    saved = [] if rule.saved is None else _with_names(rule.saved, specs)
    result_specs = [*_specs_in(result)]
    results = iter(WithoutValues.apply(result_specs, saved, device, *tensors) if result_specs else ())
    return _filled(result, results, arguments)


def result_by_rule(function: LibraryFunction, specs: Mapping[str, Any]) -> Any:
    """Return the specs of a result from the specs of the arguments."""
    assert function.kernel.result is not None
    return _named(_with_names(function.kernel.result, specs), specs)


def _named(result: Any, specs: Mapping[str, Any]) -> Any:
    if isinstance(result, (tuple, list)) and not isinstance(result, Spec):
        return tuple(_named(part, specs) for part in result)
    return specs[result] if isinstance(result, Given) else result


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors in arguments, including nested lists, tuples and mappings."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for part in parts for tensor in tensors_of(part)]


def nodes_between(out: Any, arguments: Any) -> list[Any]:
    """Return the autograd nodes from a result back to the call's arguments."""
    stops = [
        node for tensor in tensors_of(arguments) if tensor.requires_grad and (node := grad_node_of(tensor)) is not None
    ]
    queue: list[Any] = [grad_node_of(tensor) for tensor in tensors_of(out) if tensor.requires_grad]
    nodes: list[Any] = []
    for node in queue:
        is_end = node is None or accumulates_gradient(node) or any(node is stop for stop in stops)
        if not is_end and not any(node is other for other in nodes):
            nodes.append(node)
            queue.extend(earlier for earlier, _ in node.next_functions)
    return nodes


class WithoutValues(SingleKernel):
    """A library's kernel on tensors without values. It allocates the results, and gradients shaped like the arguments."""

    @staticmethod
    def forward(
        ctx: Any, result_specs: list[Spec], saved: list[Spec], device: torch.device, *tensors: torch.Tensor
    ) -> Any:
        with DisableTorchFunction():
            outs, others = (
                [torch.empty(tuple(spec), dtype=spec.dtype, device=device) for spec in specs]
                for specs in (result_specs, saved)
            )
        ctx.save_for_backward(*tensors, *outs, *others)
        ctx.argument_count = len(tensors)
        ctx.mark_non_differentiable(*(out for out in outs if not (out.is_floating_point() or out.is_complex())))
        ctx.set_materialize_grads(False)
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        arguments = ctx.saved_tensors[: ctx.argument_count]
        needs_grad = ctx.needs_input_grad[3:]  # without the specs and the device
        with DisableTorchFunction():
            gradients = [
                torch.empty_like(tensor) if needs else None for tensor, needs in zip(arguments, needs_grad, strict=True)
            ]
        return None, None, None, *gradients


def _with_names(function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Call a function with those ``values`` whose names are parameters of it, or with all values if it takes ``**kwargs``."""
    names, keywords, _, takes_all = parameters_of(function)
    return function(**{name: value for name, value in values.items() if takes_all or name in (*names, *keywords)})


def _specs_in(result: Any) -> Iterator[Spec]:
    if isinstance(result, Spec):
        yield result
    elif isinstance(result, (tuple, list)):
        for part in result:
            yield from _specs_in(part)


def _filled(result: Any, outs: Iterator[torch.Tensor], arguments: Mapping[str, Any]) -> Any:
    """Return a result in which each spec is replaced by a tensor, and each name of an argument by the argument."""
    if isinstance(result, Spec):
        return next(outs)
    if isinstance(result, Given):
        return arguments[result]
    if isinstance(result, (tuple, list)):
        return type(result)(_filled(part, outs, arguments) for part in result)
    return result


# Replacing


def _replace(name: str) -> _Replaced | None:
    """Replace the function of this name; return None if it is not imported, or cannot be replaced."""
    module, _, qualname = name.partition(":")
    if qualname.endswith(".apply"):
        return _replace_apply(name, looked_up(name.removesuffix(".apply")))
    function = looked_up(name)
    if isinstance(function, (staticmethod, classmethod)):
        function = function.__func__
    if isinstance(function, FunctionType):
        return _replace_code(name, function)
    # The function is written in C, or is the apply method of an autograd.Function under another name.
    if isinstance(function, (BuiltinFunctionType, MethodType)):
        return _replace_builtin(name, sys.modules[module], function)
    return None


def _replace_code(name: str, function: FunctionType) -> _Replaced | None:
    code = function.__code__
    # Copy the function with its current code, because the function itself gets other code below.
    original = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    original.__kwdefaults__ = function.__kwdefaults__
    handing_over = _code_handing_over(name, code)
    if handing_over is None:
        return None

    def restore() -> None:
        function.__code__ = code

    function.__code__ = handing_over
    return _Replaced(LibraryFunction(name, function), original, restore)


def _code_handing_over(name: str, code: CodeType) -> CodeType | None:
    """Return a code object with the parameters and free variables of ``code`` that passes its arguments to :func:`called`.

    Return None if the new code cannot replace ``code``: both must have the same free variables in the same order.
    """
    count, names, free = code.co_argcount, code.co_varnames, code.co_freevars
    positional, keywords = names[:count], names[count : count + code.co_kwonlyargcount]
    rest = list(names[count + len(keywords) :])
    star = rest.pop(0) if code.co_flags & inspect.CO_VARARGS else ""
    stars = rest.pop(0) if code.co_flags & inspect.CO_VARKEYWORDS else ""
    header = [*positional]
    if code.co_posonlyargcount:
        header.insert(code.co_posonlyargcount, "/")
    header += [f"*{star}"] if star else ["*"] if keywords else []
    header += [*keywords, *([f"**{stars}"] if stars else [])]
    args = "".join(f"{parameter}, " for parameter in [*positional, *([f"*{star}"] if star else [])])
    kwargs = "".join(f"{parameter!r}: {parameter}, " for parameter in keywords) + (f"**{stars}" if stars else "")
    lines = [
        f"def outer({', '.join(free)}):",
        f"    def handing({', '.join(header)}):",
        f"        from {__name__} import called as _called",
        *([f"        if 0: {', '.join(free)}"] if free else []),
        f"        return _called({name!r}, ({args}), {{{kwargs}}})",
        "    return handing",
    ]
    namespace: dict[str, Any] = {}
    exec(compile("\n".join(lines), f"<{name}, handed over>", "exec"), namespace)
    handing_over: CodeType = namespace["outer"](*free).__code__
    return handing_over if handing_over.co_freevars == free else None


def _replace_apply(name: str, cls: Any) -> _Replaced | None:
    if not (isinstance(cls, type) and issubclass(cls, torch.autograd.Function)) or "apply" in vars(cls):
        return None
    original = cls.apply

    def apply(*args: Any, **kwargs: Any) -> Any:
        return called(name, args, kwargs)

    def restore() -> None:
        del cls.apply

    cls.apply = staticmethod(apply)
    return _Replaced(LibraryFunction(name, original), original, restore)


def _replace_builtin(name: str, module: ModuleType, original: Any) -> _Replaced:
    attribute = name.partition(":")[2]

    def handing_over(*args: Any, **kwargs: Any) -> Any:
        return called(name, args, kwargs)

    def restore() -> None:
        setattr(module, attribute, original)

    setattr(module, attribute, handing_over)
    return _Replaced(LibraryFunction(name, original), original, restore)


def _restore() -> None:
    with _LOCK:
        while _REPLACED:
            _REPLACED.popitem()[1].restore()
