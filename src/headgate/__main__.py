"""`python -m headgate` is the `headgate` command."""

import sys

from headgate.cli import main

if __name__ == "__main__":
    sys.exit(main())
