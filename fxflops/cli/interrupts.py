"""What Ctrl-C does to the ``fxflops`` command."""

from __future__ import annotations

import os
import signal
import sys


def end(number: int, frame: object) -> None:
    """End this process by the signal.

    No exception such as KeyboardInterrupt is raised: while torch and other libraries are imported, callbacks and C code run in which Python
    ignores exceptions.
    """
    if sys.stderr.isatty():
        from contextlib import suppress

        with suppress(OSError):
            os.write(sys.stderr.fileno(), b"\x1b[?25h\n")  # the spinner hides the cursor
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
