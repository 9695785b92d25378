"""The public names, from where each is defined."""

from .api import analyze as analyze
from .api import count as count
from .conventions import list_conventions as list_conventions
from .errors import FormulaError as FormulaError
from .errors import FxflopsError as FxflopsError
from .errors import InputError as InputError
from .errors import MissingFormulaError as MissingFormulaError
from .errors import RunError as RunError
from .errors import TraceError as TraceError
from .notebook import TorchFLOPsByFX as TorchFLOPsByFX
from .ops import formula as formula
from .ops.mappings import FUNCTION_FLOPs_MAPPING as FUNCTION_FLOPs_MAPPING
from .ops.mappings import METHOD_FLOPs_MAPPING as METHOD_FLOPs_MAPPING
from .ops.mappings import MODULE_FLOPs_MAPPING as MODULE_FLOPs_MAPPING
from .profiling import profile as profile
from .records import Cost as Cost
from .report import Report as Report
