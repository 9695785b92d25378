"""Benchmarks: coverage, agreement, speed and fidelity of fxflops, beside other counters."""
