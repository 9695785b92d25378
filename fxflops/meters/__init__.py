"""What is read around a run: the clock, the allocator, live storages, kernels; and progress on a terminal."""
