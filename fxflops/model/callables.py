"""Find the modules and the state that are reachable from a callable: a function, a method, or an object with ``__call__``."""

from __future__ import annotations

import dis
import inspect
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from ..errors import InputError, of_kind
from ..records.containers import MAPPINGS, SEQUENCES, SETS, items_of, pairs_of
from ..torch_internals import original_of, script_module_of
from .inputs import checked_model, named_inputs, opened_model
from .installed import TORCH, is_installed, is_user_module
from .modules import Called, all_modules, unique
from .outside import names_of
from .pytree import attributes_in, value_at, walk
from .reach import CELL, ENDS, Variable, is_torchs_subclass, places_in

ATOMS = frozenset(
    {bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, BuiltinFunctionType}
)
DEPTH = 8
"""The search below a callable goes through at most this many levels of objects, containers and functions."""
FEW = 1000
"""Search at most this many items of a container: enough for a list of models, too few for a vocabulary. All items are restored."""
MOST = 50_000
"""The search stops after this many objects."""
INTERNAL = ("torch._", "torch.jit", "torch.fx", "torch.distributed", "torch.utils._", "torch.autograd")
"""Modules of torch whose objects contain no user state."""
TAKES = "pass a torch.nn.Module, or any callable, such as a function, a method (model.generate) or a pipeline"

Path = tuple[str, ...]


def as_model(
    model: Any, models: Any = None, args: Any = (), kwargs: Mapping[str, Any] | None = None, *kinds: type[Exception]
) -> nn.Module:
    """Return a module unchanged. For a program or file, return its module. For any other callable, return a :class:`Called` that wraps it.

    The search for a callable's modules covers its object, its closure, its default and partial arguments, and the inputs. The search also
    covers the global variables that the callable's code names. ``models`` replaces the modules that the search would find. ``models`` is a
    module, a list of modules, or a mapping from names to modules. For a module's method, or a ``functools.partial`` of the method, paths
    start at that module.

    Raises InputError for a class and for anything that cannot be called. The error is also an instance of each class in ``kinds`` (default: TypeError).
    """
    kinds = kinds or (TypeError,)
    model = opened_model(model, *kinds)
    if models is not None and isinstance(model, nn.Module):
        raise of_kind(InputError("models= is only for callables: omit it for a torch.nn.Module"), *kinds)
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, type):
        wrong = f"model is the class {model.__name__}, not an instance: pass {model.__name__}(...)"
        raise of_kind(InputError(wrong), *kinds)
    if not callable(model):
        wrong = f"model must be a torch.nn.Module or a callable, not {type(model).__name__} ({model!r:.60}): {TAKES}"
        raise of_kind(InputError(wrong), *kinds)
    if type(model) is MethodType and model.__func__ is nn.Module.__call__ and isinstance(model.__self__, nn.Module):
        owner: nn.Module = model.__self__
        return owner
    search = Search(model)
    search.look_into_inputs(args, named_inputs(kwargs))
    search.run()
    roots = search.roots() if models is None else models_by_path(models)
    root_ids = {id(module) for root in roots.values() for module in all_modules(root)}
    reached_modules = [module for _, root in search.modules for module in all_modules(root)]
    unnamed = unique(module for module in reached_modules if id(module) not in root_ids)
    # Reports and errors show a model's class name, so name the class after the callable, as torch.fx does for a GraphModule.
    cls = type(name_of(model), (Called,), {})
    called: nn.Module = cls(as_function(model), roots, search.reachable, unnamed, search.classes)
    return called


def models_by_path(models: Any) -> dict[str, nn.Module]:
    """Return the modules in ``models=`` by path; a single module has the path "". Raises InputError if there are no modules."""
    if isinstance(models, nn.Module):
        return {"": checked_model(models)}
    if isinstance(models, str) or not isinstance(models, Iterable):
        wrong = f"models must be a module, a list of modules or a dict of modules, not {type(models).__name__}"
        raise of_kind(InputError(wrong), TypeError)
    named = named_models(models)
    if not named:
        raise InputError(f"there is no torch.nn.Module in models={models!r:.80}")
    return named


