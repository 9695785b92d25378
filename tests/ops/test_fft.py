"""Fourier transforms against 5 n log2 n, with the numbers written out."""

from __future__ import annotations

import pytest
import torch

from tests.oracle import cost_of

aten = torch.ops.aten
REAL, COMPLEX = torch.zeros(3, 8, 16), torch.zeros(3, 8, 16, dtype=torch.complex64)
ROW, ROWS = 5 * 16 * 4, 3 * 8
PLANE, PLANES = 5 * (8 * 16) * 7, 3


def test_rows_of_complex_numbers():
    assert cost_of(torch.fft.fft, COMPLEX).flops == ROWS * ROW
    assert cost_of(torch.fft.ifft, COMPLEX).flops == ROWS * ROW
    assert cost_of(torch.fft.fft, COMPLEX, dim=1).flops == (3 * 16) * (5 * 8 * 3)
    assert cost_of(aten.fft_fft.default, COMPLEX).flops == ROWS * ROW
    assert cost_of(aten._fft_c2c.default, COMPLEX, [2], 0, True).flops == ROWS * ROW


def test_padded_and_cut_rows():
    assert cost_of(torch.fft.fft, COMPLEX, n=32).flops == ROWS * (5 * 32 * 5)
    assert cost_of(torch.fft.rfft, REAL, n=4).flops == ROWS * (5 * 4 * 2) // 2


def test_half_from_or_to_real_numbers():
    half = cost_of(torch.fft.rfft, REAL)
    assert half.flops == ROWS * ROW // 2
    assert half == cost_of(torch.fft.fft, REAL) == cost_of(torch.fft.ihfft, REAL)
    assert half == cost_of(torch.fft.irfft, COMPLEX[..., :9]) == cost_of(torch.fft.hfft, COMPLEX[..., :9])
    assert half == cost_of(aten._fft_r2c.default, REAL, [2], 0, True)
    assert half == cost_of(aten._fft_c2r.default, COMPLEX[..., :9], [2], 0, 16)


def test_planes():
    assert cost_of(torch.fft.fft2, COMPLEX).flops == cost_of(torch.fft.ifft2, COMPLEX).flops == PLANES * PLANE
    half = cost_of(torch.fft.rfft2, REAL)
    assert half.flops == PLANES * PLANE // 2
    assert half == cost_of(torch.fft.ihfft2, REAL) == cost_of(torch.fft.rfft2, REAL, s=(8, 16))
    assert half == cost_of(torch.fft.irfft2, COMPLEX[..., :9]) == cost_of(torch.fft.hfft2, COMPLEX[..., :9])


def test_volumes():
    volume = COMPLEX[:2]
    assert cost_of(torch.fft.fftn, volume).flops == 5 * (2 * 8 * 16) * 8
    assert cost_of(torch.fft.fftn, volume, dim=(1, 2)).flops == 2 * PLANE
    assert cost_of(torch.fft.ifftn, volume, s=(8, 16)).flops == 2 * PLANE
    half = cost_of(torch.fft.rfftn, REAL[:2])
    assert half.flops == 5 * (2 * 8 * 16) * 8 // 2
    assert half == cost_of(torch.fft.irfftn, volume[..., :9]) == cost_of(torch.fft.ihfftn, REAL[:2])


def test_one_dim_or_length_may_stand_for_a_sequence():
    rows = cost_of(torch.fft.fft, COMPLEX)
    assert rows == cost_of(torch.fft.fft2, COMPLEX, dim=-1) == cost_of(torch.fft.fftn, COMPLEX, dim=-1)
    assert rows == cost_of(torch.fft.ifftn, COMPLEX, s=16, dim=-1)
    halves = cost_of(torch.fft.rfft, REAL)
    assert halves == cost_of(torch.fft.rfft2, REAL, dim=-1) == cost_of(torch.fft.rfftn, REAL, s=16, dim=-1)


def test_a_length_that_is_no_power_of_two_is_rounded():
    """5 * 3 * log2(3) = 23.77."""
    assert cost_of(torch.fft.fft, torch.zeros(3, dtype=torch.complex64)).flops == 24


def test_short_time_transforms_of_windowed_frames():
    """Frames of 16 samples, every 4 of 64: 17 frames, with padding of 8 on either side."""
    x, window = torch.zeros(2, 64), torch.hann_window(16)
    spectrum = torch.stft(x, 16, 4, window=window, return_complex=True)
    frames = 2 * 17
    expected = frames * (16 + 5 * 16 * 4 // 2)
    assert cost_of(torch.stft, x, 16, 4, window=window, return_complex=True).flops == expected
    assert cost_of("stft", x, 16, 4, window=window, return_complex=True).flops == expected
    back = frames * (5 * 16 * 4 // 2 + 16 + 16) + 2 * 64
    assert cost_of(torch.istft, spectrum, 16, 4, window=window).flops == back


@pytest.mark.parametrize("shift", [torch.fft.fftshift, torch.fft.ifftshift, aten.fft_fftshift.default])
def test_shifting_moves_values(shift):
    assert cost_of(shift, COMPLEX).flops == 0
