"""Reports of convolutions, transposed convolutions, and torchvision's operators on regions and deformed grids."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torchvision import ops

from tests.test_reports import Case, check, every_way, f, of

b, i, o, g = 2, 6, 9, 3  # batch, channels in and out, groups
H, W = 11, 13
kh, kw = 3, 5
WINDOW = kh * kw
TRANSPOSED = b * i * H * W * WINDOW  # each input meets its weights once for every output channel of its group


def unfolded(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.weight @ F.unfold(x, (kh, kw))


def deformed(m: Any, x: torch.Tensor, offset: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    return ops.deform_conv2d(x, offset, m.weight, m.bias, padding=1, mask=mask)


def scaled(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.conv(F.interpolate(x, scale_factor=2))


def u_shaped(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, m.up(m.down(x))], 1)


boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0], [1.0, 1.0, 5.0, 6.0], [2.0, 3.0, 8.0, 9.0]])
regions = torch.cat([torch.tensor([[0.0], [0.0], [1.0]]), boxes], 1)
x = f(b, i, H, W)

CASES = [
    # ptflops#9, thop#8, #34, #41, fvcore#45: every output is i/g channels of kh*kw products.
    # (11 + 2*1 - 3)//2 + 1 = 6 high, 13 + 2*2 - 5 + 1 = 13 wide.
    Case(
        "strided",
        nn.Conv2d(i, o, (kh, kw), (2, 1), (1, 2)),
        x,
        macs=b * o * (6 * 13) * i * WINDOW,
        flops=b * o * 6 * 13 * (2 * i * WINDOW),
    ),
    Case(
        "no-bias",
        nn.Conv2d(i, o, (kh, kw), bias=False),
        x,
        macs=b * o * (9 * 9) * i * WINDOW,
        flops=b * o * 81 * (2 * i * WINDOW - 1),
    ),
    # A complex product is 4 multiplies and 2 adds; a complex sum is 2 adds.
    Case(
        "complex",
        nn.Conv2d(i, o, (kh, kw), dtype=torch.complex64),
        x.cfloat(),
        macs=4 * b * o * (9 * 9) * i * WINDOW,
        flops=b * o * 81 * (6 + 2) * i * WINDOW,
    ),
    Case("grouped", nn.Conv2d(i, o, (kh, kw), groups=g), x, macs=b * o * (9 * 9) * (i // g) * WINDOW),
    Case("depthwise", nn.Conv2d(i, i, 3, padding=1, groups=i), x, macs=b * i * (H * W) * 9),
    Case("depthwise-multiplied", nn.Conv2d(i, 2 * i, 3, groups=i), x, macs=b * (2 * i) * (9 * 11) * 9),
    Case(
        "separable",
        nn.Sequential(nn.Conv2d(i, i, 3, groups=i), nn.Conv2d(i, o, 1)),
        x,
        macs=b * (9 * 11) * (i * 9 + i * o),
    ),
    # 11 - 2*2 = 7 high, 13 - 3*4 = 1 wide.
    Case("dilated", nn.Conv2d(i, o, (kh, kw), dilation=(2, 3)), x, macs=b * o * (7 * 1) * i * WINDOW),
    # flops-profiler#7, DeepSpeed#2414: padding as a string.
    Case("same", nn.Conv2d(i, o, (kh, kw), padding="same"), x, macs=b * o * (H * W) * i * WINDOW),
    Case("same-dilated", nn.Conv2d(i, o, (kh, 4), padding="same", dilation=2), x, macs=b * o * (H * W) * i * kh * 4),
    Case("valid", nn.Conv2d(i, o, (kh, kw), padding="valid"), x, macs=b * o * (9 * 9) * i * WINDOW),
    Case(
        "circular",
        nn.Conv2d(i, o, (kh, kw), padding=(1, 2), padding_mode="circular"),
        x,
        macs=b * o * (H * W) * i * WINDOW,
    ),
    Case("reflected", nn.Conv2d(i, o, 3, padding=2, padding_mode="reflect"), x, macs=b * o * (13 * 15) * i * 9),
    Case("unbatched", nn.Conv2d(i, o, (kh, kw)), f(i, H, W), macs=o * (9 * 9) * i * WINDOW),
    # DeepSpeed#1949: a negative count for nn.Conv1d.
    Case("conv1d", nn.Conv1d(i, o, 5, 2, padding=1), f(b, i, 17), macs=b * o * 8 * i * 5),
    Case("conv1d-causal", nn.Conv1d(i, i, 4, padding=3, groups=i), f(b, i, 17), macs=b * i * 20 * 4),
    Case("conv3d", nn.Conv3d(i, o, (2, 3, 5), groups=g), f(b, i, 3, 7, 11), macs=b * o * (2 * 5 * 7) * (i // g) * 30),
    Case(
        "function",
        of(lambda m, x: F.conv2d(x, m.w, stride=2, groups=g), w=f(o, i // g, kh, kw)),
        x,
        macs=b * o * (5 * 5) * (i // g) * WINDOW,
    ),
    Case(
        "function-of-torch", of(lambda m, x: torch.conv1d(x, m.w), w=f(o, i, 5)), f(b, i, 17), macs=b * o * 13 * i * 5
    ),
    Case("unfolded", of(unfolded, weight=f(o, i * WINDOW)), x, macs=b * o * (9 * 9) * i * WINDOW),
    # thop#20, #93, ptflops#57, fvcore#78, DeepSpeed#3815, calflops#33, pytorch#119806: by the input's size, not the output's.
    Case("transposed", nn.ConvTranspose2d(i, o, (kh, kw)), x, macs=TRANSPOSED * o),
    Case("transposed-strided", nn.ConvTranspose2d(i, o, (kh, kw), (2, 3), (1, 2), (1, 0)), x, macs=TRANSPOSED * o),
    Case("transposed-grouped", nn.ConvTranspose2d(i, o, (kh, kw), 2, groups=g), x, macs=TRANSPOSED * (o // g)),
    Case("transposed-depthwise", nn.ConvTranspose2d(i, i, (kh, kw), 2, groups=i, bias=False), x, macs=TRANSPOSED),
    Case("transposed-dilated", nn.ConvTranspose2d(i, o, (kh, kw), dilation=2), x, macs=TRANSPOSED * o),
    Case(
        "transposed-to-a-size",
        of(lambda m, x: m.up(x, output_size=(22, 26)), up=nn.ConvTranspose2d(i, o, 2, 2)),
        x,
        macs=b * i * (H * W) * o * 4,
    ),
    # Doubles the size without overlap: every output is i products and a bias.
    Case(
        "transposed-doubling",
        nn.ConvTranspose2d(i, o, 2, 2),
        x,
        macs=b * i * (H * W) * o * 4,
        flops=b * o * (22 * 26) * (2 * i),
    ),
    Case("transposed-unbatched", nn.ConvTranspose2d(i, o, (kh, kw)), f(i, H, W), macs=i * (H * W) * o * WINDOW),
    Case("transposed-1d", nn.ConvTranspose1d(i, o, 5, 3, padding=2), f(b, i, 17), macs=b * i * 17 * o * 5),
    Case(
        "transposed-3d",
        nn.ConvTranspose3d(i, o, (2, 3, 5), groups=g),
        f(b, i, 3, 7, 11),
        macs=b * i * (3 * 7 * 11) * (o // g) * 30,
    ),
    Case(
        "transposed-function",
        of(lambda m, x: F.conv_transpose2d(x, m.w, groups=g), w=f(i, o // g, kh, kw)),
        x,
        macs=TRANSPOSED * (o // g),
    ),
    # In between: (11 - 3)//2 + 1 = 5 by (13 - 3)//2 + 1 = 6.
    Case(
        "u-shaped",
        of(u_shaped, down=nn.Conv2d(i, o, 3, 2), up=nn.ConvTranspose2d(o, i, 3, 2)),
        x,
        macs=2 * b * (5 * 6) * i * o * 9,
    ),
    Case("interpolated", of(scaled, conv=nn.Conv2d(i, o, 3)), x, macs=b * o * (20 * 24) * i * 9),
    Case(
        "normalized-and-pooled",
        nn.Sequential(
            nn.Conv2d(i, o, 3), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        ),
        x,
        macs=b * o * (9 * 11) * i * 9,
    ),
    Case(
        "channels-last",
        nn.Conv2d(i, o, 3).to(memory_format=torch.channels_last),
        x.to(memory_format=torch.channels_last),
        macs=b * o * (9 * 11) * i * 9,
    ),
    # fvcore#121, thop#153, mmdetection#8727, EDVR#182: a deformable convolution is a convolution of sampled inputs.
    Case(
        "deformable",
        of(deformed, weight=f(o, i, 3, 3), bias=f(o)),
        (x, f(b, 2 * 9, H, W)),
        macs=b * o * (H * W) * i * 9,
    ),
    # A sample is 4 products and 3 adds, and 1 more for the mask. Then comes the convolution with its bias.
    Case(
        "deformable-masked-grouped",
        of(deformed, weight=f(o, i // g, 3, 3), bias=f(o)),
        (x, f(b, 2 * 9, H, W), f(b, 9, H, W)),
        macs=b * o * (H * W) * (i // g) * 9,
        flops=b * (H * W) * (i * 9 * 8 + o * 2 * (i // g) * 9),
    ),
    Case(
        "deformable-module",
        of(lambda m, x, offset: m.conv(x, offset), conv=ops.DeformConv2d(i, o, 3)),
        (x, f(b, 18, 9, 11)),
        macs=b * o * (9 * 11) * i * 9,
    ),
    # mmdetection#1911, torchprofile#21: 2 x 2 samples of 7 operations for each of 5 x 7 bins, averaged by 3 adds and 1 divide.
    Case(
        "roi-align",
        of(lambda m, x, boxes: ops.roi_align(x, boxes, (5, 7), sampling_ratio=2)),
        (x, regions),
        macs=0,
        flops=3 * i * (5 * 7) * (4 * 7 + 3 + 1),
    ),
    # 3 operations per area. Per pair of boxes: 4 corners, 2 lengths and their clamps, 1 product, 2 for the union, 1 quotient,
    # 1 compare.
    Case(
        "nms",
        of(lambda m, boxes, scores: ops.nms(boxes, scores, 0.5)),
        (boxes, f(3)),
        macs=0,
        flops=3 * 3 + 3 * (4 + 2 + 2 + 1 + 2 + 1 + 1),
        without=("meta",),
    ),
]


@every_way(CASES)
def test_conv(case: Case, way: str) -> None:
    check(case, way)
