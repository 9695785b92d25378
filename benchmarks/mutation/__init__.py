"""The parts of ``benchmarks/mutants.py``: mutation operators, the choice of tests, the table."""
