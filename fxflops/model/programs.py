"""Turn a ``torch.export`` program into a module to count: a tree of the modules that the program's metadata names.

    Program                       the root; its forward takes the inputs of the exported model
      Body                        the steps of one call of a module, in order
        Step                      one operator of the program, called as if from the author's line
        Step whose target is ...  a Part: a module of the exported model, with a Body for each of its calls

``torch.export`` writes the calls of all modules into one flat graph. For each node, ``torch.export`` records the enclosing module calls
(``node.meta["nn_module_stack"]``: call -> (path, class)) and the author's lines (``node.meta["stack_trace"]``). Consecutive nodes of one
module call become a module again, with the recorded path and class name. So hooks see the call with its inputs and outputs. Nothing is
copied: parameters and buffers are the program's own tensors.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, reduce
from itertools import groupby, takewhile
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from ..errors import InputError
from ..torch_internals import children_of, expression_of, is_persistent, tree_flatten, tree_unflatten

UNTRACKED = "_empty_nn_module_stack_from_metadata_hook"
"""A node whose ``nn_module_stack`` has this key has no known module stack."""
INDEX = re.compile(r"\[['\"]?([^'\"\]]*)['\"]?\]")
LINE = re.compile(r'^\s*File "(.+)", line (\d+), in (.+)$', re.M)
OF_TORCH = re.compile(
    r"(^|[/\\])torch[/\\](nn|_[a-z]\w*|fx|functional\.py|overrides\.py|utils|export|ao|_tensor\.py)([/\\]|$)|^<"
)
"""A pattern for torch's own files. It does not depend on where torch was installed when the program was exported."""

POSITIONAL, NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


def is_program(model: Any) -> bool:
    """Return whether a model is an ``ExportedProgram``. This does not import torch.export, since the import would take a second."""
    exported = sys.modules.get("torch.export.exported_program")
    return exported is not None and isinstance(model, exported.ExportedProgram)


class ProgramInput(NamedTuple):
    """A leaf of a program's nested inputs.

    ``sizes`` is the shape of a tensor input; a size that may vary is a sympy expression. For any other input, ``sizes`` is None,
    and ``constant`` is the value that the export wrote into the program.
    """

    name: str
    sizes: tuple[Any, ...] | None
    dtype: torch.dtype | None
    constant: Any = None

    def example(self, ranges: Mapping[str, tuple[int | None, int | None]] | None = None) -> tuple[int, ...]:
        """Return a shape that fits. For a size that may vary, choose the smallest allowed value that is at least 2."""
        chosen = {}
        for symbol in {symbol for size in self.sizes or () for symbol in _symbols(size)}:
            least, most = (ranges or {}).get(str(symbol), (None, None))
            chosen[symbol] = min(max(least or 0, 2), most or sys.maxsize)
        return tuple(size if isinstance(size, int) else int(size.subs(chosen)) for size in self.sizes or ())

    def example_text(self, ranges: Mapping[str, tuple[int | None, int | None]]) -> str:
        if self.sizes is None:
            return repr(self.constant)
        dtype = "" if self.dtype is torch.float32 else f", dtype={self.dtype}"
        return f"torch.zeros({self.example(ranges)}{dtype})"

    def text(self) -> str:
        sizes = ", ".join(map(str, self.sizes or ()))
        return f"{self.name} {str(self.dtype).removeprefix('torch.')}[{sizes}]"


def _shown(spec: Any, names: Sequence[str] = ()) -> str:
    """Return nested args and kwargs as text, with names in place of the leaves."""
    names = names or ["tensor"] * spec.num_leaves
    args, kwargs = tree_unflatten([*map(_Name, names)], spec)
    return ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]).join("()")


