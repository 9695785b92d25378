"""The ``fxflops`` command, also as ``python -m fxflops``."""

from __future__ import annotations

import signal

from .cli.interrupts import end


def main() -> None:
    """Run the command. Ctrl-C ends it at once, also in code that would catch a KeyboardInterrupt."""
    # If Python's own handler is not set, the program that started this one wants Ctrl-C to be ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)
    from .cli.app import main as command  # its imports take longest

    command()


if __name__ == "__main__":
    main()