def named_models(models: Iterable[Any]) -> dict[str, nn.Module]:
    """Give names to models: the keys of a mapping, or for a list, class names with an index.

    Values of a mapping that are not modules are skipped. Raises InputError for an item of a list that is not a module.
    """
    if isinstance(models, Mapping):
        return {str(name): checked_model(model) for name, model in models.items() if isinstance(model, nn.Module)}
    return {f"{type(model).__name__}_{i}": checked_model(model) for i, model in enumerate(models)}


def as_function(called: Any) -> Callable[..., Any]:
    """Return the ``__call__`` method of a user's object; anything else unchanged.

    Reading a signature from the object itself would run ``__getattr__`` of the object's class.
    """
    if type(called) is partial and (function := as_function(called.func)) is not called.func:
        return partial(function, *called.args, **called.keywords)
    call = next((vars(base)["__call__"] for base in type(called).__mro__ if "__call__" in vars(base)), None)
    is_own = type(call) is FunctionType and not issubclass(type(called), (FunctionType, MethodType, partial))
    return MethodType(call, called) if is_own else called  # type: ignore[arg-type]


def name_of(called: Any) -> str:
    """Return the name of a callable: for a function its name, for a method e.g. ``GPT2LMHeadModel.generate``, for an object its class
    name."""
    kind = type(called)
    if issubclass(kind, partial):
        return name_of(called.func)
    if kind is MethodType:
        owner = called.__self__
        return f"{owner.__name__ if isinstance(owner, type) else type(owner).__name__}.{name_of(called.__func__)}"
    is_named = kind is FunctionType or str(kind.__module__).startswith(("builtins", "torch"))
    name = getattr(called, "__name__", None) if is_named else None
    return name if isinstance(name, str) and name else kind.__name__


def reference_to(model: nn.Module) -> Callable[[], nn.Module | None]:
    """Return a weak reference to the model. The reference to a callable returns a new :class:`Called` while all its modules live."""
    if not isinstance(model, Called):
        return weakref.ref(original_of(model))
    roots = {path: weakref.ref(module) for path, module in model.roots.items()}

    def alive() -> nn.Module | None:
        modules = {path: module for path, ref in roots.items() if (module := ref()) is not None}
        return Called(_gone, modules) if len(modules) == len(roots) else None

    return alive


def _gone(*args: Any, **kwargs: Any) -> None:
    raise InputError("the callable no longer exists")


def parts_without_path(model: nn.Module) -> tuple[list[nn.Module], list[Any]]:
    """Return the modules and objects of a callable that must be restored but have no module path. For a model, both lists are empty."""
    return (model.unnamed, model.reachable) if isinstance(model, Called) else ([], [])


def modules_of_frame(frame: FrameType | None) -> dict[str, nn.Module]:
    """Return the modules that are reachable from the variables of a frame and its callers, as a dict by name. The modules of the outermost
    frame come first.

    Frames of installed packages are skipped. Names of attributes of ``self`` have no prefix ``self``.
    """
    search = Search(None)
    callers = deque[FrameType]()
    while frame is not None:
        callers.appendleft(frame)
        frame = frame.f_back
    for caller in callers:
        if not is_installed(caller.f_code.co_filename):
            search.look_into_variables(_variables_of(caller))
    search.run()
    return search.roots()


def _variables_of(frame: FrameType) -> dict[str, Any]:
    """Return the local variables of a frame.

    Before Python 3.13, a function's frame caches the dict that ``f_locals`` returns. The cached dict is cleared, since it would
    keep every tensor in it alive.
    """
    frame_locals = frame.f_locals
    variables = dict(frame_locals)
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(frame_locals) is dict:
        frame_locals.clear()
    return variables


