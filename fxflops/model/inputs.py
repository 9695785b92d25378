"""Check the user's model and inputs and bind the inputs to ``forward``'s parameters, without changing them."""

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
"""How many random numbers an input repeats: a prime, so that rows differ, and too few for torch to copy them with several threads."""


def checked_model(model: Any, *kinds: type[Exception]) -> nn.Module:
    """Return the model without its ``torch.compile`` wrapper, since the model is counted as written.

    Raises InputError, with the line to write, for anything that is not an ``nn.Module`` instance. The error is also of
    the types ``kinds`` (default: TypeError).
    """
    if not isinstance(model, nn.Module):
        if is_program(model):
            raise of_kind(InputError("model is an ExportedProgram: give program.module()"), *(kinds or (TypeError,)))
        wrong = f"model must be a torch.nn.Module, not {type(model).__name__} ({model!r:.60})"
        if isinstance(model, type) and issubclass(model, nn.Module):
            wrong = f"model is the class {model.__name__}, not an instance: give {model.__name__}(...)"
        raise of_kind(InputError(wrong), *(kinds or (TypeError,)))
    return original_of(model)


def as_module(model: Any, *kinds: type[Exception]) -> Any:
    """Return a torch.export program, or the model in a file or folder, as a module to count; anything else unchanged.

    Raises InputError for a path at which there is nothing; it is also of the types ``kinds`` (default: TypeError).
    """
    if isinstance(model, (str, PathLike)):
        if not Path(model).expanduser().exists():
            wrong = f"model must be a torch.nn.Module or a callable, not {type(model).__name__} ({str(model)!r}), and no file has that name"
            raise of_kind(InputError(wrong), *(kinds or (TypeError,)))
        model = load_model(model)
    return program_module(model) if is_program(model) else model


def checked_device(device: Any) -> torch.device | None:
    """Return the device to count for; None for None. Raises InputError for one whose kernels are not known."""
    if device is None:
        return None
    try:
        requested = torch.device(device)
    except (RuntimeError, TypeError) as error:
        by_name = (
            "; for a card by its name count with device='cuda', then ask report.predict(name) or report.reserved(name)"
        )
        wrong = f"device must be 'cpu' or 'cuda', not {device!r}{by_name if isinstance(device, str) else ''}"
        raise of_kind(InputError(wrong), TypeError) from error
    if requested.type not in COUNTED_FOR:
        more = ": a model on meta is counted for the CPU, or for device='cuda'" if requested.type == "meta" else ""
        raise InputError(f"count() knows the kernels of 'cpu' and 'cuda', not of {str(requested)!r}{more}")
    return requested


def checked_autocast(dtype: Any) -> torch.dtype | None:
    """Return the autocast dtype; None for None. Raises InputError for anything but float16 and bfloat16."""
    if dtype is not None and dtype not in CASTS_TO:
        wrong = f"autocast must be torch.bfloat16 or torch.float16, not {dtype!r}"
        raise of_kind(InputError(wrong), *(() if isinstance(dtype, torch.dtype) else (TypeError,)))
    return dtype  # type: ignore[no-any-return]


def is_compiled(modules: Iterable[nn.Module], classes: Iterable[type] = ()) -> bool:
    """Return whether ``torch.compile`` wraps one of these modules, a function among their attributes, or the forward of
    their classes or of ``classes``."""
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
    """Return the inputs by name, {} for None. Raises InputError for anything other than a mapping, such as a second input."""
    if kwargs is not None and not isinstance(kwargs, Mapping):
        wrong = f"kwargs must be a mapping of names to inputs, not {type(kwargs).__name__}"
        raise InputError(f"{wrong}; several inputs go in a tuple: (model, (a, b))")
    return kwargs or {}