class _Name(str):
    """A string whose ``repr`` has no quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _symbols(size: Any) -> set[Any]:
    """Return the symbols in a size."""
    return set() if isinstance(size, int) else {*size.free_symbols}


PLAIN = (int, float, bool, str, type(None))


class _Value:
    """A placeholder in a step's arguments for a value computed in the run."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class _ModuleTensor:
    """A placeholder in a step's arguments for a module's tensor: a parameter, a buffer or a constant."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: nn.Module, name: str) -> None:
        self.owner = owner
        self.name = name


class _Next:
    """The body that the next call of a part runs."""

    __slots__ = ("body",)

    def __init__(self) -> None:
        self.body: Any = None


class _Step(NamedTuple):
    """One step of a body. The step calls ``target``, stores the result in the place or tuple of places ``gives``, and drops the values ``done``.

    If ``target`` is a :class:`Part`, it runs ``body``.
    """

    target: Any
    args: Any
    kwargs: Any
    gives: Any
    done: tuple[int, ...]
    call: Callable[[Any, Any, Any], Any]
    body: _Body | None = None


class _Body(NamedTuple):
    """The steps that compute the result ``out`` from the input values ``takes``."""

    takes: tuple[int, ...]
    steps: tuple[_Step, ...]
    out: Any

    def run(self, values: Iterable[Any], upcoming: _Next) -> Any:
        values_now = dict(zip(self.takes, values, strict=True))
        del values
        for step in self.steps:
            if step.body is not None:
                upcoming.body = step.body
            result = step.call(step.target, _filled(step.args, values_now), _filled(step.kwargs, values_now))
            if type(step.gives) is tuple:
                values_now.update(zip((place.number for place in step.gives), result, strict=True))
            else:
                values_now[step.gives.number] = result
            del result
            for number in step.done:
                del values_now[number]
        return _filled(self.out, values_now)


class Part(nn.Module):
    """A module of the exported model. Its class is a subclass with the original class's name."""

    def __init__(self, upcoming: _Next) -> None:
        super().__init__()
        self.upcoming = upcoming

    def forward(self, *values: Any) -> Any:
        return self.upcoming.body.run(values, self.upcoming)


class _Subgraph:
    """A graph that is an argument of a higher-order operator, e.g. a branch of ``cond`` or the code under ``no_grad``."""

    def __init__(self, body: _Body, upcoming: _Next, names: Iterable[str]) -> None:
        self._run = body.run
        self._upcoming = upcoming
        # flex_attention reads the signature to distinguish a score_mod from a mask_mod.
        self.__signature__ = inspect.Signature([inspect.Parameter(name, POSITIONAL) for name in names])

    def __call__(self, *values: Any) -> Any:
        return self._run(values, self._upcoming)


