"""What a run would take on another device."""

from .allocator import Block, CachingAllocator, Segment

__all__ = ["Block", "CachingAllocator", "Segment"]