def as_call(model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return ``args`` and ``kwargs`` as passed to the model: a tuple is unpacked, anything else is one positional input.

    Raises InputError for ``args`` that is a mapping by the names of forward's parameters, for iterators, and for arguments
    that do not fit the signature of forward.
    """
    named = named_inputs(kwargs)
    if isinstance(model, Program) and not named and type(args) is tuple and not args:
        args, named = inputs_of_program(model)
    keywords = dict(named)
    signature = signature_of(model)
    if isinstance(args, Mapping) and len(args) and {*args.keys()} <= signature.parameters.keys():
        names = ", ".join(args)
        raise InputError(
            f"args is a mapping of forward's parameters ({names}): give it as kwargs, not as args: (model, kwargs=inputs)"
        )
    positional = args if type(args) is tuple else (args,)
    for where, value in (*((f"input {i}", value) for i, value in enumerate(positional)), *keywords.items()):
        if (iterator := _iterator_in(value)) is not None:
            kind = "a generator" if issubclass(type(iterator), Generator) else f"an iterator, {type(iterator).__name__}"
            raise InputError(
                f"{where} is or has {kind}, which can be read once, and the model may be run more than once: "
                f"give a list, [*iterator], or one item of it, next(iterator)"
            )
    try:
        bind(model, positional, keywords, signature=signature)
    except InputError as error:
        raise shape_given(args, keywords) or error from None
    if isinstance(model, Program):
        model.check(positional, keywords)
    return positional, keywords


def inputs_of_program(program: Program) -> tuple[Any, Any]:
    """Return the inputs that a program was exported with, or random inputs of its sizes.

    Raises InputError if some sizes may vary, which are the caller's to choose, and for a program without inputs' sizes.
    """
    if program.varying():
        raise InputError(f"{program.varying()}\n  give inputs, e.g. fxflops.count(program, {program.example_call()})")
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
    """Return the first iterator in nested containers (attributes of objects are not searched); None if there is none."""
    for steps, part in walk(value):
        if issubclass(type(part), Iterator) and all(kind == "item" for kind, _ in steps):
            return part  # type: ignore[no-any-return]
    return None


def shape_given(args: Any, kwargs: Mapping[str, Any]) -> InputError | None:
    """Return the error for an input that is a shape instead of a tensor; None if no input is, or if any tensor is among them."""
    if tensors_in((args, kwargs)):
        return None
    for value in (args, *(args if type(args) is tuple else ()), *kwargs.values()):
        if isinstance(value, (tuple, list)) and len(value) > 1 and all(type(item) is int for item in value):
            sizes = ", ".join(map(str, value))
            example = f"torch.randn({sizes}), for token ids torch.zeros({sizes}, dtype=torch.long)"
            return InputError(f"{value!r} is a shape where an input belongs: give a tensor, e.g. {example}")
    return None


def signature_of(model: nn.Module) -> inspect.Signature:
    """Return the signature of forward; ``(*args, **kwargs)`` if it cannot be read (a C function)."""
    if isinstance(model, Program):
        return model.signature
    if isinstance(model, torch.jit.ScriptModule):
        return _signature_of_script(model)
    try:
        return inspect.signature(model.forward)
    except (ValueError, TypeError):
        return _signature_of_script(model)


def _signature_of_script(model: nn.Module) -> inspect.Signature:
    """Return the signature of a TorchScript forward from its schema; ``(*args, **kwargs)`` if it has no schema."""
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
    """Return the arguments by the names of forward's parameters, with defaults.

    ``signature`` is forward's, if the caller has it. Raises InputError if they do not fit, with ``advice``, by default a
    line on what was given and how inputs are given.
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
        raise InputError(f"{what}\n  {advice or f'given ({input_names})'}", advice="" if advice else "inputs") from None
    bound.apply_defaults()
    return dict(bound.arguments)


def as_leaves(inputs: Any) -> Any:
    """Return the inputs with computed tensors and views replaced by leaves that share their memory.

    A backward pass ends at the leaves, and writing to a leaf does not change the user's autograd graph.
    """
    if all(tensor.is_leaf and not tensor._is_view() for tensor in tensors_in(inputs)):
        return inputs
    template, tensors = template_of(inputs)
    return fill(template, *(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors))


def summary_words(model: nn.Module) -> Mapping[str, str]:
    """Return the advice texts for errors of a summary, with the model's dtype filled in."""
    dtype = next(iter(parameters_of(model)), torch.empty(0)).dtype
    return {**SUMMARY, "cast": f"\n  give dtypes=[{dtype}], a dtype for each input"}


def batch_dim_note(sizes: Any, batch_dim: int | None) -> str:
    """Return a note for errors of a summary on what ``batch_dim`` did to ``input_size``; "" if it did nothing."""
    if sizes is None or batch_dim is None:
        return ""
    return f"\n  batch_dim={batch_dim} added a dimension of 1 to input_size={sizes}"


def shapes_in(sizes: Any) -> list[tuple[int, ...]]:
    """Return the input shapes in ``(1, 3, 224, 224)`` or ``[(1, 16), (1, 16)]``. Raises InputError for anything else."""
    single_shape = _shape(sizes)
    shapes = [single_shape] if single_shape else [*map(_shape, sizes)] if isinstance(sizes, (tuple, list)) else []
    if shapes and all(shapes):
        return shapes
    wrong = "a tensor: give it as input_data=x" if tensors_in(sizes) else f"{sizes!r:.80}"
    if isinstance(sizes, Mapping):
        wrong += f': inputs by name are tensors, input_data={{"{next(iter(sizes), "x")}": tensor, ...}}'
    problem = f"input_size is a shape, (1, 3, 224, 224), or a list of shapes, of sizes of 1 or more, not {wrong}"
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
    """Return :func:`random_inputs` of these sizes, ``(1, 3, 224, 224)`` or ``[(1, 16), (1, 16)]``.

    ``dtypes`` is one dtype per input, or one for all (default torch.float32). Raises InputError for what is no shape, and for
    dtypes of another number.
    """
    shapes = shapes_in(sizes)
    is_one_for_all = dtypes is None or isinstance(dtypes, torch.dtype)
    input_dtypes: list[Any] = [dtypes or torch.float32] * len(shapes) if is_one_for_all else [*dtypes]  # type: ignore[misc]
    if len(input_dtypes) != len(shapes) or not all(isinstance(dtype, torch.dtype) for dtype in input_dtypes):
        raise of_kind(
            InputError(
                f"dtypes needs one dtype, such as torch.long, for each of the {len(shapes)} inputs, not {dtypes!r:.80}"
            ),
            TypeError,
        )
    return tuple(random_inputs(shapes, input_dtypes, batch_dim, device))


def random_inputs(
    shapes: Iterable[tuple[int, ...]], dtypes: Iterable[torch.dtype], batch_dim: int | None, device: torch.device
) -> list[torch.Tensor]:
    """Return a :func:`random_input` of each shape and dtype, the same at each call; ``batch_dim`` adds a dimension of 1."""
    generator = torch.Generator("cpu").manual_seed(0)
    batched = [shape if batch_dim is None else _batched(shape, batch_dim) for shape in shapes]
    return [
        random_input(shape, dtype, place_of(dtype, device), generator)
        for shape, dtype in zip(batched, dtypes, strict=False)
    ]


def _batched(shape: tuple[int, ...], batch_dim: int) -> tuple[int, ...]:
    """Return the shape with a dimension of 1 at this position."""
    try:
        at = range(len(shape) + 1)[batch_dim]
    except (IndexError, TypeError) as error:
        wrong = f"batch_dim is the position of the batch in {shape}, from 0 to {len(shape)}, not {batch_dim!r:.80}"
        raise of_kind(InputError(wrong), type(error)) from None
    return (*shape[:at], 1, *shape[at:])


def random_input(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> torch.Tensor:
    """Return random numbers from 0 to 1; integers are therefore 0 and booleans True, as in torchinfo's inputs.

    They repeat after :data:`PERIOD` numbers: a count seldom reads them, and drawing all would take longer than counting.
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
    """Return the device to put an input on. For a model on meta, integers and booleans go to the CPU, so that masks and
    positions have values."""
    return device if device.type != "meta" or is_inexact(dtype) else torch.device("cpu")


def is_inexact(dtype: torch.dtype) -> bool:
    """Return whether a dtype is floating-point or complex."""
    return dtype.is_floating_point or dtype.is_complex
