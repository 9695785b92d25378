"""Make the submodule calls inside TorchScript visible to hooks.

TorchScript's interpreter calls submodules itself, so Python hooks do not run. In a copy of the script, one operator runs before each call
of a submodule's forward, and another operator runs after it. These operators only call the submodule's hooks. The copy shares the user's
parameters and buffers; the user's own graphs do not change.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from functools import cache
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.jit import ScriptModule

from ..torch_internals import class_of_script, composite_name, graphs_by_name, inline, set_in_script
from .modules import modules_of

MARKS = set[Any]()
"""Operators that this file adds to scripts. They must not be counted as calls of the model. Empty until a script is counted."""


class _Calls:
    """The open submodule calls of one script. A module is None if it is not a named submodule of its caller."""

    def __init__(self, root: nn.Module) -> None:
        self.number = next(SCRIPTS)
        self._root = root
        self._open: list[nn.Module | None] = []
        OPEN[self.number] = self

    def enter(self, name: str) -> None:
        module: Any = self._open[-1] if self._open else self._root
        for step in name.split("."):
            # A script's _modules is not a dict: it has no get().
            module = module._modules[step] if module is not None and step in module._modules else None
        self._open.append(module)
        for hook, with_kwargs in _hooks_of(module, "_forward_pre_hooks"):
            hook(module, (), *[{}] * with_kwargs)

    def leave(self) -> None:
        module = self._open.pop()
        for hook, with_kwargs in _hooks_of(module, "_forward_hooks"):
            hook(module, (), *[{}] * with_kwargs, None)

    def begin(self, *_: Any) -> None:
        """Forget the calls of a run that raised."""
        self._open.clear()


OPEN: WeakValueDictionary[int, _Calls] = WeakValueDictionary()
SCRIPTS = count()


def _hooks_of(module: Any, kind: str) -> Iterator[tuple[Any, bool]]:
    if module is not None:
        takes = getattr(module, f"{kind}_with_kwargs")
        yield from [(hook, key in takes) for key, hook in getattr(module, kind).items()]


@cache
def _marks() -> torch.library.Library:
    """Register the two operators, and return their library. The cache keeps the library alive."""
    library = torch.library.Library("fxflops_script", "DEF")
    library.define("enter(int script, str name) -> ()")
    library.define("leave(int script) -> ()")
    library.impl("enter", lambda script, name: OPEN[script].enter(name), "CompositeExplicitAutograd")
    library.impl("leave", lambda script: OPEN[script].leave(), "CompositeExplicitAutograd")
    MARKS.update((torch.ops.fxflops_script.enter.default, torch.ops.fxflops_script.leave.default))
    return library


def with_calls_seen(script: ScriptModule) -> ScriptModule:
    """Return a copy of a script that calls its submodules' hooks. If it has no submodules or cannot be copied, return the script."""
    if not script._modules or script._forward_hooks or script._forward_pre_hooks:
        return script
    _marks()
    file = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.save(script, file)
            file.seek(0)
            copy: Any = torch.jit.load(file, map_location="cpu")
    except RuntimeError:  # not pure TorchScript: torch.jit.ignore, objects of custom classes
        return script
    originals, copies = modules_of(script)[0], modules_of(copy)[0]
    if [*originals.values()] != [*copies.values()]:
        return script
    for original, copied in zip(originals, copies, strict=True):
        for tensors in (original._parameters, original._buffers):
            for name, tensor in tensors.items():
                set_in_script(copied, name, tensor)
    calls = _Calls(copy)
    seen = set[tuple[str, str]]()
    for module in copies:
        for name, graph in graphs_by_name(module).items():
            class_and_method = class_of_script(module), name  # instances of a class share the class's graphs
            if class_and_method not in seen:
                seen.add(class_and_method)
                _mark(graph, calls.number)
    forward = graphs_by_name(copy).get("forward")
    if forward is not None:
        inline(forward)  # torch functions written in TorchScript have separate graphs
        _call_from_python(forward)
    copy.__dict__["_calls_seen"] = calls
    copy._forward_pre_hooks[BEGIN] = calls.begin
    return copy  # type: ignore[no-any-return]


BEGIN = "fxflops: begin"
FORWARD = re.compile(r"forward(\d+|__\d+)?")
"""Names of forward methods. In a trace, each overload, and each call of a module after its first call, is a separate method."""


def _mark(graph: Any, script: int) -> None:
    """In the graph of a method, insert the operator before each call of a submodule's forward, and the other operator after the call."""
    self_name = next(iter(graph.inputs())).debugName()
    blocks: list[Any] = [graph]
    for block in blocks:
        for node in [*block.nodes()]:
            blocks += node.blocks()
            if (
                node.kind() == "prim::CallMethod"
                and FORWARD.fullmatch(node.s("name"))
                and (name := _name(node, self_name))
            ):
                of_script, of_module = _constant(graph, script, node), _constant(graph, name, node)
                graph.create("fxflops_script::enter", [of_script, of_module], 0).insertBefore(node)
                graph.create("fxflops_script::leave", [of_script], 0).insertAfter(node)


