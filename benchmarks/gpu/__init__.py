"""One command that tries the library on a GPU: ``python -m benchmarks.gpu --out FOLDER``."""