class Program(nn.Module):
    """A ``torch.export`` program as a module, to be counted like the exported model.

    ``inputs`` are the leaves of the program's nested inputs. ``ranges`` maps each symbol in their sizes to its smallest and largest
    value. ``examples`` are the args and kwargs of the export, or None if the file does not contain them.
    """

    def __init__(self, program: Any) -> None:
        super().__init__()
        module = program.module()
        self.in_spec, self.out_spec = program.call_spec.in_spec, program.call_spec.out_spec
        self.inputs = tuple(map(_input_of, module.graph.find_nodes(op="placeholder")))
        ranges = program.range_constraints.items()
        self.ranges = {str(symbol): (_bound(r.lower), _bound(r.upper)) for symbol, r in ranges}
        self.examples: tuple[Any, Any] | None = program.example_inputs
        self.signature = self._signature([*inspect.signature(module.forward).parameters])
        if not self.has_nested():  # the names of placeholders differ from forward's parameters: input_1 for input
            names = zip(self.signature.parameters, self.inputs, strict=True)
            self.inputs = tuple(each._replace(name=name) for name, each in names)
        self.upcoming = _Next()
        self._body = _Builder(self, module).body()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program. The nesting and the names of the inputs must be as in the export."""
        out = self._body.run(self.leaves(args, kwargs), self.upcoming)
        return tree_unflatten(out, self.out_spec)

    def leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the leaves of the inputs. Raises InputError if the inputs are not nested as in the export."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        leaves, spec = tree_flatten((bound.args, bound.kwargs))
        if spec != self.in_spec:
            raise InputError(f"inputs must be nested as in the export: {self._nested_names()}, not {_shown(spec)}")
        return leaves

    def _nested_names(self) -> str:
        return _shown(self.in_spec, [each.name for each in self.inputs])

    def nested(self, leaves: Sequence[Any]) -> tuple[Any, Any]:
        """Return args and kwargs with these leaves, nested as in the export."""
        args, kwargs = tree_unflatten([*leaves], self.in_spec)
        return args, kwargs

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise InputError for inputs whose sizes or constants do not fit the program."""
        sizes: dict[Any, int] = {}
        expressions: list[tuple[ProgramInput, int, Any, int]] = []
        for program_input, value in zip(self.inputs, self.leaves(args, kwargs), strict=True):
            if program_input.sizes is None:
                if isinstance(program_input.constant, PLAIN) and (type(value), value) != (
                    type(program_input.constant),
                    program_input.constant,
                ):
                    raise InputError(
                        f"{program_input.name} must be {program_input.constant!r}, as in the export, not {value!r:.60}"
                    )
                continue
            if not isinstance(value, torch.Tensor):
                raise InputError(
                    f"input {program_input.text()} must be a tensor, not {type(value).__name__} ({value!r:.60})"
                )
            if value.ndim != len(program_input.sizes):
                raise InputError(
                    f"{self._not_fitting(program_input, value)}: the input must have {len(program_input.sizes)} dimensions"
                )
            for dim, (size, actual) in enumerate(zip(program_input.sizes, value.shape, strict=True)):
                if isinstance(size, int):
                    if size != actual:
                        raise InputError(
                            f"{self._not_fitting(program_input, value)}: torch.export.export fixed size {dim} as {size}; "
                            f"to allow other sizes, export with dynamic_shapes"
                        )
                elif size.is_Symbol and size not in sizes:
                    least, most = self.ranges.get(str(size), (None, None))
                    if (least is not None and actual < least) or (most is not None and actual > most):
                        raise InputError(f"{self._not_fitting(program_input, value)}: {self._range(size)}")
                    sizes[size] = int(actual)
                else:
                    expressions.append((program_input, dim, value, int(actual)))
        for program_input, dim, value, actual in expressions:
            expected = program_input.sizes[dim].subs(sizes)  # type: ignore[index]
            if expected.is_number and int(expected) != actual:
                raise InputError(
                    f"{self._not_fitting(program_input, value)}: size {dim} must be {expected}, to match other inputs"
                )

    def _not_fitting(self, program_input: ProgramInput, value: torch.Tensor) -> str:
        return f"the program takes {program_input.text()}, not {list(value.shape)}"

    def varying(self) -> str:
        """Return a sentence that lists the input sizes that may vary, each with its range. If all sizes are fixed, return ""."""
        symbols = {str(s): s for each in self.inputs for size in each.sizes or () for s in _symbols(size)}
        if not symbols:
            return ""
        wanted = ", ".join(each.text() for each in self.inputs if any(map(_symbols, each.sizes or ())))
        return f"choose sizes for the program's inputs: {wanted}; {', '.join(map(self._range, symbols.values()))}"

    def _range(self, symbol: Any) -> str:
        least, most = self.ranges.get(str(symbol), (None, None))
        if most is None or most >= sys.maxsize - 1:
            return f"{symbol} is {least} or more" if least else f"{symbol} is any size"
        return f"{symbol} is from {least or 0} to {most}"

    def has_nested(self) -> bool:
        """Return whether some parameter of forward takes nested inputs, with several leaves."""
        return len(self.inputs) != len(self.signature.parameters)

    def is_batch_alone(self) -> bool:
        """Return whether only the batch size may vary. If only the batch size may vary, all sizes that may vary are one symbol, the first
        size of every tensor input."""
        symbols = {s for each in self.inputs for size in each.sizes or () for s in _symbols(size)}
        tensors = [each.sizes for each in self.inputs if each.sizes]
        return len(symbols) == 1 and all(sizes[0] in symbols and not any(map(_symbols, sizes[1:])) for sizes in tensors)

    def example_call(self) -> str:
        """Return example args and kwargs, with sizes that fit, as Python code."""
        args, kwargs = self.nested([_Name(each.example_text(self.ranges)) for each in self.inputs])
        text = repr(args[0]) if len(args) == 1 and not isinstance(args[0], tuple) else repr(args)
        return f"{text}, kwargs={kwargs!r}" if kwargs else text

    def _signature(self, written: list[str]) -> inspect.Signature:
        """Return the signature of forward, with the exported model's parameter names. The default of a constant input is the
        constant."""
        positional, named = children_of(self.in_spec)
        names = written if len(written) == positional.num_children + named.num_children else []
        names = names or [f"arg{i}" for i in range(positional.num_children)]
        parameters = []
        leaves = iter(self.inputs)
        for i, spec in enumerate((*children_of(positional), *children_of(named))):
            own_leaves = [next(leaves) for _ in range(spec.num_leaves)]
            is_constant = all(each.sizes is None for each in own_leaves)
            default = (
                tree_unflatten([each.constant for each in own_leaves], spec) if is_constant else inspect.Parameter.empty
            )
            named_index = i - positional.num_children
            name, kind = (names[i], POSITIONAL) if named_index < 0 else (named.context[named_index], NAMED)
            parameters.append(inspect.Parameter(name, kind, default=default))
        # In Python no parameter without a default may follow one with a default.
        for i, parameter in enumerate(parameters):
            if any(later.kind is POSITIONAL and later.default is later.empty for later in parameters[i:]):
                parameters[i] = parameter.replace(default=inspect.Parameter.empty)
        return inspect.Signature(parameters)


