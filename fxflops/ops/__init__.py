"""The formulas, one file per family; importing this package registers them all."""

from . import matmul as matmul
from ._apply import apply as apply
from ._registry import BASE as BASE
from ._registry import Formula as Formula
from ._registry import Table as Table
from ._registry import formula as formula
from ._registry import zero as zero
