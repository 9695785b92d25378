"""Derive the nodes that a torch.jit trace would have from recorded calls, without tracing the model. fvcore counts such nodes and passes
them to its handles."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import nn

from ..conventions._rows import DIMS
from ..counting.counts import is_by_user_formula
from ..ops import BASE
from ..ops._extend import first
from ..ops.elementwise import ALIASES as ELEMENTWISE
from ..ops.mappings import computes_nothing
from ..records import SCRIPT, Call, Counted, Spec, specs_in
from ..torch_internals import OpOverload, OpOverloadPacket
from ._fvcore_values import Value


class JitNode(NamedTuple):
    """One operator in a trace: its kind ("aten::add"), its inputs and outputs, and the path of the module that calls it.

    ``call`` is the index of the call that the node belongs to. ``flops`` are the FLOPs of the call under the convention; if a call has
    several nodes, the call's FLOPs are all in the first node. ``is_by_user_formula`` is True if the call is counted by a formula that the user
    registered with fxflops.
    """

    kind: str
    inputs: list[Value]
    outputs: list[Value]
    path: str
    flops: int
    call: int
    is_by_user_formula: bool = False


def nodes_of(calls: Iterable[Counted]) -> Iterator[JitNode]:
    """Yield the nodes of the calls. If a call has several nodes, the node with the FLOPs comes first."""
    in_script = ""
    for position, counted in enumerate(calls):
        if counted.call.origin == SCRIPT:  # a trace shows a scripted function as one node, without its operators
            place = f"in {counted.call.path}"
            if place != in_script:
                yield JitNode("prim::CallFunction", [], [], counted.call.path, 0, position)
            in_script = place
            continue
        in_script = ""
        for part, (kind, arguments, outs) in enumerate(_parts(counted.call)):
            kind = kind if "::" in kind else f"aten::{_normalized(kind)}"
            values = [Value(value, f"{position}.{part}.{i}") for i, value in enumerate(arguments)]
            results = [
                Value(value, f"{position}.{part}.out{i}", kind.partition(".")[0]) for i, value in enumerate(outs)
            ]
            flops = 0 if part else counted.flops
            yield JitNode(
                kind, values, results, counted.call.path, flops, position, is_by_user_formula(counted.call, BASE)
            )


def _parts(call: Call) -> Iterator[tuple[str, list[Any], Sequence[Any]]]:
    """Yield the name, the arguments and the results of each node of a call."""
    out = call.out
    if isinstance(call.target, (OpOverload, OpOverloadPacket)):
        packet = call.target if isinstance(call.target, OpOverloadPacket) else call.target.overloadpacket
        returns = getattr(packet, packet.overloads()[0])._schema.returns
        name = packet._qualified_op_name.removeprefix("aten::")
        if name == "alias":  # torch.jit does not trace alias
            return
        if name in CONVOLUTIONS:
            by_word = any(isinstance(value, str) for value in (*call.args, *call.kwargs.values()))
            name = "_convolution_mode" if by_word else "_convolution"
        yield name, [*call.args, *call.kwargs.values()], out if len(returns) > 1 else [out]
        return
    if call.op == "forward" and isinstance(call.target, FunctionType):  # the forward of an autograd.Function
        tensors = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, Spec)]
        yield f"prim::PythonOp.{_name_of_python_op(call)}", tensors, [out]
        return
    if call.op in NO_NODES:
        return
    given, result = _given(call), first(out) if isinstance(out, tuple) and out else out
    if call.op in CELLS:
        yield from _products(given, result)
    else:
        name = _name(call, given)
        yield name, _in_order(name, given), [result]
    for name in _others(call, given):
        yield name, [result], [result]


def python_ops() -> dict[FunctionType, Callable[..., int]]:
    """Map the forward of every autograd.Function outside torch to a formula that counts 0. In a trace, such a forward is one node."""
    return {
        cls.forward: computes_nothing
        for cls in _subclasses(torch.autograd.Function)
        if isinstance(cls.forward, FunctionType) and cls.__module__.partition(".")[0] != torch.__name__
    }


def _subclasses(cls: Any) -> Iterator[Any]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _name_of_python_op(call: Call) -> str:
    """Return the name of an autograd.Function's class, from the context passed to its forward, or else from the forward's qualified name."""
    known = re.fullmatch(r"<(\w+)Backward>", str(call.args[0]) if call.args else "")
    return known[1] if known else call.target.__qualname__.rpartition(".")[0].rpartition(".")[2]


def _products(given: Mapping[str, Any], out: Spec) -> Iterator[tuple[str, list[Any], Sequence[Any]]]:
    """Yield the two linear layers of an RNN cell: one for the cell's input, and one for the cell's state."""
    state = first(given["hx"]) if given.get("hx") is not None else out
    for operand, side in ((given["input"], "ih"), (state, "hh")):
        weight, bias = (given.get(f"{kind}_{side}", given.get(f"{kind[0]}_{side}")) for kind in ("weight", "bias"))
        yield "linear", [operand, weight, bias], [Spec((*out[:-1], weight[0]), out.dtype)]


def _others(call: Call, given: Mapping[str, Any]) -> tuple[str, ...]:
    """If a trace shows several nodes for one call, return the names of all nodes but the first."""
    if call.op == "conv" and given.get("padding_mode", "zeros") != "zeros":
        return ("pad",)
    if call.op == "batch_norm" and given.get("num_batches_tracked") is not None and given["training"]:
        return ("add_",)
    if call.op == "rnn_cell" and "relu" in (given.get("nonlinearity"), getattr(call.target, "__name__", "")[4:8]):
        return ("add_", "relu")
    return OTHERS.get(getattr(call.target, "__name__", ""), OTHERS.get(call.op, ()))


def _given(call: Call) -> dict[str, Any]:
    """Return the arguments of a call by name. For a module, include the module's settings and tensors."""
    if call.op == "einsum":
        equation = call.args[0] if isinstance(call.args[0], str) else None
        return {"equation": equation, "tensors": tuple(specs_in(call.args)), "path": None}
    is_module = isinstance(call.target, type)
    names = _parameters(getattr(call.target, "forward", None))[1:] if is_module else _parameters(call.target)
    settings = {name.lstrip("_"): value for name, value in call.settings.items()}
    return {**settings, **dict(zip(names, call.args, strict=False)), **call.kwargs}


