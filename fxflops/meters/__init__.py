"""Measurements around a run: clock, allocator, live storages, kernels; and progress on a terminal."""
