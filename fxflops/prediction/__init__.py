"""Predict a run on another device: its seconds, and the memory that CUDA's allocator reserves."""

from .allocator import Block, CachingAllocator, Segment
from .calibration import Calibration
from .memory import Reserved
from .result import Prediction

__all__ = ["Block", "CachingAllocator", "Calibration", "Prediction", "Reserved", "Segment"]
