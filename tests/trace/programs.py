"""Random programs, run twice by a model that records how all their tensors lie: shape, strides, dtype and storage."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import fxflops
from fxflops.torch_internals import DisableTorchFunction

LENGTH = 25
DTYPES = [*[torch.float32] * 6, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
UNARY = """
    relu exp neg abs clone detach t T mT contiguous float double half bool long sigmoid square logical_not isnan
    flatten squeeze real sum mean amax max min var std argmax prod relu_ exp_ neg_ zero_ t_
    squeeze_ sigmoid_ bernoulli_ normal_ conj resolve_conj logsumexp aminmax sign view_as_real adjoint cumsum cumsum_
    sort flip unbind median var_mean all any diagonal softmax unsqueeze unsqueeze_ tril triu glu gelu silu hardswish
    dropout normalize log_softmax trace movedim_ norm flatten ravel unflatten_ angle imag
""".split()
BINARY = """
    add sub mul true_divide pow maximum eq lt logical_and add_ mul_ sub_ copy_ div_ atan2 matmul mm bmm expand_as
    view_as reshape_as type_as broadcast_tensors lerp fmod floor_divide __iadd__ __rsub__ __and__ outer __rpow__
    mse_loss addcmul masked_fill cdist remainder __rtruediv__ __eq__ index_select gather dot clamp_min nextafter
