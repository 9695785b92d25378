"""Fourier transforms, in real operations: 5 n log2 n for n complex points, half of it if the input or output is real.

FFTW's benchmarks use this nominal count for every length and library: http://www.fftw.org/speed/method.html
Scaling by ``norm`` is not counted. In several dims, n is the product of the lengths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ._extend import Sizes, Spec, each, formula, named, zero


@formula(*named("fft", "ifft", "hfft", "irfft"))
def fft(input: Spec, n: int | None = None, dim: int = -1, *, out: Spec) -> int:
    """input[*, k] -> out[*, n]: 5 n log2 n per row, half that if input or out is real."""
    return fftn(input, n, dim, out=out)


@formula(*named("rfft", "ihfft"), op="fft")
def rfft(input: Spec, n: int | None = None, dim: int = -1, *, out: Spec) -> int:
    """input[*, n] -> out[*, n//2 + 1]: 2.5 n log2 n per row."""
    return rfftn(input, n, dim, out=out)


@formula(*named("fft2", "ifft2", "hfft2", "irfft2"), op="fft")
def fft2(input: Spec, s: Sizes | None = None, dim: Sizes = (-2, -1), *, out: Spec) -> int:
    """input[*, k, l] -> out[*, m, n]: 5 mn log2 mn per plane, half that if input or out is real."""
    return fftn(input, s, dim, out=out)


@formula(*named("rfft2", "ihfft2"), op="fft")
def rfft2(input: Spec, s: Sizes | None = None, dim: Sizes = (-2, -1), *, out: Spec) -> int:
    """input[*, m, n] -> out[*, m, n//2 + 1]: 2.5 mn log2 mn per plane."""
    return rfftn(input, s, dim, out=out)


@formula(*named("fftn", "ifftn", "hfftn", "irfftn"), op="fft")
def fftn(input: Spec, s: Sizes | None = None, dim: Sizes | None = None, *, out: Spec) -> int:
    """input[*, *k] -> out[*, *n]: 5 N log2 N for N = prod(n) points, half that if input or out is real."""
    dims = _dims(input, s, dim)
    return _transforms(input, out, dims, out[dims[-1]])


@formula(*named("rfftn", "ihfftn"), op="fft")
def rfftn(input: Spec, s: Sizes | None = None, dim: Sizes | None = None, *, out: Spec) -> int:
    """input[*, *n] -> out[*, *n]: 2.5 N log2 N for N = prod(n) points; out keeps half the last dim."""
    dims = _dims(input, s, dim)
    return _transforms(input, out, dims, _last(s, input[dims[-1]]))


@formula("aten::_fft_c2c", "aten::_fft_c2r", op="fft")
def fft_to_full(input: Spec, dim: Sequence[int], *, out: Spec) -> int:
    """input[*, *k] -> out[*, *n]: 5 N log2 N for N = prod(n) points, half that if out is real."""
    return _transforms(input, out, dim, out[dim[-1]])


@formula("aten::_fft_r2c", op="fft")
def fft_to_half(input: Spec, dim: Sequence[int], *, out: Spec) -> int:
    """input[*, *n] -> out[*, *n]: 2.5 N log2 N for N = prod(n) points."""
    return _transforms(input, out, dim, input[dim[-1]])


@formula(*named("stft"))
def stft(input: Spec, n_fft: int, *, window: Spec | None = None, out: Spec) -> int:
    """input[*, t], window[n] -> out[*, f, frames]: per frame, n multiplies by the window and a transform of n points."""
    frames = out.numel() // (out[-2] if out.dtype.is_complex else 2 * out[-3])
    return frames * n_fft * (window is not None) + _operations(n_fft, frames, not input.dtype.is_complex)


@formula(*named("istft"))
def istft(input: Spec, n_fft: int, *, window: Spec | None = None, out: Spec) -> int:
    """input[*, f, frames], window[n] -> out[*, t]: per frame, a transform of n points, n multiplies and n adds; plus 1 divide per output."""
    frames = input.numel() // input[-2]
    multiplied_and_added = frames * n_fft * (1 + (window is not None))
    return multiplied_and_added + _operations(n_fft, frames, not out.dtype.is_complex) + out.numel()


zero("move", *named("fftshift", "ifftshift"), op="fftshift")
zero("create", *named("fftfreq", "rfftfreq"), op="fftfreq")


def _transforms(input: Spec, out: Spec, dims: Sequence[int], last: int) -> int:
    """Return the operations of all transforms over ``dims``, with ``last`` points in the last dim."""
    points = math.prod(out[d] for d in dims[:-1]) * last
    transforms = math.prod(size for d, size in enumerate(input) if d not in {d % input.ndim for d in dims})
    return _operations(points, transforms, not (input.dtype.is_complex and out.dtype.is_complex))


def _operations(points: int, transforms: int, real: bool) -> int:
    return round((2.5 if real else 5) * points * math.log2(points) * transforms) if points else 0


def _dims(input: Spec, s: Sizes | None, dim: Sizes | None) -> Sequence[int]:
    """Return the dims of an n-dimensional transform: ``dim``, else as many last dims as ``s`` has lengths, else all."""
    if dim is not None:
        return each(dim, 1)
    return range(-(input.ndim if s is None else len(each(s, 1))), 0)


def _last(s: Sizes | None, otherwise: int) -> int:
    """Return the last length in ``s``; ``otherwise`` if ``s`` is None or that length is -1."""
    return otherwise if s is None or each(s, 1)[-1] == -1 else each(s, 1)[-1]
