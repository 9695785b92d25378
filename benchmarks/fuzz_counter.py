"""An independent counter: a dispatch mode that counts multiply-accumulates on real tensors, and FLOPs where a textbook gives them.

Nothing is imported from ``fxflops``. The rules are the definitions, applied to the shapes of the aten operators that ran. A product
of [m, k] and [k, n] has mkn multiply-accumulates. A convolution has one per output and weight of its window. Attention has two
products over its scores, and its gradient has four. A recurrent step has the products with its matrices.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Rule = Callable[..., int]


def _mm(a: Any, b: Any) -> int:
    return a.shape[0] * a.shape[1] * b.shape[1]


def _bmm(a: Any, b: Any) -> int:
    return a.shape[0] * a.shape[1] * a.shape[2] * b.shape[2]


def _window(weight: Any) -> int:
    return math.prod(weight.shape[1:])


def convolution(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, out: Any
) -> int:
    """Count the weights of a window once per output, or once per input if the convolution is transposed."""
    return (x if transposed else out).numel() * _window(weight)


def _convolution_backward(grad: Any, x: Any, weight: Any, sizes: Any, *rest: Any) -> int:
    transposed, mask = rest[3], rest[6]
    return (x if transposed else grad).numel() * _window(weight) * (mask[0] + mask[1])


def _scores(q: Any, k: Any) -> int:
    return math.prod(q.shape[:-1]) * k.shape[-2]


def _attention(q: Any, k: Any, v: Any, *rest: Any) -> int:
    return _scores(q, k) * (q.shape[-1] + v.shape[-1])


def _attention_backward(grad: Any, q: Any, k: Any, v: Any, *rest: Any) -> int:
    return 2 * _attention(q, k, v)


def _rnn(x: Any, w_ih: Any, w_hh: Any, *rest: Any) -> int:
    return math.prod(x.shape[:-1]) * (w_ih.numel() + w_hh.numel())


def _rnn_backward(x: Any, w_ih: Any, w_hh: Any, w3: Any, w4: Any, hx: Any, *rest: Any) -> int:
    """Count the gradients of both matrices and of the states. The input and the first state count only if they require a gradient."""
    steps, batch = x.shape[0], x.shape[1]
    matrices = steps * batch * (w_ih.numel() + w_hh.numel())
    states = (steps - 1 + hx.requires_grad) * batch * w_hh.numel()
    return matrices + states + (steps * batch * w_ih.numel() if x.requires_grad else 0)


def _projections(q: Any, k: Any, v: Any, width: int, heads: int, w_in: Any, b_in: Any, w_out: Any, *rest: Any) -> int:
    tokens = [math.prod(t.shape[:-1]) for t in (q, k, v)]
    scores = q.shape[0] * q.shape[1] * k.shape[1]
    return sum(tokens) * width * width + 2 * scores * width + tokens[0] * width * width


def _encoder(x: Any, width: int, heads: int, w_in: Any, b_in: Any, w_out: Any, *rest: Any) -> int:
    hidden = rest[8]
    tokens = math.prod(x.shape[:-1])
    return _projections(x, x, x, width, heads, w_in, b_in, w_out) + 2 * tokens * hidden.numel()


MACS: dict[str, Rule] = {
    "mm": _mm,
    "bmm": _bmm,
    "addmm": lambda c, a, b, *_: _mm(a, b),
    "_addmm_activation": lambda c, a, b, *_: _mm(a, b),
    "baddbmm": lambda c, a, b, *_: _bmm(a, b),
    "addbmm": lambda c, a, b, *_: _bmm(a, b),
    "mv": lambda a, v: a.numel(),
    "addmv": lambda c, a, v, *_: a.numel(),
    "dot": lambda a, b: a.numel(),
    "vdot": lambda a, b: a.numel(),
    "linalg_vecdot": lambda a, b, *_: a.numel(),
    "convolution_backward": _convolution_backward,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "mkldnn_rnn_layer": _rnn,
    "mkldnn_rnn_layer_backward": _rnn_backward,
    "_native_multi_head_attention": _projections,
    "_transformer_encoder_layer_fwd": _encoder,
}
UNDEFINED = frozenset(
    "linalg_matrix_exp linalg_solve_triangular linalg_householder_product _trilinear linalg_qr".split()
)
"""Operators whose number of products depends on the algorithm."""
FREE = frozenset(
    """
    view _unsafe_view reshape transpose t permute expand slice select clone copy_ detach alias unsqueeze squeeze unbind split
    split_with_sizes cat stack contiguous empty empty_like zeros zeros_like ones ones_like new_zeros new_empty full full_like
    as_strided _to_copy narrow unfold flip roll index_select gather embedding _reshape_alias repeat diagonal fill_ zero_ lift_fresh
    empty_strided new_empty_strided new_ones view_as_real view_as_complex constant_pad_nd arange scalar_tensor resize_ index
    """.split()
)
ONE = frozenset(
    "add sub mul div neg relu maximum minimum reciprocal sqrt exp log abs sin cos clamp_min clamp_max".split()
)
"""Operators with one operation per element of the result."""


def _added(k: int, outputs: int, bias: bool) -> int:
    return (2 * k - 1 + bias) * outputs if k else 0


FLOPS: dict[str, Rule] = {
    "mm": lambda args, out: _added(args[0].shape[1], out.numel(), False),
    "bmm": lambda args, out: _added(args[0].shape[2], out.numel(), False),
    "mv": lambda args, out: _added(args[0].shape[1], out.numel(), False),
    "dot": lambda args, out: _added(args[0].numel(), 1, False),
    "sum": lambda args, out: args[0].numel() - out.numel(),
    "mean": lambda args, out: args[0].numel(),
    "amax": lambda args, out: args[0].numel() - out.numel(),
    "amin": lambda args, out: args[0].numel() - out.numel(),
}


class Independent(TorchDispatchMode):
    """Counts everything that runs inside, including threads of :func:`in_thread`.

    ``by`` has the MACs by operator, and ``macs`` is their sum. The caller sets ``forward``, the MACs of the forward pass. ``flops`` is
    None once an operator without a textbook rule has run. ``undefined`` are the operators that ran whose MACs have no textbook
    definition.
    """

    current: ClassVar[Independent | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.by: Counter[str] = Counter()
        self.flops: int | None = 0
        self.undefined: set[str] = set()
        self.forward = 0
        self.products = Products(self)

    @property
    def macs(self) -> int:
        return self.by.total()

    def __enter__(self) -> Any:
        Independent.current = self
        self.products.__enter__()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self.products.__exit__(*raised)
        Independent.current = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func._schema.name.partition("::")[2]
        if name[-1] == "_" and name[:-1] in {*MACS, *FLOPS, *ONE}:
            name = name[:-1]
        if name == "convolution":
            self.by[name] += convolution(*args[:7], out=out)
        elif name in MACS:
            complexes = any(isinstance(arg, torch.Tensor) and arg.is_complex() for arg in args)
            self.by[name] += MACS[name](*args) * (4 if complexes else 1)
        elif name in UNDEFINED:
            self.undefined.add(name)
        self._flops(name, args, kwargs, out)
        return out

    def _flops(self, name: str, args: Any, kwargs: Any, out: Any) -> None:
        if self.flops is None or name in FREE or (isinstance(out, torch.Tensor) and not out.is_floating_point()):
            if isinstance(out, torch.Tensor) and not out.is_floating_point() and name not in FREE:
                self.flops = None  # a comparison of floats, or arithmetic of integers
            return
        if name in ONE and kwargs.get("alpha", 1) == 1:
            self.flops += out.numel()
        elif name == "addmm" and not kwargs:
            self.flops += _added(args[1].shape[1], out.numel(), True)
        elif name == "baddbmm" and not kwargs:
            self.flops += _added(args[1].shape[2], out.numel(), True)
        elif name == "convolution" and not args[6]:
            self.flops += _added(_window(args[1]), out.numel(), args[2] is not None)
        elif name in FLOPS:
            self.flops += FLOPS[name](args, out)
        else:
            self.flops = None


class Products(TorchFunctionMode):
    """Counts outer products as one multiply-accumulate per element; to the dispatch mode they are plain multiplications.

    Also counts a number divided by a tensor as one division per element.
    """

    def __init__(self, counter: Independent) -> None:
        self.counter = counter

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.__rtruediv__, torch.Tensor.__rdiv__):
            return self._divided(*args)
        products = self.counter.by["bmm"]
        out = func(*args, **(kwargs or {}))
        if func is torch.einsum and self.counter.by["bmm"] == products and len(args) > 2:
            self.counter.by["outer"] += out.numel()  # an outer product: nothing is summed over
        if func in (torch.outer, torch.Tensor.outer, torch.ger, torch.kron, torch.addr):
            self.counter.by["outer"] += out.numel()
        return out

    def _divided(self, x: Any, number: Any) -> Any:
        """Count one division per element. Torch itself computes a reciprocal and a product."""
        known = self.counter.flops
        out = x.reciprocal() * number
        self.counter.flops = None if known is None else known + out.numel()
        return out


def recounted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with the counter's function mode on, even if autograd calls it: ``backward`` runs outside function modes."""

    def run(*args: Any, **kwargs: Any) -> Any:
        on = torch._C._len_torch_function_stack() or Independent.current is None
        with nullcontext() if on else Products(Independent.current):
            return function(*args, **kwargs)

    return run


def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Run a function in a new thread, counted as in this thread, and return its result."""
    counter = Independent.current
    grad = torch.is_grad_enabled()

    def run() -> Any:
        with torch.set_grad_enabled(grad):
            if counter is None:
                return function(*args)
            with Products(counter), _Also(counter):
                return function(*args)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


class _Also(TorchDispatchMode):
    """The part of the counter that runs in another thread."""

    def __init__(self, counter: Independent) -> None:
        super().__init__()
        self.counter = counter
        self.lock = threading.Lock()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self.lock:
            return self.counter.__torch_dispatch__(func, types, args, kwargs)
