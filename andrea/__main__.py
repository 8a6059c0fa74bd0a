"""`python -m andrea` is the same program as the console script `andrea`."""

import signal
import sys


def start() -> int:
    """The program; Ctrl-C is no traceback even while its modules are read."""
    try:
        from andrea.cli import main

        code = main()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # ending takes a while
            signal.signal(number, signal.SIG_IGN)
        return code
    except KeyboardInterrupt:
        print("stopped by Ctrl-C", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(start())