def _constant(graph: Any, value: str | int, node: Any) -> Any:
    """Insert a constant before a node without moving the graph's insertion point; return its value."""
    constant = graph.create("prim::Constant")
    if isinstance(value, str):
        constant.s_("value", value)
    else:
        constant.i_("value", int(value))
    kinds: Any = {str: torch.StringType, int: torch.IntType, bool: torch.BoolType}
    constant.output().setType(kinds[type(value)].get())
    constant.insertBefore(node)
    return constant.output()


def _call_from_python(graph: Any) -> None:
    """Replace the composite operators in a graph. Each composite operator is replaced by an operator that calls the composite operator from
    Python, like a Python forward."""
    blocks: list[Any] = [graph]
    for block in blocks:
        for node in [*block.nodes()]:
            blocks += node.blocks()
            inputs = [*node.inputs()]
            if node.kind() == "aten::as_tensor" and len(inputs) == AS_TENSOR:
                inputs.append(_constant(graph, False, node))  # requires_grad, the last argument of torch.tensor
            if (operator := _composite(node) or _of_numbers(node)) is not None:
                replacement = graph.create(operator, inputs, node.outputsSize())
                replacement.insertBefore(node)
                for new_output, old_output in zip(replacement.outputs(), node.outputs(), strict=True):
                    new_output.setType(old_output.type())
                    old_output.replaceAllUsesWith(new_output)
                node.destroy()


@cache
def _python_operator(schema: str) -> str | None:
    """Return the name of an operator that calls a composite operator from Python. The composite operator is the one with this schema.

    Observers then see torch functions, as in a Python forward. For example, attention is a single call, whichever kernels the device uses.
    Return None if the operator is not composite, or if its results alias its arguments.
    """
    name = composite_name(schema)
    if name is None or "(a" in schema or "!" in schema or "Tensor" not in schema.rpartition("->")[2]:
        return None
    base_name, _, overload = name.removeprefix("aten::").partition(".")
    operator = getattr(getattr(torch.ops.aten, base_name), overload or "default")
    own_name = f"{base_name}__{overload}" if overload else base_name
    library = _marks()
    library.define(f"{own_name}({schema.partition('(')[2]}")
    library.impl(own_name, operator, "CompositeImplicitAutograd")
    return f"fxflops_script::{own_name}"


def _composite(node: Any) -> str | None:
    """Return the operator that replaces a node's composite operator; None if the node's operator is not composite."""
    if not node.kind().startswith("aten::") or node.schema() == "(no schema)":
        return None
    return _python_operator(node.schema())


AS_TENSOR = 3
"""The number of arguments of ``aten::as_tensor`` for plain numbers: data, dtype, device."""


@cache
def _tensor_operator(kind: str) -> str:
    """Return the name of an operator that makes a tensor from numbers in Python. TorchScript's own operator would not be observed."""
    library, name = _marks(), f"tensor_of_{kind.strip('[]')}{'s' * kind.endswith('[]')}"
    library.define(f"{name}({kind} data, ScalarType? dtype, Device? device, bool requires_grad) -> Tensor")
    library.impl(
        name,
        lambda data, dtype, device, requires_grad: torch.tensor(
            data, dtype=dtype, device=device, requires_grad=requires_grad
        ),
        "CompositeExplicitAutograd",
    )
    MARKS.add(getattr(torch.ops.fxflops_script, name).default)
    return f"fxflops_script::{name}"


def _of_numbers(node: Any) -> str | None:
    """Return the operator that replaces a node that makes a tensor from numbers; None for any other node."""
    if node.kind() not in ("aten::tensor", "aten::as_tensor"):
        return None
    numbers_kind = NUMBERS_IN.get(str(node.inputsAt(0).type()))
    return None if numbers_kind is None else _tensor_operator(numbers_kind)


NUMBERS_IN = {
    "float": "float",
    "int": "int",
    "bool": "bool",
    "List[float]": "float[]",
    "List[int]": "int[]",
    "List[bool]": "bool[]",
}
NUMBERS_IN |= {kind: kind for kind in ("float[]", "int[]", "bool[]")}
"""TorchScript's names of types of numbers, mapped to their names in schemas."""


def _name(call: Any, self_name: str) -> str:
    """Return the path of the called module relative to ``self`` of the calling method. Return "" if ``self`` does not contain the module."""
    value, steps = call.inputsAt(0), list[str]()
    while value.node().kind() == "prim::GetAttr":
        steps.append(value.node().s("name"))
        value = value.node().inputsAt(0)
    return ".".join(reversed(steps)) if value.debugName() == self_name else ""