def _parameters(function: Any) -> list[str]:
    """Return the names of a function's parameters from its signature, or else from its schema. If a function has neither a signature nor a
    schema, return "input" and "other"."""
    try:
        return [*inspect.signature(function).parameters]
    except (TypeError, ValueError):
        schema = _schema(getattr(function, "__name__", ""))
        return [argument.name for argument in schema.arguments] if schema is not None else ["input", "other"]


def _in_order(name: str, given: Mapping[str, Any]) -> list[Any]:
    """Return the arguments in the order of the aten operator's schema, with its defaults. Without such an operator, keep their order."""
    schema = _schema(name)
    if schema is None:
        return list(given.values())
    values = []
    for argument in schema.arguments:
        default = argument.default_value if argument.has_default_value() else None
        names = (argument.name, *ALIASES.get(argument.name, ()))
        values.append(next((given[name] for name in names if name in given), default))
    if values and not isinstance(values[0], (Spec, tuple)):
        values[0] = next((value for value in given.values() if isinstance(value, Spec)), values[0])
    return values


def _schema(name: str) -> Any:
    """Return the schema of an aten operator, preferably the schema of its "Tensor" overload; None if there is no such operator."""
    packet = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, OpOverloadPacket):
        return None
    overloads = packet.overloads()
    overload = next((one for one in ("Tensor", "default", "int") if one in overloads), overloads[0])
    return getattr(packet, overload)._schema


def _name(call: Call, given: Mapping[str, Any]) -> str:
    """Return the name that a trace shows for the aten operator of a call."""
    if call.op == "setitem":
        return "copy_" if isinstance(call.args[-1], Spec) else "fill_"
    if call.op in ("conv", "conv_transpose"):
        by_word = isinstance(given.get("padding"), str) and given.get("padding_mode", "zeros") == "zeros"
        return "_convolution_mode" if by_word else "_convolution"
    if call.op == "interpolate" and isinstance(call.target, (type, FunctionType)):
        return _resampling(call, given)
    if isinstance(call.target, type):
        name = _snake(call.target) if call.op in BY_CLASS else {"relu6": "hardtanh"}.get(call.op, call.op)
    else:
        name = _plain(getattr(call.target, "__name__", call.op))
        if getattr(call.target, "__module__", "").startswith("torchvision."):
            return f"torchvision::{name}"
    if name == "rnn":
        name = f"rnn_{given.get('nonlinearity', 'tanh')}"
    name = NAMES.get(name, name)
    return f"{name}_" if given.get("inplace") is True and not name.endswith("_") else name


def _resampling(call: Call, given: Mapping[str, Any]) -> str:
    """Return the name of the operator that F.interpolate calls."""
    dims = first(call.out).ndim - 2
    mode = given.get("mode", "nearest")
    if mode == "area":
        return f"adaptive_avg_pool{dims}d"
    name = "_upsample_nearest_exact" if mode == "nearest-exact" else f"upsample_{mode}"
    return f"_{name}{dims}d_aa" if given.get("antialias") else f"{name}{dims}d"


