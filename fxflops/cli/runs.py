"""Turn options into a report: load the model, move it to its device, create its inputs, and count or run the model."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from typing import Any, NamedTuple

import torch
from torch import nn

from .. import api
from .. import what_fits as api_of_fits
from ..conventions import BASE_CONVENTION
from ..counting.counts import UNKNOWN_PAIRS, UNKNOWN_PATH
from ..errors import FxflopsError, InputError, OutOfMemoryError
from ..model.files import CONFIG, checked_file
from ..model.inputs import COUNTED_FOR, bind, checked_model, signature_of
from ..model.modules import all_modules, class_name, parameters_of, state_tensors
from ..model.programs import Program
from ..model.pytree import fill, template_of
from ..prediction.result import Prediction
from ..report.exchange import rank
from ..report.report import Report
from ..roofline.devices import Device
from ..run.model_run import ON_META, cap_of
from ..run.progress import working
from ..units import size
from ..what_fits import CheckpointPlan
from .inputs import TOKENS, Given
from .libraries import is_file
from .models import Loaded, load
from .options import ATTENTION, Asked, given_by
from .shown import note
from .tensors import autocast_of, device_of, dtype_of, optimizer_of, tensors_of


def counted(name: str, asked: Asked) -> Report:
    """Count a model for the requested device. The count runs on the meta device; if the model needs the values of tensors and its weights
    fit in memory, the count runs on real tensors instead."""
    _check(asked, counts=True)
    if asked.place is not None and device_of(asked.place, needed=False).type not in (*COUNTED_FOR, "meta"):
        return _counted(name, asked, False)
    try:
        report = _counted(name, asked, True)
        # An attention mask on the meta device has no values, so it is unknown which pairs it keeps.
        reasons = [missing.why for missing in report.missing if missing.why in (UNKNOWN_PAIRS, UNKNOWN_PATH)]
        if not reasons or not _may_have_room(name, asked):
            return report
        reason = reasons[0]
    except FxflopsError as error:
        # Try again on real tensors only if the meta device caused the error.
        if not _is_of_meta(error) or not _may_have_room(name, asked):
            raise
        reason = [*_on_meta(error), str(error).partition("\n")[0]][0][:160]
    report = _counted(name, asked, False)
    if rank() == 0:
        made = "built with real weights and " if report.trace == ON_META else ""
        note(f"{name} needs the values of tensors, so it was {made}{report.trace}: {reason}")
    return report


def analyzed(
    name: str, asked: Asked, *, trace: str = "auto", repeats: int | str = "auto", compiled: bool = False
) -> Report:
    """Run a model on real tensors, and count and time every operation. With ``compiled``, also run the model under torch.compile."""
    _check(asked)
    if asked.autocast is not None:
        raise InputError(
            f"--autocast {asked.autocast} only works if the model is counted without being run: give --counts-only, or a card as --device"
        )
    is_made = name.startswith("hf:") or (is_file(name) and checked_file(name).name == CONFIG)
    weights = _weights_of(name, asked) if is_made and asked.place != "meta" else None
    if weights is not None and weights > 2 * cap_of(torch.device("cpu")):
        raise InputError(
            f"{name} has {size(weights)} of weights, more than this machine's memory; --counts-only allocates no weights"
        )
    with _quiet():
        model, args, kwargs = subject(name, asked, asked.place == "meta")
        run: Any = torch.compile(model) if compiled else model
        report = api.analyze(run, args, kwargs, trace=trace, repeats=repeats, **settings_of(asked))
    return report.with_name(name)


def check_loads(name: str, asked: Asked) -> None:
    """Raise InputError if a model does not exist or has no inputs. The model is built on the meta device, but not run.

    An error of code that builds a model is not raised, since the code may work on a real device.
    """
    _check(asked, counts=True)
    with _quiet():
        try:
            subject(name, asked, True, counts=True, tell=lambda line: None)
        except InputError as error:
            if error.__cause__ is None and not _is_of_meta(error):
                raise


def subject(
    name: str, asked: Asked, on_meta: bool, counts: bool = False, tell: Callable[[str], None] = note
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Load a model and move it to its device and dtype; return the model, its args and its kwargs.

    ``on_meta`` puts the model on the meta device. ``counts`` puts a model for a GPU on the CPU if this machine has no GPU. ``tell`` is
    called with a line of text about inputs that fxflops chose.
    """
    with working(f"loading {name}"):
        loaded = load(name, on_meta, asked.unsafe)
    model, (device, dtype) = checked_model(loaded.model), placed(asked, counts)
    if on_meta and device is not None:
        device = torch.device("meta")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Complex modules are a new feature")
            model = model.to(device=device, dtype=dtype)
    except Exception as error:
        raise InputError(f"{name} cannot be moved to its device and dtype: {type(error).__name__}: {error}") from error
    place = torch.device("meta") if on_meta else device or _place_of(model)
    return model, *_inputs(name, loaded, asked, model, place, device, dtype, tell)


