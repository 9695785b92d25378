"""The formulas, one file per family; importing this package registers them all."""

from functools import lru_cache

from . import activation as activation
from . import aten as aten
from . import attention as attention
from . import conv as conv
from . import ctc as ctc
from . import einsum as einsum
from . import elementwise as elementwise
from . import embedding as embedding
from . import fake_quantize as fake_quantize
from . import fbgemm as fbgemm
from . import fft as fft
from . import free as free
from . import fused_rnn as fused_rnn
from . import gradient as gradient
from . import gradient_attention as gradient_attention
from . import gradient_conv as gradient_conv
from . import gradient_embedding as gradient_embedding
from . import gradient_flash as gradient_flash
from . import gradient_loss as gradient_loss
from . import gradient_matmul as gradient_matmul
from . import gradient_norm as gradient_norm
from . import gradient_pointwise as gradient_pointwise
from . import gradient_pool as gradient_pool
from . import gradient_resample as gradient_resample
from . import gradient_rnn as gradient_rnn
from . import gradient_vision as gradient_vision
from . import grouped_mm as grouped_mm
from . import internal as internal
from . import linalg as linalg
from . import loss as loss
from . import margin as margin
from . import matmul as matmul
from . import norm as norm
from . import onednn as onednn
from . import optim as optim
from . import packed as packed
from . import pool as pool
from . import quantized as quantized
from . import reduce as reduce
from . import resample as resample
from . import rnn as rnn
from . import shapes_layers as shapes_layers
from . import shapes_moves as shapes_moves
from . import shapes_pointwise as shapes_pointwise
from . import solve as solve
from . import statistics as statistics
from . import transformer as transformer
from . import vision as vision
from ._apply import apply as apply
from ._registry import BASE as BASE
from ._registry import ESCAPE as ESCAPE
from ._registry import Formula as Formula
from ._registry import Table as Table
from ._registry import formula as formula
from ._registry import zero as zero

BASE.fallback = lru_cache(maxsize=4096)(aten.aten_rule)
