"""Check the user's model and inputs, and match the inputs to ``forward``'s parameters, without changing the inputs."""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import nn

from ..advice import SUMMARY
from ..errors import InputError, did_you_mean, of_kind
from ..torch_internals import COMPILER, original_of
from .files import load_model
from .modules import label_of, parameters_of
from .programs import Program, is_program, program_module
from .pytree import attributes_of, fill, template_of, tensors_in, walk

COUNTED_FOR = ("cpu", "cuda")
"""The device types that a model on any device can be counted for."""
CASTS_TO = (torch.bfloat16, torch.float16)
"""The dtypes that autocast computes in."""
PERIOD = 32_749
"""Random inputs repeat after this many numbers. A prime makes rows differ; this prime is too small for a multithreaded copy in torch."""


def checked_model(model: Any, *kinds: type[Exception]) -> nn.Module:
    """Return the model without its ``torch.compile`` wrapper, since the model is counted as written.

    Raises InputError, with the correct argument, for anything that is not an ``nn.Module`` instance. The error is also an instance
    of each class in ``kinds`` (default: TypeError).
    """
    if not isinstance(model, nn.Module):
        if is_program(model):
            raise of_kind(InputError("model is an ExportedProgram: pass program.module()"), *(kinds or (TypeError,)))
        wrong = f"model must be a torch.nn.Module, not {type(model).__name__} ({model!r:.60})"
        if isinstance(model, type) and issubclass(model, nn.Module):
            wrong = f"model is the class {model.__name__}, not an instance: pass {model.__name__}(...)"
        raise of_kind(InputError(wrong), *(kinds or (TypeError,)))
    return original_of(model)


def opened_model(model: Any, *kinds: type[Exception]) -> Any:
    """If ``model`` is a torch.export program, or the path of a file or folder, return its model as a module. Return any other value unchanged.

    Raises InputError for a path that does not exist. The error is also an instance of each class in ``kinds`` (default: TypeError).
    """
    if isinstance(model, (str, PathLike)):
        if not Path(model).expanduser().exists():
            wrong = f"model must be a torch.nn.Module or a callable, not {type(model).__name__} ({str(model)!r}), and no file has this path"
            raise of_kind(InputError(wrong), *(kinds or (TypeError,)))
        model = load_model(model)
    return program_module(model) if is_program(model) else model


def checked_device(device: Any) -> torch.device | None:
    """Return the device to count for, None for None. Raises InputError for any device other than "cpu" and "cuda"."""
    if device is None:
        return None
    try:
        requested = torch.device(device)
    except (RuntimeError, TypeError) as error:
        by_name = (
            "; to get figures for a GPU by name, count with device='cuda', "
            "then call report.predict(name) or report.reserved(name)"
        )
        wrong = f"device must be 'cpu' or 'cuda', not {device!r}{by_name if isinstance(device, str) else ''}"
        raise of_kind(InputError(wrong), TypeError) from error
    if requested.type not in COUNTED_FOR:
        more = ": a model on meta is counted for the CPU, or for device='cuda'" if requested.type == "meta" else ""
        raise InputError(f"device must be 'cpu' or 'cuda', not {str(requested)!r}{more}")
    return requested


def checked_autocast(dtype: Any) -> torch.dtype | None:
    """Return the autocast dtype; None for None. Raises InputError for anything but float16 and bfloat16."""
    if dtype is not None and dtype not in CASTS_TO:
        wrong = f"autocast must be torch.bfloat16 or torch.float16, not {dtype!r}"
        raise of_kind(InputError(wrong), *(() if isinstance(dtype, torch.dtype) else (TypeError,)))
    return dtype  # type: ignore[no-any-return]


def is_compiled(modules: Iterable[nn.Module], classes: Iterable[type] = ()) -> bool:
    """Return whether ``torch.compile`` wraps one of these modules or a function among their attributes.

    The result is also True if ``torch.compile`` wraps the forward of a class: the class of one of the modules, or a class in ``classes``.
    """
    if COMPILER not in sys.modules:
        return False
    modules = [*modules]
    functions = [getattr(cls, "forward", None) for cls in {*map(type, modules), *classes}]
    functions += [value for value in attributes_of(modules) if type(value) is FunctionType]
    return any(hasattr(function, "_torchdynamo_orig_callable") for function in functions)