class LargestBatch(NamedTuple):
    """The largest batch that fits, and the prediction of its time. If no batch fits, they are 0 and None."""

    size: int
    prediction: Prediction | None


def what_fits(
    name: str, asked: Asked, card: Device, is_too_large: bool
) -> Iterator[LargestBatch | CheckpointPlan | str]:
    """Yield the largest batch that fits on a card, as soon as it is known.

    If ``is_too_large`` says that the requested batch does not fit in training, then also yield a plan of the modules to checkpoint, or the
    reason why checkpointing does not help.
    """
    with _quiet():
        model, args, kwargs = subject(name, asked, True, counts=True, tell=lambda line: None)
        model.train(_trains(asked))
        template, tensors = template_of((args, kwargs))
        sizes = [tensor.shape[0] for tensor in tensors if tensor.dim()]
        if not sizes:
            raise InputError(f"cannot find the largest batch: no input of {name} has a batch dimension")

        def inputs_of(batch: int) -> tuple[Any, dict[str, Any]]:
            made = [
                t.new_empty((batch, *t.shape[1:])) if t.dim() and t.shape[0] == sizes[0] else t.clone() for t in tensors
            ]
            args, kwargs = fill(template, *made)
            return args, kwargs

        def make_inputs(batch: int) -> Any:
            args, kwargs = inputs_of(batch)
            return args if not kwargs else {**dict(zip(signature_of(model).parameters, args, strict=False)), **kwargs}

        optimizer, autocast = optimizer_of(asked.optimizer), autocast_of(asked.autocast)
        settings: dict[str, Any] = {"backward": asked.backward, "optimizer": optimizer, "autocast": autocast}
        found, prediction = api_of_fits.largest_batch(model, make_inputs, device=card, **settings), None
        if found:
            prediction = api.count(model, *inputs_of(found), device="cuda", **settings).predict(card)
    yield LargestBatch(found, prediction)
    if asked.backward and is_too_large:
        plan: CheckpointPlan | str
        with _quiet():
            try:
                plan = api_of_fits.plan_checkpoints(
                    model, args, kwargs, device=card, optimizer=optimizer, autocast=autocast
                )
            except OutOfMemoryError as error:
                plan = str(error)
        yield plan


def _check(asked: Asked, counts: bool = False) -> None:
    """Raise InputError for an unknown dtype, device or optimizer, before the model is loaded."""
    for each in given_by(asked):
        if each.dtype not in ("", TOKENS):
            dtype_of(each.dtype)
    placed(asked, counts)
    optimizer_of(asked.optimizer)
    autocast_of(asked.autocast)


def placed(asked: Asked, counts: bool = False) -> tuple[torch.device | None, torch.dtype | None]:
    """Return the requested device and dtype, None for each that was not requested.

    With ``counts``, a GPU is replaced by the CPU if this machine has no GPU, since counting needs none.
    """
    device = None if asked.place is None else device_of(asked.place, needed=not counts)
    if counts and device is not None and device.type == "cuda" and not torch.cuda.is_available():
        device = torch.device("cpu")
    return device, None if asked.dtype is None else dtype_of(asked.dtype, of_weights=True)


def _trains(asked: Asked) -> bool:
    """Return whether to run in train mode: as the options say, or by default only with a backward pass."""
    return asked.backward if asked.train is None else asked.train


def settings_of(asked: Asked) -> dict[str, Any]:
    """Return the keyword arguments that count() and analyze() share."""
    return {
        "mode": "train" if _trains(asked) else "eval",
        "backward": asked.backward,
        "convention": asked.convention or BASE_CONVENTION,
        "attention": asked.attention or ATTENTION,
    }


def _counted(name: str, asked: Asked, on_meta: bool) -> Report:
    with _quiet():
        model, args, kwargs = subject(name, asked, on_meta, counts=True)
        named = None if asked.place is None else device_of(asked.place, needed=False)
        device = named if named is not None and named.type in COUNTED_FOR else None
        optimizer, autocast = optimizer_of(asked.optimizer), autocast_of(asked.autocast)
        report = api.count(
            model, args, kwargs, optimizer=optimizer, device=device, autocast=autocast, **settings_of(asked)
        )
        return report.with_name(name)


def _may_have_room(name: str, asked: Asked) -> bool:
    """Return True if a model's weights fit in CPU memory, or if the size of the weights is unknown."""
    return (_weights_of(name, asked) or 0) < cap_of(torch.device("cpu"))


def _weights_of(name: str, asked: Asked) -> int | None:
    """Return the size of a model's weights in bytes; None if the model cannot be built on the meta device."""
    try:
        with _quiet():
            model = load(name, True, asked.unsafe).model
    except FxflopsError:
        return None
    return sum(p.numel() * p.element_size() for p in parameters_of(model))