def program_module(program: Any) -> Program:
    """Return an exported program as a module. The class name of the module is the class name of the exported model."""
    classes = (name for node in program.graph.nodes for path, name in _stack(node).values() if not path)
    module: Program = _class_of(next(classes, "ExportedProgram"), Program)(program)
    return module


@cache
def _class_of(name: str, base: type[nn.Module]) -> Any:
    """Return a subclass of ``base`` with this name."""
    return type(name, (base,), {"__doc__": base.__doc__})


Calls = list[tuple[str, tuple[str, str]]]
Stack = Mapping[str, tuple[str, str]]
"""The module calls that enclose a node, the outermost first. Keys identify calls; values are the module's path and class name."""


class _Builder:
    """Rebuild the module tree below ``root`` from the module stacks of the nodes of a flat graph."""

    def __init__(self, root: Program, module: fx.GraphModule) -> None:
        self.root = root
        self.module = module
        self._parts: dict[str, nn.Module] = {"": root}
        self._tensors: dict[Any, torch.Tensor] = {}

    def body(self) -> _Body:
        """Create the parts with their tensors; return the body of the whole graph."""
        classes = {path: name for stack in _all_stacks(self.module) for path, name in stack.values()}
        holders = {
            path: module for path, module in self.module.named_modules() if type(module) is nn.Module or not path
        }
        for path in (*classes, *holders):
            self._make(path, classes)
        for path, module in holders.items():
            part = self._parts[path]
            for name, parameter in module._parameters.items():
                part.register_parameter(name, self._first(parameter))
            for name, buffer in module._buffers.items():
                part.register_buffer(name, self._first(buffer), is_persistent(module, name))
        return self._body_of_graph(self.module, {})

    def _make(self, path: str, classes: Mapping[str, str]) -> nn.Module:
        """Return the part at this path. A container that was never called has an unknown class and gets the class name "Module"."""
        if path not in self._parts:
            above, _, name = path.rpartition(".")
            holder = self._make(above, classes)
            part = _class_of(classes.get(path, "Module"), Part)(self.root.upcoming)
            holder._modules[name] = self._parts[path] = part
        return self._parts[path]

    def _first(self, tensor: Any) -> Any:
        """Return the first tensor with the same memory, layout and dtype as this tensor, because a file may list tied weights twice."""
        if tensor is None or tensor.layout is not torch.strided or tensor.is_meta or not tensor.numel():
            return tensor
        layout = tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride()
        return self._tensors.setdefault((*layout, tensor.dtype, type(tensor)), tensor)

    def _body_of_graph(self, module: fx.GraphModule, around: Stack) -> _Body:
        """Return the body of a graph. ``around`` are the module calls that enclose the graph of a higher-order operator."""
        nodes = [node for node in module.graph.nodes if node.op not in ("placeholder", "output")]
        called = [node for node in nodes if node.op != "get_attr" and not _is_guard(node)]
        stacks = dict(zip(called, _completed(map(_stack, called)), strict=True))
        places: dict[fx.Node, Any] = {node: _Value(number) for number, node in enumerate(module.graph.nodes)}
        for node in nodes:
            if node.op == "get_attr":
                users = [_stack(user) for user in node.users if user.op == "call_function"]
                places[node] = self._attribute(module, str(node.target), users[0] if users else {})
        nodes_with_calls = [
            (node, [call for call in stacks[node].items() if call[0] not in around and call[1][0]]) for node in called
        ]
        (out,) = module.graph.find_nodes(op="output")
        return _Layout(places, self._parts).body(
            nodes_with_calls, module.graph.find_nodes(op="placeholder"), out.args[0], 0
        )

    def _attribute(self, module: fx.GraphModule, target: str, around: Stack) -> Any:
        """Return a placeholder if the attribute is a tensor of the program, and a :class:`_Subgraph` if it is a graph. Return any other
        attribute unchanged."""
        path, _, name = target.rpartition(".")
        value = reduce(getattr, target.split("."), module)
        if isinstance(value, fx.GraphModule):
            names = [node.name for node in value.graph.find_nodes(op="placeholder")]
            return _Subgraph(self._body_of_graph(value, around), self.root.upcoming, names)
        is_held = module is self.module and path in self._parts and hasattr(self._parts[path], name)
        return _ModuleTensor(self._parts[path], name) if is_held else value


