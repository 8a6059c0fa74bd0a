"""`python -m andrea` is the same program as the console script `andrea`."""

import sys

from andrea.cli import main

sys.exit(main())