def _inputs(
    name: str,
    loaded: Loaded,
    asked: Asked,
    model: nn.Module,
    place: torch.device,
    moved_to: torch.device | None,
    dtype: torch.dtype | None,
    tell: Callable[[str], None],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    inputs = given_by(asked)
    if not inputs and loaded.given is not None:
        if asked.batch is not None and not loaded.default:
            raise InputError(f"--batch {asked.batch}: {name} has its own inputs; give --input to replace them")
        if asked.batch is None:
            return _moved(loaded.given, moved_to, dtype)
    if not inputs and loaded.ask and (asked.batch is None or not loaded.is_batch):
        raise InputError(loaded.ask)
    if not inputs:
        if loaded.note and loaded.default:
            tell(f"{name}: {loaded.note}")
        inputs = loaded.default or _none_wanted(name, model)
    if asked.batch is not None:
        inputs = tuple(each._replace(shape=(asked.batch, *each.shape[1:])) for each in inputs)
    if asked.backward and loaded.to_train is not None:
        labels = loaded.to_train(inputs)
        if labels:
            tell(f"{name}: added labels of shape {'x'.join(map(str, labels[0].shape))} to compute the loss")
        inputs = (*inputs, *labels)
    if isinstance(model, Program):
        inputs = tuple(_typed(inputs, loaded.default))
    args, kwargs = tensors_of(_by_position(inputs, model), place, dtype or _precision_of(model), _vocabulary_of(model))
    bind(
        model,
        args,
        kwargs,
        "--input SHAPE is the next positional argument, --input NAME=SHAPE a named argument, --input NAME.KEY=SHAPE an entry of a dict",
    )
    return args, kwargs


def _typed(inputs: Sequence[Given], wanted: Sequence[Given]) -> Iterator[Given]:
    """Yield the inputs. An input without a dtype gets the dtype that the program was exported with."""
    dtypes = {each.name: each.dtype for each in wanted}
    for i, each in enumerate(inputs):
        own = dtypes.get(each.name) or (wanted[i].dtype if i < len(wanted) and not each.name else "")
        is_free = own.startswith(("float", "bfloat", "complex"))  # left open: --dtype may choose another dtype
        yield each._replace(dtype=each.dtype or ("" if is_free else own))


def _by_position(inputs: Sequence[Given], model: nn.Module) -> Iterator[Given]:
    """Yield the inputs. If the forward has no parameter ``input_ids``, the input of this name is passed by position."""
    parameters = signature_of(model).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    for each in inputs:
        is_renamed = each.name == "input_ids" and not takes_any and each.name not in parameters
        yield each._replace(name="") if is_renamed else each


def _none_wanted(name: str, model: nn.Module) -> tuple[Given, ...]:
    """Return no inputs for a forward that can be called without inputs; raise InputError for a forward that needs inputs."""
    parameters = signature_of(model).parameters
    is_any_wanted = any(
        each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        for each in parameters.values()
    )
    if not is_any_wanted and getattr(model, "main_input_name", None) is None:
        return ()
    names = ", ".join([*list(parameters)[:8], *(["..."] if len(parameters) > 8 else [])])
    raise InputError(
        f"{name} has no default inputs: give --input 1,3,224,224, --input NAME=1,80,3000 or --input-ids 1,128\n"
        f"  {class_name(model)}.forward takes ({names}); an entry of a dict is --input NAME.KEY=SHAPE;\n"
        "  the function in FILE.py:NAME may also return (model, inputs); with several models, the options apply to each"
    )


def _place_of(model: nn.Module) -> torch.device:
    """Return the device of the model's first parameter or buffer. A model without parameters and buffers is on the CPU."""
    return next((tensor.device for tensor in state_tensors(model)), torch.device("cpu"))


def _precision_of(model: nn.Module) -> torch.dtype:
    """Return the dtype of the model's first floating-point parameter. If there is no such parameter, return torch's default dtype."""
    return next((p.dtype for p in parameters_of(model) if p.is_floating_point()), torch.get_default_dtype())


def _vocabulary_of(model: nn.Module) -> int:
    """Return the number of rows of the model's first embedding; 2 if the model has no embedding."""
    return next((module.num_embeddings for module in all_modules(model) if isinstance(module, nn.Embedding)), 2)


def _moved(given: tuple[Any, Any], device: torch.device | None, dtype: torch.dtype | None) -> tuple[Any, Any]:
    """Return a model's own inputs, moved to this device and, if they are floating-point, to this dtype. None leaves them as they are."""
    template, tensors = template_of(given)
    args, kwargs = fill(
        template, *(t.to(device=device, dtype=dtype if t.is_floating_point() else None) for t in tensors)
    )
    return args, kwargs


def _quiet() -> AbstractContextManager[Any]:
    """Redirect text that a model prints to stderr, since stdout is for results."""
    return redirect_stdout(sys.stderr)


def _is_of_meta(error: BaseException | None) -> bool:
    """Return True if an error, or an error that caused it, mentions the meta device."""
    return error is not None and (bool(_on_meta(error)) or _is_of_meta(error.__cause__ or error.__context__))


def _on_meta(error: BaseException) -> list[str]:
    """Return the lines of an error message that mention the meta device. Leave out the line with the place in the user's file."""
    lines = map(str.strip, str(error).splitlines())
    return [line for line in lines if "meta" in line.lower() and not line.startswith("at ")]