class _Layout:
    """Turn nodes into steps. ``places`` maps each node to the placeholder of its result, and ``parts`` maps paths to modules."""

    def __init__(self, places: Mapping[fx.Node, Any], parts: Mapping[str, nn.Module]) -> None:
        self._places = places
        self._parts = parts

    def body(self, nodes: list[tuple[fx.Node, Calls]], takes: Iterable[fx.Node], out: Any, depth: int) -> _Body:
        """Return the body that runs these nodes. The outermost ``depth`` of the module calls around the nodes are already open.

        ``out`` is the result: nodes, possibly in nested containers.
        """
        takes = [*takes]
        units = [*self._units(nodes, depth)]
        results = {*_nodes_in(out)}
        # Drop a value after the last step that uses the value, as Python drops temporaries.
        last_use = {node: i for i, (used_nodes, _, _) in enumerate(units) for node in used_nodes}
        steps = []
        for i, (used_nodes, computed, step) in enumerate(units):
            dead = [node for node in used_nodes if last_use[node] == i and node not in results]
            dead += [node for node in computed if node not in last_use and node not in results]
            steps.append(step._replace(done=tuple(self._places[node].number for node in dead)))
        return _Body(tuple(self._places[node].number for node in takes), tuple(steps), self._template(out))

    def _units(
        self, nodes: list[tuple[fx.Node, Calls]], depth: int
    ) -> Iterator[tuple[list[fx.Node], list[fx.Node], _Step]]:
        """For each step, yield three things: the nodes whose values the step uses, the nodes that the step computes, and the step itself."""
        for calls, group in groupby(nodes, lambda each: each[1][depth : depth + 1]):
            members = [*group]
            if not calls:
                for node, _ in members:
                    yield self._used(node), [node], self._operator(node)
                continue
            member_nodes = {node for node, _ in members}
            all_used = [used for node, _ in members for used in self._used(node)]
            used_nodes = [*dict.fromkeys(used for used in all_used if used not in member_nodes)]
            computed = [node for node, _ in members if any(user not in member_nodes for user in node.users)]
            out: Any = computed[0] if len(computed) == 1 else tuple(computed)
            path = calls[0][1][0]
            step = _Step(
                self._parts[path], self._template(tuple(used_nodes)), {}, self._template(out), (), _caller("", 1, "")
            )
            yield used_nodes, computed, step._replace(body=self.body(members, used_nodes, out, depth + 1))

    def _operator(self, node: fx.Node) -> _Step:
        """Return the step for an operator node."""
        target, args = node.target, node.args
        if node.op == "call_method":
            target = _Method(str(target))
        elif node.op != "call_function":
            raise InputError(
                f"cannot count a node of the program, because torch.export never writes such a node: {node.format_node()}"
            )
        call = _caller(*_author_line(node.meta.get("stack_trace") or ""))
        return _Step(target, self._template(args), self._template(node.kwargs), self._places[node], (), call)

    def _used(self, node: fx.Node) -> list[fx.Node]:
        """Return the nodes whose values a node uses, except tensors of the program."""
        return [each for each in node.all_input_nodes if isinstance(self._places[each], _Value)]

    def _template(self, value: Any) -> Any:
        """Return the arguments with each node replaced by its placeholder."""
        if isinstance(value, fx.Node):
            return self._places[value]
        if isinstance(value, (tuple, list)):
            parts = [self._template(each) for each in value]
            return tuple(parts) if isinstance(value, tuple) else parts
        if isinstance(value, dict):
            return {key: self._template(each) for key, each in value.items()}
        if isinstance(value, slice):
            return slice(*map(self._template, (value.start, value.stop, value.step)))
        return value


