"""Benchmarks of fxflops against other counters: coverage, agreement, speed and fidelity."""
