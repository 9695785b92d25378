"""The ``fxflops`` command, also as ``python -m fxflops``."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command. Ctrl-C ends it at once, also in code that would catch a KeyboardInterrupt."""
    # Another handler means that Ctrl-C is to be ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)
    from .cli.app import main as command  # its imports take longest

    command()


def end(number: int, frame: object) -> None:
    """End this process by the signal.

    Imports of torch and other libraries run callbacks and C code where Python ignores exceptions,
    KeyboardInterrupt too; so none is raised.
    """
    if sys.stderr.isatty():
        from contextlib import suppress

        with suppress(OSError):
            os.write(sys.stderr.fileno(), b"\x1b[?25h\n")  # the spinner hides the cursor
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    main()