def _plain(name: str) -> str:
    """Return the aten name of a method: ``add`` for ``__radd__``, ``add_`` for ``__iadd__`` and ``iadd``."""
    name = name.removeprefix("__").removesuffix("__")
    if name in NAMES:
        return NAMES[name]
    stem = NAMES.get(name[1:], name[1:])
    if name[:1] == "i" and stem in ARITHMETIC:
        return f"{stem}_"
    return stem if name[:1] == "r" and stem in ARITHMETIC and stem != "sub" else name


def _normalized(name: str) -> str:
    """Return the canonical name by which a trace shows an operator: ``mul_`` for ``multiply_``, ``sigmoid`` for ``special_expit``."""
    base = name.removesuffix("_")
    stem = base.removeprefix("special_")
    known = NORMALIZED.get(stem, stem)
    return known + name[len(base) :] if known != base and hasattr(torch.ops.aten, known) else name


def _snake(cls: type) -> str:
    """Return the name of a class in snake case, ``max_pool2d`` for ``MaxPool2d``. For a subclass, use torch's class that it inherits from."""
    known = next((base for base in cls.__mro__ if base.__module__.startswith(nn.__name__)), cls)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", known.__name__).lower()


ARITHMETIC = ("add", "sub", "mul", "div", "matmul", "pow", "floor_divide", "remainder")
ALIASES = {"self": ("input", "x"), "input": ("self", "x"), "other": ("mat2",), "mat2": ("other",)}
CONVOLUTIONS = ("convolution", *(f"conv{kind}{dims}d" for kind in ("", "_transpose") for dims in DIMS))
"""Operators that a trace shows as ``_convolution`` or ``_convolution_mode``."""
NO_NODES = ("identity", "_assert", "tensor", "as_tensor")
BY_CLASS = (
    *("avg_pool", "max_pool", "adaptive_avg_pool", "adaptive_max_pool"),
    *("pixel_shuffle", "fold", "flatten", "dropout"),
)
"""Ops for which a trace shows the name of the module's class, in snake case."""
CELLS = ("lstm_cell", "gru_cell", "rnn_cell")
OTHERS: dict[str, tuple[str, ...]] = {
    "lstm_cell": ("add_", "unsafe_chunk", *["sigmoid_"] * 3, "tanh_", *["mul"] * 3, "add_", "tanh"),
    "gru_cell": (*["unsafe_chunk"] * 2, *["add_", "sigmoid_"] * 2, *["mul_"] * 2, "add_", "tanh_", "sub", "add"),
    "rnn_cell": ("add_", "tanh"),
    **dict.fromkeys(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"), ("broadcast_tensors",)),
    "softmin": ("neg",), "softsign": ("abs", "add"), "tanhshrink": ("tanh",), "__rdiv__": ("reciprocal",),
}  # fmt: skip
"""The names of the nodes after the first, for calls that a trace shows as several nodes."""
NAMES = {
    **dict.fromkeys(("float", "double", "half", "bfloat16", "int", "long", "bool", "cuda", "cpu", "type"), "to"),
    **dict.fromkeys(("dropout1d", "dropout2d", "dropout3d"), "feature_dropout"),
    **dict.fromkeys(("swapaxes", "swapdims"), "transpose"),
    "truediv": "div", "true_divide": "div", "rdiv": "mul", "floordiv": "floor_divide", "mod": "remainder",
    "and": "__and__", "or": "__or__", "xor": "__xor__", "invert": "bitwise_not", "getitem": "index",
    "grid_sample": "grid_sampler", "affine_grid": "affine_grid_generator", "_threshold": "threshold",
    "fold": "col2im", "unfold": "im2col", "norm": "linalg_vector_norm", "cross_entropy": "cross_entropy_loss",
    "nll_loss": "nll_loss_nd", "softmin": "softmax", "softsign": "div", "tanhshrink": "sub",
}  # fmt: skip
"""Maps the name of a torch function or method to its name in a trace, if the two differ."""
NORMALIZED = {
    **ELEMENTWISE, "multiply": "mul", "divide": "div", "subtract": "sub", "expit": "sigmoid", "concat": "cat", "concatenate": "cat",
    "row_stack": "vstack", "ger": "outer", "moveaxis": "movedim", "linalg_matmul": "matmul",
    **{name: f"linalg_{name}" for name in ("det", "matrix_exp", "matrix_power")}, "inverse": "linalg_inv",
    **{f"{name}_max_pool{dims}d_with_indices": f"{name}_max_pool{dims}d" for name in ("adaptive", "fractional") for dims in DIMS},
}  # fmt: skip
"""Maps aliases of operators to the canonical names that torch.jit uses instead."""
