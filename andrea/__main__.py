"""`python -m andrea` is the same program as the console script `andrea`."""

import sys


def start() -> int:
    """The program; Ctrl-C is no traceback even while its modules are read."""
    try:
        from andrea.cli import main

        return main()
    except KeyboardInterrupt:
        print("stopped by Ctrl-C", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(start())
