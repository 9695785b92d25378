"""The parts of ``benchmarks/mutants.py``: operators, the choice of tests, the table."""