class Search:
    """A breadth-first search for everything that is reachable from a callable. The search runs no user code.

    ``modules`` are pairs of a path and a module. A path consists of the names of variables, attributes and keys that lead from the callable
    to the module. Names of functions on the way are left out. ``reachable`` is everything else whose state may change: objects, containers,
    tensors, variables. ``classes`` maps the paths of objects to the names of their classes.
    """

    def __init__(self, called: Any) -> None:
        self.modules: list[tuple[Path, nn.Module]] = []
        self.reachable: list[Any] = []
        self.classes: dict[str, str] = {}
        self._seen: dict[int, Any] = {}
        self._queue = deque[tuple[Path, Any, int, type | None]]()
        self._called = called
        self._enter((), called, 0)
        kind = type(called)
        if kind not in (FunctionType, MethodType, BuiltinFunctionType) and not issubclass(kind, (partial, nn.Module)):
            self._enter_members(kind, ("__call__",), (), 0)

    def look_into_inputs(self, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Add modules among the inputs to the search, named after the parameters that receive them."""
        positional = args if type(args) is tuple else (args,)
        names = _names_of_arguments(as_function(self._called), len(positional))
        for name, value in (*zip(names, positional, strict=True), *kwargs.items()):
            for steps, part in walk(value):
                if issubclass(type(part), nn.Module):
                    self._enter((str(name), *(str(key) for _, key in steps)), part, 0)

    def look_into_variables(self, variables: Mapping[str, Any]) -> None:
        """Add the values of a frame's local variables to the search."""
        for name, value in variables.items():
            if name != "self":
                self._enter((name,), value, 1)
            elif issubclass(type(value), nn.Module):
                self._enter((type(value).__name__,), value, 1)
            else:
                for attribute, content in _contents_of(value):
                    self._enter((attribute,), content, 1)

    def run(self) -> None:
        while self._queue and len(self._seen) < MOST:
            self._visit(*self._queue.popleft())

    def roots(self) -> dict[str, nn.Module]:
        """Return the modules by path. Submodules of other modules come last, so that their paths here become aliases."""
        inner_ids = {id(part) for _, module in self.modules for part in all_modules(module) if part is not module}
        roots: dict[str, nn.Module] = {}
        groups: set[str] = set()
        for path, module in sorted(self.modules, key=lambda pair: id(pair[1]) in inner_ids):
            names = [_as_name(name) for name in path]
            if not names and roots:
                names = [type(module).__name__]
            taken_names = set(vars(roots[""])["_modules"] if "" in roots else ())
            first, number = names[0] if names else "", 2  # number repeated names: net, net_2, net_3
            while names and (_collides(".".join(names), roots, groups) or names[0] in taken_names):
                names[0], number = f"{first}_{number}", number + 1
            roots[".".join(names)] = module
            groups |= {".".join(names[:i]) for i in range(1, len(names))}
        return roots

    def _enter(self, path: Path, value: Any, depth: int, owner: type | None = None) -> None:
        if type(value) not in ATOMS and id(value) not in self._seen and depth <= DEPTH:
            self._queue.append((path, value, depth, owner))

    def _visit(self, path: Path, value: Any, depth: int, owner: type | None) -> None:
        """Search an object. If the object is the function of a method, ``owner`` is the method's class."""
        kind = type(value)
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if issubclass(kind, nn.Module):
            self.modules.append((path, original_of(value)))
        elif issubclass(kind, (torch.Tensor, torch.Generator)):
            self.reachable.append(value)
        elif kind is FunctionType:
            self._visit_function(path, value, depth, owner)
        elif kind is MethodType:
            self._enter(path, value.__self__, depth)
            self._enter(path, value.__func__, depth, _class_of(value.__self__))
        elif issubclass(kind, partial):
            func, args, keywords = (vars(partial)[name].__get__(value) for name in ("func", "args", "keywords"))
            self._enter(path, func, depth)
            names = _names_of_arguments(as_function(func), len(args))
            for name, content in (*zip(names, args, strict=True), *keywords.items()):
                self._enter((*path, name), content, depth + 1)
        elif kind is torch.ScriptMethod:
            self._enter(path, script_module_of(value), depth)
        elif not (issubclass(kind, ENDS) or is_torchs_subclass(kind) or str(kind.__module__).startswith(INTERNAL)):
            self.reachable.append(value)
            self.classes.setdefault(".".join(map(_as_name, path)), kind.__name__)
            for name, content in _contents_of(value):
                self._enter((*path, name), content, depth + 1)
            if (attributes := attributes_in(value)) is not None:
                self.reachable.append(attributes)

    def _visit_function(self, path: Path, function: FunctionType, depth: int, owner: type | None) -> None:
        for name in ("__wrapped__", "_torchdynamo_orig_callable"):  # the decorated function
            self._enter(path, vars(function).get(name), depth, owner)
        code = function.__code__
        if code.co_filename.startswith(TORCH):
            return
        parent = path[:-1]
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self.reachable.append(cell)
            self._enter((*parent, name), value_at(CELL, cell), depth + 1)
        parameters = code.co_varnames[: code.co_argcount]
        defaults = function.__defaults__ or ()
        first = len(parameters) - len(defaults)
        arguments = (*zip(parameters[first:], defaults, strict=True), *(function.__kwdefaults__ or {}).items())
        for name, value in (*arguments, *vars(function).items()):
            self._enter((*parent, name), value, depth + 1)
        if vars(function):
            self.reachable.append(vars(function))
        if depth and is_installed(code.co_filename):
            return  # the globals of a library contain no user modules
        names, file_globals = _names_in(code), function.__globals__
        self.reachable += [Variable(file_globals, name) for name in names_of(code).rebound]
        for name in [name for name, is_global in names.items() if is_global and name in file_globals]:
            self._enter_global((*parent, name), file_globals[name], names, depth)
        if owner is not None:
            self._enter_members(owner, names, parent, depth)

    def _enter_global(self, path: Path, value: Any, names: Iterable[str], depth: int) -> None:
        """Add the value of a global variable to the search. Of a user's Python module or class, add only the attributes that the code
        names."""
        kind = type(value)
        if kind is ModuleType:
            if is_user_module(value):
                for name in [name for name in names if name in vars(value) and depth < DEPTH]:
                    self._enter_global((*path[:-1], name), vars(value)[name], names, depth + 1)
        elif issubclass(kind, type):
            self._enter_members(value, names, path, depth)
        elif not (kind is FunctionType and is_installed(value.__code__.co_filename)):
            self._enter(path, value, depth + 1)

    def _enter_members(self, cls: type, names: Iterable[str], path: Path, depth: int) -> None:
        """Add those attributes of a user's class that have these names to the search: modules, and functions that the class's methods call."""
        for base in cls.__mro__:
            if base in (object, nn.Module) or str(base.__module__).startswith("torch."):
                continue
            for name in [name for name in names if name in vars(base)]:
                value = vars(base)[name]
                value = value.fget if type(value) is property else getattr(value, "__func__", value)
                if type(value) is FunctionType:
                    if depth == 0 or not is_installed(value.__code__.co_filename):
                        self._enter((*path, name), value, depth + (name != "__call__"), cls)
                else:
                    self._enter((*path, name), value, depth + 1)


@cache
def _names_in(code: CodeType) -> dict[str, bool]:
    """Return the names used in code and its nested functions, in order. The value for a name is True if the name is a global variable, and
    False if the name is only an attribute."""
    names = dict.fromkeys(code.co_names, False)
    names |= {each.argval: True for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for inner in [each for each in code.co_consts if type(each) is CodeType]:
        for name, is_global in _names_in(inner).items():
            names[name] = names.get(name, False) or is_global
    return names


def _class_of(value: Any) -> type:
    return value if isinstance(value, type) else type(value)


def _contents_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the direct contents of an object with their names: attributes, slots, and the items of a Python container."""
    kind = type(value)
    if issubclass(kind, MAPPINGS):
        pairs = pairs_of(value)
        yield from (
            (str(key) if type(key) in (str, int) else str(i), item) for i, (key, item) in enumerate(pairs[:FEW])
        )
    elif issubclass(kind, SEQUENCES + SETS):
        items = items_of(value)
        yield from ((str(i), item) for i, item in enumerate(items[:FEW]))
    attributes = attributes_in(value)
    yield from (attributes or {}).items()
    yield from ((place.__name__, value_at(place, value)) for place in places_in(value))


def _names_of_arguments(called: Any, number: int) -> list[str]:
    """Return the parameter names of a callable's first ``number`` positional arguments."""
    names: list[str] = []
    try:
        for parameter in inspect.signature(called).parameters.values():
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                names.append(parameter.name)
            elif parameter.kind is parameter.VAR_POSITIONAL:
                names += [f"{parameter.name}_{i}" for i in range(number - len(names))]
    except (TypeError, ValueError):  # a C function without a signature
        pass
    return [*names[:number], *(f"input_{i}" for i in range(len(names), number))]


def _as_name(name: str) -> str:
    """Return a valid submodule name: without dots, and different from the attributes of ``nn.Module``."""
    name = name.replace(".", "_") or "_"
    return f"{name}_" if hasattr(Called, name) else name


def _collides(path: str, roots: Mapping[str, nn.Module], groups: set[str]) -> bool:
    """Return whether a path is already the path of a module or of a group of modules, or is inside a module in ``roots``."""
    first = path.partition(".")[0]
    return path in roots or path in groups or (first != path and first in roots)