""".split()
MODULES = [
    nn.ReLU(), nn.ReLU(inplace=True), nn.Dropout(), nn.Identity(), nn.Flatten(), nn.Flatten(0), nn.GELU(), nn.Softmax(-1), nn.Sigmoid(),
    nn.MaxPool2d(2), nn.AvgPool2d(2, 1), nn.AdaptiveAvgPool2d(2), nn.AdaptiveMaxPool2d((1, None)), nn.Conv2d(2, 4, 1),
    nn.Conv2d(4, 2, 3, padding=1), nn.ConvTranspose2d(2, 2, 2), nn.Conv1d(3, 4, 2), nn.Conv3d(1, 2, 1), nn.Linear(2, 3), nn.Linear(3, 4),
    nn.Linear(4, 2, bias=False), nn.Linear(6, 4), nn.BatchNorm2d(2), nn.BatchNorm2d(4), nn.BatchNorm1d(4), nn.LayerNorm(4), nn.LayerNorm((2, 4)),
    nn.GroupNorm(2, 4), nn.GroupNorm(1, 2), nn.RMSNorm(4), nn.Upsample(scale_factor=2), nn.PixelShuffle(2), nn.ZeroPad2d(1), nn.ReflectionPad2d(1),
    nn.ChannelShuffle(2), nn.Unflatten(-1, (2, -1)), nn.InstanceNorm2d(2), nn.LSTM(4, 2), nn.Embedding(5, 3), nn.PReLU(), nn.Softplus(), nn.Hardtanh(inplace=True),
    nn.MultiheadAttention(4, 2), nn.Bilinear(4, 4, 2), nn.LPPool2d(2, 2), nn.Fold((4, 4), (2, 2)), nn.Unfold(2), nn.CosineSimilarity(), nn.Threshold(0.1, 1),
]  # fmt: skip


class Nth(int):
    """Stands for the tensor with this index."""


Step = tuple[Any, tuple[Any, ...], dict[str, Any]]


def given(rng: random.Random) -> torch.Tensor:
    """A random input on meta: plain, channels-last, transposed, sliced or expanded."""
    sizes = [rng.choice([1, 1, 2, 2, 3, 4, 4, 6]) for _ in range(rng.choice([1, 2, 2, 3, 3, 4, 4, 4, 5]))]
    if not rng.randrange(20):
        sizes[rng.randrange(len(sizes))] = 0
    x = torch.empty(sizes, dtype=rng.choice(DTYPES), device="meta")
    way = rng.choice(["plain", "plain", "last", "transposed", "sliced", "expanded"])
    if way == "last" and x.ndim in LAST:
        return x.contiguous(memory_format=LAST[x.ndim])
    if way == "transposed" and x.ndim > 1:
        return x.transpose(*rng.sample(range(x.ndim), 2))
    if way == "sliced":
        return x.repeat(*[2] * x.ndim)[tuple(slice(1, None, 2) for _ in sizes)]
    return x[:1].expand_as(x) if way == "expanded" and len(x) else x


def method(name: str) -> Any:
    """The tensor method of this name, or else the function."""
    found = next(getattr(space, name) for space in (torch.Tensor, torch, F) if hasattr(space, name))
    return found if callable(found) else found.__get__


def step(rng: random.Random, tensors: list[torch.Tensor], values: bool) -> Step:
    """A random call on these tensors. With ``values`` it may also make small tensors, which have values during a count."""
    i, j, k = (Nth(rng.randrange(len(tensors))) for _ in range(3))
    x = tensors[i]
    dim = rng.randrange(-max(x.ndim, 1), max(x.ndim, 1))
    order = rng.sample(range(x.ndim), x.ndim)
    cut = slice(*rng.choice([(None,), (1, None), (None, 2), (0, 1), (None, None, 2)]))
    number = rng.choice([2, 0.5, True, 2.0, 0, 1j])
    sizes = [*x.shape]
    kind = rng.choice(["unary", "unary", "binary", "binary", "view", "view", "join", "module", "module", "move", "new"])
    if kind == "unary":
        name = rng.choice(
            [name for name in UNARY if hasattr(torch.Tensor, name) or hasattr(F, name) or hasattr(torch, name)]
        )
        more: Any = rng.choice(
            [((), {}), ((), {}), ((dim,), {}), ((dim, True), {}), ((), {"dim": dim}), (((dim,),), {"keepdim": True})]
        )
        return method(name), (i, *more[0]), more[1]
    if kind == "binary":
        name = rng.choice(BINARY)
        two, more = [(i, j), (i, j), (i, j), (i, i), (i, number)], [(i, j, k), (i, j, number), (i, number, j)]
        if name[:2] == "__":
            return method(name), rng.choice(two), {}
        return method(name), rng.choice(two + more), rng.choice([{}] * 9 + [{"out": k}])
    if kind == "view":
        return rng.choice(
            [
                (method("view"), (i, -1), {}),
                (method("reshape"), (i, *reversed(sizes)), {}),
                (method("view"), (i, [1, *sizes]), {}),
                (method("permute"), (i, *order), {}),
                (method("transpose"), (i, dim, 0), {}),
                (method("transpose_"), (i, dim, 0), {}),
                (method("expand"), (i, 2, *[-1] * x.ndim), {}),
                (method("repeat"), (i, 2, *[1] * x.ndim), {}),
                (method("chunk"), (i, 2), {"dim": dim}),
                (method("split"), (i, 1, dim), {}),
                (method("split"), (i, [1, max(sizes[dim] - 1, 0)] if sizes else [1], dim), {}),
                (method("narrow"), (i, dim, 0, 1), {}),
                (method("select"), (i, dim, -1), {}),
                (method("unfold"), (i, dim, 2, 1), {}),
                (method("flatten"), (i, 0, dim), {}),
                (method("movedim"), (i, dim, 0), {}),
                (method("__getitem__"), (i, (..., cut)), {}),
                (method("__getitem__"), (i, (cut, None)), {}),
                (method("__getitem__"), (i, 0), {}),
                (method("__getitem__"), (i, (slice(None), [0, 0])), {}),
                (method("__setitem__"), (i, (..., cut), number), {}),
                (method("as_strided"), (i, (2, 2), (1, 1)), {}),
                (torch.meshgrid, (i, j), {"indexing": "ij"}),
            ]
        )
    if kind == "join":
        return (
            rng.choice([torch.cat, torch.stack, torch.hstack]),
            (rng.choice([[i, j], [i, i], [i, j, k], (i, i)]),),
            rng.choice([{}, {"dim": dim}]),
        )
    if kind == "module":
        return rng.choice(MODULES), (i,), {}
    if kind == "move":
        form = rng.choice([torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d])
        dtype = rng.choice(DTYPES)
        return rng.choice(
            [
                (method("to"), (i, dtype), {}),
                (method("to"), (i, j), {}),
                (method("to"), (i,), {"memory_format": form}),
                (method("to"), (i,), {"dtype": dtype, "copy": True}),
                (method("clone"), (i,), {"memory_format": form}),
                (method("contiguous"), (i,), {"memory_format": form}),
                (method("type"), (i, dtype), {}),
                (method("sum"), (i, dim), {"dtype": dtype}),
                (torch.roll, (i, 1, dim), {}),
                (F.pad, (i, [1, 0]), {}),
                (F.pad, (i, [1, 1, 0, 1]), {"mode": "reflect"}),
                (F.interpolate, (i,), {"scale_factor": rng.choice([2, 1.5])}),
                (F.interpolate, (i,), {"size": 5, "mode": "bilinear"}),
                (F.softmax, (i, dim), {"dtype": dtype}),
                (F.dropout, (i, 0.5, rng.random() < 0.5, rng.random() < 0.5), {}),
                (F.leaky_relu, (i, 0.1, rng.random() < 0.5), {}),
                (F.scaled_dot_product_attention, (i, i, i), {"is_causal": rng.random() < 0.5}),
                (F.scaled_dot_product_attention, (i, j, k), {}),
                (F.unfold, (i, 2), {}),
                (F.one_hot, (i, 5), {}),
                (F.embedding, (i, j), {}),
                (F.linear, (i, j), {}),
                (F.conv2d, (i, j), {"padding": 1}),
                (F.layer_norm, (i, sizes[-1:]), {}),
                (F.max_pool2d, (i, 2), {"return_indices": rng.random() < 0.5}),
                (torch.where, (i, j, k), {}),
                (torch.topk, (i, 1), {}),
                (torch.einsum, ("...i,...j->...ij", i, j), {}),
            ]
        )
    return rng.choice(
        [
            (torch.zeros, (1030, 1030), {"device": "meta"}),
            (torch.full, ((1030, 1030), 1), {"device": "meta", "dtype": torch.float64}),
            (method("new_zeros"), (i, 1030, 1030), {"dtype": torch.float16}),
            *(
                [
                    (torch.full, ((2, 4), number), {"device": "meta"}),
                    (torch.arange, (4,), {"device": "meta"}),
                    (torch.rand, (2, 1, 4), {"device": "meta"}),
                    (method("new_ones"), (i, (2, 4)), {}),
                    (torch.empty_like, (i,), {"dtype": rng.choice(DTYPES)}),
                    (torch.full_like, (i, number), {}),
                ]
                if values
                else []
            ),
        ]
    )


def filled(value: Any, tensors: list[torch.Tensor]) -> Any:
    if type(value) is Nth:
        return tensors[value]
    if type(value) in (tuple, list):
        return type(value)(filled(item, tensors) for item in value)
    return {name: filled(item, tensors) for name, item in value.items()} if type(value) is dict else value


def tensors_of(value: Any) -> list[torch.Tensor]:
    return [t for t in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(t, torch.Tensor)]


class Notes:
    """The records of programs, in an object that no forward names: a count restores the lists that a forward names."""

    def __init__(self) -> None:
        self.steps: list[Any] = []


NOTES = Notes()
"""How all tensors lay after each step. This is not an attribute of the model, because a count restores those."""


class Told(nn.Module):
    """Run a program twice, and record after each step how all tensors lie. The program is drawn during the first run.

    Steps for which ``unmade`` is true are dropped.
    """

    def __init__(
        self,
        seed: int,
        values: bool,
        length: int = LENGTH,
        unmade: Callable[[Step, list[torch.Tensor]], bool] | None = None,
    ) -> None:
        super().__init__()
        self.rng, self.values, self.length = random.Random(seed), values, length
        self.unmade = unmade or is_of_meta_alone
        self.parts = nn.ModuleList(MODULES).to("meta")
        self.inputs = [given(self.rng) for _ in range(4)]
        self.program: list[Step] = []

    def forward(self, *inputs: torch.Tensor) -> None:
        for _ in range(2):
            tensors = [x.detach() for x in inputs]
            for at in range(self.length):
                while at == len(self.program):
                    self.program.append(step(self.rng, tensors, self.values))
                    fails = raises(self.program[at], tensors) and self.rng.random() < 0.98
                    if fails or self.unmade(self.program[at], tensors):
                        self.program.pop()
                NOTES.steps.append(make(self.program[at], tensors))


def raises(step: Step, tensors: list[torch.Tensor]) -> bool:
    """Return whether this step raises when it is tried on copies."""
    with torch.no_grad():
        return isinstance(make(step, [t.as_strided(t.shape, t.stride()) for t in tensors])[-1], str)


def is_of_meta_alone(step: Step, tensors: list[torch.Tensor]) -> bool:
    """Return whether only meta can run this step. A count refuses such a step."""
    from fxflops.ops import BASE
    from fxflops.trace.dtypes import are_refused

    function, args, kwargs = step
    given = [t for value in (filled(args, tensors), *filled(kwargs, tensors).values()) for t in tensors_of(value)]
    parameters = function.parameters() if isinstance(function, nn.Module) else ()
    entry = BASE.find(type(function) if isinstance(function, nn.Module) else function)
    return entry is not None and are_refused(entry.op, [t.dtype for t in (*given, *parameters)], "cpu")


def make(step: Step, tensors: list[torch.Tensor]) -> list[Any]:
    """Make the call, append its results to the tensors, and return how all tensors lie, plus the name of an error."""
    function, args, kwargs = step
    told: list[Any] = []
    try:
        tensors += tensors_of(function(*filled(args, tensors), **filled(kwargs, tensors)))
    except Exception as error:
        told = [type(error).__name__]
    with DisableTorchFunction():
        storages = [t.untyped_storage()._cdata for t in tensors]
        return [lies(t, storages) for t in tensors] + told


def lies(tensor: torch.Tensor, storages: list[int]) -> tuple[Any, ...]:
    storage = tensor.untyped_storage()
    # Ignore a scalar's bytes: a loss keeps the storage of its elements, as on a device, but meta's kernels allocate one number.
    nbytes = storage.nbytes() if tensor.ndim else 0
    return (
        tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.storage_offset(), nbytes,
        tensor.is_conj(), storages.index(storage._cdata),
    )  # fmt: skip


NUMBERS = 64
MEMORY = ("max_memory", "memory", "live_at_peak")


def noted(run: Callable[[], Any]) -> tuple[Any, list[Any]]:
    NOTES.steps.clear()
    return run(), [*NOTES.steps]


def differs(seed: int, values: bool, length: int = LENGTH) -> str:
    """Describe the first difference between a run under a count and without one; empty if there is none.

    With ``values``, compare with a count that runs the meta kernels instead."""
    from tests.trace.beside import facts_of, kernels_asked

    model = Told(seed, values, length).eval()
    inputs = tuple(model.inputs)
    with torch.no_grad():
        _, wanted = noted(lambda: model(*inputs))
    report, found = noted(lambda: fxflops.count(model, inputs))
    asked, otherwise = noted(lambda: kernels_asked(model, inputs))
    if asked.trace != "counted on the meta device":
        return "" if values and report.trace == asked.trace else f"{report.trace}: {report.trace_reason}"
    for at, pair in enumerate(zip_longest(otherwise if values else wanted, found)):
        if pair[0] != pair[1]:
            number, lying = next(each for each in enumerate(zip_longest(*pair)) if each[1][0] != each[1][1])
            ran = filled(model.program[at % length], wanted[at])
            return f"step {at} of {len(found)}: {ran} gives tensor {number}: {lying}"
    before = facts_of(asked)
    raised = any(isinstance(each[-1], str) for each in found)  # tensors made then are freed later, with the traceback
    beside = (
        0 <= asked.max_memory - report.max_memory <= NUMBERS
    )  # kernels also allocate small temporaries, which no rule describes
    for name, value in facts_of(report).items():
        if value != before[name] and not (name == "timeline" or ((raised or beside) and name in MEMORY)):
            lists = (value, before[name]) if isinstance(value, list) else ([value], [before[name]])
            return f"{name}: {next(each for each in enumerate(zip_longest(*lists)) if each[1][0] != each[1][1])}"
    return ""
