"""``python -m fxflops``."""

from .cli.app import main

if __name__ == "__main__":
    main()