def is_compiled_whole(model: nn.Module) -> bool:
    """Return whether calling the user's model runs code compiled by ``torch.compile`` for the whole model."""
    called = (model._compiled_call_impl, model.forward)
    return original_of(model) is not model or any(hasattr(each, "_torchdynamo_orig_callable") for each in called)


def named_inputs(kwargs: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return ``kwargs``, {} for None. Raises InputError for anything other than a mapping, e.g. a second input passed by position."""
    if kwargs is not None and not isinstance(kwargs, Mapping):
        wrong = f"kwargs must be a mapping of names to inputs, not {type(kwargs).__name__}"
        raise InputError(f"{wrong}; pass several inputs as a tuple: (model, (a, b))")
    return kwargs or {}


def as_call(model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword inputs for the model. If ``args`` is not a tuple, it is the single positional input.

    Raises InputError if ``args`` is a mapping whose keys are forward's parameters, if it is an iterator, or if the inputs do not fit the
    signature of forward.
    """
    named = named_inputs(kwargs)
    if isinstance(model, Program) and not named and type(args) is tuple and not args:
        args, named = inputs_of_program(model)
    keywords = dict(named)
    signature = signature_of(model)
    if isinstance(args, Mapping) and len(args) and {*args.keys()} <= signature.parameters.keys():
        names = ", ".join(args)
        raise InputError(
            f"args is a mapping whose keys are forward's parameters ({names}): pass it as kwargs: (model, kwargs=inputs)"
        )
    positional = args if type(args) is tuple else (args,)
    for where, value in (*((f"input {i}", value) for i, value in enumerate(positional)), *keywords.items()):
        if (iterator := _iterator_in(value)) is not None:
            kind = "a generator" if issubclass(type(iterator), Generator) else f"an iterator, {type(iterator).__name__}"
            raise InputError(
                f"{where} is or contains {kind}, which can be read only once, but the model may run several times: "
                f"pass a list, [*iterator], or a single item, next(iterator)"
            )
    try:
        bind(model, positional, keywords, signature=signature)
    except InputError as error:
        raise shape_given(args, keywords) or error from None
    if isinstance(model, Program):
        model.check(positional, keywords)
    return positional, keywords


def inputs_of_program(program: Program) -> tuple[Any, Any]:
    """Return the example inputs of a program's export. If the program does not contain them, return random inputs of the exported sizes.

    Raises InputError if the sizes of some inputs may vary, because the caller must then choose these sizes.
    """
    if program.varying():
        raise InputError(f"{program.varying()}\n  pass inputs, e.g. fxflops.count(program, {program.example_call()})")
    if program.examples is not None:
        return program.examples
    generator = torch.Generator("cpu").manual_seed(0)
    device = next((t.device for t in parameters_of(program)), torch.device("cpu"))
    leaves = [
        each.constant
        if each.dtype is None
        else random_input(each.example(), each.dtype, place_of(each.dtype, device), generator)
        for each in program.inputs
    ]
    return program.nested(leaves)


def _iterator_in(value: Any) -> Iterator[Any] | None:
    """Return the first iterator in nested containers, or None. Attributes of objects are not searched."""
    for steps, part in walk(value):
        if issubclass(type(part), Iterator) and all(kind == "item" for kind, _ in steps):
            return part  # type: ignore[no-any-return]
    return None


def shape_given(args: Any, kwargs: Mapping[str, Any]) -> InputError | None:
    """Return the error for an input that is a shape instead of a tensor; None if no input is a shape, or if any input is a tensor."""
    if tensors_in((args, kwargs)):
        return None
    for value in (args, *(args if type(args) is tuple else ()), *kwargs.values()):
        if isinstance(value, (tuple, list)) and len(value) > 1 and all(type(item) is int for item in value):
            sizes = ", ".join(map(str, value))
            example = f"torch.randn({sizes}), or torch.zeros({sizes}, dtype=torch.long) for token ids"
            return InputError(f"the input {value!r} is a shape: pass a tensor, e.g. {example}")
    return None


def signature_of(model: nn.Module) -> inspect.Signature:
    """Return the signature of forward; ``(*args, **kwargs)`` if the signature cannot be read, e.g. for a C function."""
    if isinstance(model, Program):
        return model.signature
    if isinstance(model, torch.jit.ScriptModule):
        return _signature_of_script(model)
    try:
        return inspect.signature(model.forward)
    except (ValueError, TypeError):
        return _signature_of_script(model)


def _signature_of_script(model: nn.Module) -> inspect.Signature:
    """Return the signature of a TorchScript forward from its schema; ``(*args, **kwargs)`` if forward has no schema."""
    schema = getattr(getattr(model, "forward", None), "schema", None)
    if schema is None:
        return inspect.signature(lambda *args, **kwargs: None)
    return inspect.Signature(
        [
            inspect.Parameter(
                argument.name,
                inspect.Parameter.KEYWORD_ONLY if argument.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=argument.default_value if argument.has_default_value() else inspect.Parameter.empty,
            )
            for argument in schema.arguments
            if argument.name != "self"  # a function has no self
        ]
    )


def bind(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    advice: str = "",
    signature: inspect.Signature | None = None,
) -> dict[str, Any]:
    """Return the arguments, including defaults, by the names of forward's parameters.

    ``signature`` is the signature of forward, if the caller already has it. Raises InputError if the arguments do not fit the
    signature. The error ends with ``advice``. By default, the advice lists the types of the arguments and says how to pass inputs.
    """
    signature = signature or signature_of(model)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        input_names = ", ".join([*(type(arg).__name__ for arg in args), *(f"{name}=" for name in kwargs)])
        what = f"the inputs do not fit {label_of(model)}{signature}: {error}"
        for name in [name for name in kwargs if name not in signature.parameters]:
            unsaid = "" if repr(name) in str(error) else f"; it has no parameter {name!r}"
            what += unsaid + did_you_mean(name, signature.parameters)
        raise InputError(f"{what}\n  {advice or f'got ({input_names})'}", advice="" if advice else "inputs") from None
    bound.apply_defaults()
    return dict(bound.arguments)


def as_leaves(inputs: Any) -> Any:
    """In the inputs, replace computed tensors and views by leaf tensors that share their memory. Return the inputs.

    A backward pass ends at these leaves, so it does not reach the user's autograd graph. Writing to a leaf does not change that graph either.
    """
    if all(tensor.is_leaf and not tensor._is_view() for tensor in tensors_in(inputs)):
        return inputs
    template, tensors = template_of(inputs)
    return fill(template, *(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors))


def summary_words(model: nn.Module) -> Mapping[str, str]:
    """Return the advice texts for errors of ``summary``, with the model's dtype filled in."""
    dtype = next(iter(parameters_of(model)), torch.empty(0)).dtype
    return {**SUMMARY, "cast": f"\n  pass dtypes=[{dtype}], with a dtype for each input"}


def batch_dim_note(sizes: Any, batch_dim: int | None) -> str:
    """For errors of ``summary``, return a note that ``batch_dim`` added a dimension to ``input_size``; "" if no dimension was added."""
    if sizes is None or batch_dim is None:
        return ""
    return f"\n  batch_dim={batch_dim} added a dimension of 1 to input_size={sizes}"


def shapes_in(sizes: Any) -> list[tuple[int, ...]]:
    """Return a list of input shapes from a single shape, ``(1, 3, 224, 224)``, or several, ``[(1, 16), (1, 16)]``.

    Raises InputError for anything else.
    """
    single_shape = _shape(sizes)
    shapes = [single_shape] if single_shape else [*map(_shape, sizes)] if isinstance(sizes, (tuple, list)) else []
    if shapes and all(shapes):
        return shapes
    wrong = "a tensor: pass a tensor as input_data=x" if tensors_in(sizes) else f"{sizes!r:.80}"
    if isinstance(sizes, Mapping):
        wrong += f': pass inputs by name as tensors, input_data={{"{next(iter(sizes), "x")}": tensor, ...}}'
    problem = f"input_size must be a shape with sizes of at least 1, such as (1, 3, 224, 224), or a list of shapes, not {wrong}"
    raise of_kind(InputError(problem), TypeError, ValueError)


def _shape(sizes: Any) -> tuple[int, ...]:
    """Return the sizes as a shape; () if they are not positive integers."""
    try:
        shape = tuple(map(operator.index, sizes)) if isinstance(sizes, (tuple, list)) else ()
    except TypeError:
        return ()
    return shape if min(shape, default=0) > 0 else ()


def inputs_of_sizes(
    sizes: Sequence[Any],
    dtypes: Sequence[torch.dtype] | torch.dtype | None,
    batch_dim: int | None,
    device: torch.device,
) -> tuple[torch.Tensor, ...]:
    """Return :func:`random_inputs` of a shape, ``(1, 3, 224, 224)``, or of several shapes, ``[(1, 16), (1, 16)]``.

    ``dtypes`` is a sequence with the dtype of each input, or a single dtype for all inputs (default torch.float32). Raises InputError
    if ``sizes`` is not a shape or a list of shapes, or if the number of dtypes differs from the number of shapes.
    """
    shapes = shapes_in(sizes)
    is_one_for_all = dtypes is None or isinstance(dtypes, torch.dtype)
    input_dtypes: list[Any] = [dtypes or torch.float32] * len(shapes) if is_one_for_all else [*dtypes]  # type: ignore[misc]
    if len(input_dtypes) != len(shapes) or not all(isinstance(dtype, torch.dtype) for dtype in input_dtypes):
        raise of_kind(
            InputError(
                f"dtypes must have one dtype, such as torch.long, for each of the {len(shapes)} inputs, not {dtypes!r:.80}"
            ),
            TypeError,
        )
    return tuple(random_inputs(shapes, input_dtypes, batch_dim, device))


def random_inputs(
    shapes: Iterable[tuple[int, ...]], dtypes: Iterable[torch.dtype], batch_dim: int | None, device: torch.device
) -> list[torch.Tensor]:
    """Return a :func:`random_input` for each shape and dtype, with the same numbers at each call.

    ``batch_dim`` is the position at which a dimension of 1 is added to each shape. With None, no dimension is added.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    batched = [shape if batch_dim is None else _batched(shape, batch_dim) for shape in shapes]
    return [
        random_input(shape, dtype, place_of(dtype, device), generator)
        for shape, dtype in zip(batched, dtypes, strict=False)
    ]


def _batched(shape: tuple[int, ...], batch_dim: int) -> tuple[int, ...]:
    """Return the shape with a dimension of 1 inserted at the position ``batch_dim``."""
    try:
        at = range(len(shape) + 1)[batch_dim]
    except (IndexError, TypeError) as error:
        wrong = f"batch_dim must be a position in the shape {shape}, from 0 to {len(shape)}, not {batch_dim!r:.80}"
        raise of_kind(InputError(wrong), type(error)) from None
    return (*shape[:at], 1, *shape[at:])


def random_input(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> torch.Tensor:
    """Return a tensor of random numbers from 0 to 1. Conversion turns integers into 0 and booleans into True, as in torchinfo.

    The numbers repeat after :data:`PERIOD` elements. A count seldom reads them, and drawing all of the numbers would take longer than counting.
    """
    tensor = torch.empty(shape, dtype=dtype, device=device)
    if device.type != "meta":
        drawn = torch.rand(min(tensor.numel(), PERIOD), generator=generator, dtype=torch.float32, device="cpu").to(
            device
        )
        for part in tensor.view(-1).split(PERIOD):
            part.copy_(drawn[: len(part)])
    return tensor


def place_of(dtype: torch.dtype, device: torch.device) -> torch.device:
    """Return the device for an input. For a model on meta, integers and booleans go to the CPU, so that masks and positions have
    values."""
    return device if device.type != "meta" or is_inexact(dtype) else torch.device("cpu")


def is_inexact(dtype: torch.dtype) -> bool:
    """Return whether a dtype is floating-point or complex."""
    return dtype.is_floating_point or dtype.is_complex