def _filled(template: Any, values: Mapping[int, Any]) -> Any:
    """Return the arguments with each placeholder replaced by its value."""
    kind = type(template)
    if kind is _Value:
        return values[template.number]
    if kind is _ModuleTensor:
        return getattr(template.owner, template.name)
    if kind is tuple:
        return tuple([_filled(each, values) for each in template])
    if kind is list:
        return [_filled(each, values) for each in template]
    if kind is dict:
        return {key: _filled(each, values) for key, each in template.items()}
    if kind is slice:
        return slice(*[_filled(each, values) for each in (template.start, template.stop, template.step)])
    return template


class _Method:
    """A function that calls a method of its first argument."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, owner: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(owner, self._name)(*args, **kwargs)


def _stack(node: fx.Node) -> Stack:
    """Return the module calls that enclose a node; {} if torch recorded no calls."""
    written = node.meta.get("nn_module_stack") or {}
    if UNTRACKED in written:
        return {}
    return {key: (_path(path), _class_name(cls)) for key, (path, cls) in written.items()}


def _path(written: str) -> str:
    """Return a module's path, e.g. ``layers.0`` for Dynamo's ``L['self'].layers[0]``. In a branch of ``cond``, Dynamo adds
    ``_export_root``."""
    return INDEX.sub(r".\1", written.removeprefix("L['self']").removeprefix("_export_root")).strip(".")


def _class_name(cls: Any) -> str:
    name = cls.__name__ if isinstance(cls, type) else str(cls).rpartition(".")[2]
    return name if name.isidentifier() else "Module"


def _completed(stacks: Iterable[Stack]) -> list[Stack]:
    """Return the module stacks. Each unknown stack is replaced by the module calls that the stacks before and after it share."""
    completed = [*stacks]
    before: Stack = {}
    for i, stack in enumerate(completed):
        if not stack:
            after = next((later for later in completed[i:] if later), {})
            completed[i] = stack = {key: before[key] for key in takewhile(after.__contains__, before)}
        before = stack
    return completed


def _all_stacks(module: fx.GraphModule) -> Iterator[Stack]:
    """Yield the module stacks of the nodes of a graph. Also yield the stacks for the graphs that are arguments of the graph's higher-order
    operators."""
    for node in module.graph.nodes:
        yield _stack(node)
        if node.op == "get_attr":
            value = reduce(getattr, str(node.target).split("."), module)
            if isinstance(value, fx.GraphModule):
                yield from _all_stacks(value)


def _nodes_in(value: Any) -> list[fx.Node]:
    nodes: list[fx.Node] = []
    fx.map_arg(value, nodes.append)
    return nodes


def _is_guard(node: fx.Node) -> bool:
    """Return whether a node only checks the inputs. Such nodes are skipped, since :meth:`Program.check` checks the inputs."""
    return node.op == "call_module" and node.target == "_guards_fn"


def _author_line(trace: str) -> tuple[str, int, str]:
    """Return the file, line and function of the innermost frame outside torch in a stack trace. If there is no such frame, return ("", 1, "")."""
    lines = [(file, int(line), name) for file, line, name in LINE.findall(trace)]
    return next((each for each in reversed(lines) if not OF_TORCH.search(each[0])), ("", 1, ""))


@cache
def _caller(file: str, line: int, name: str) -> Callable[[Any, Any, Any], Any]:
    """Return a function that calls its first argument as if from this line of code.

    Reports and tracebacks then show the author's line.
    """
    call = lambda target, args, kwargs: target(*args, **kwargs)  # noqa: E731
    if not file:
        return call
    code = call.__code__.replace(co_filename=file, co_firstlineno=line, co_name=name)
    return FunctionType(code, {"__name__": __name__})


def _input_of(node: fx.Node) -> ProgramInput:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return ProgramInput(node.name, tuple(map(expression_of, value.shape)), value.dtype)
    return ProgramInput(node.name, None, None, value)


def _bound(value: Any) -> int | None:
    """Return one end of a range as an integer, or None for infinity."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None
