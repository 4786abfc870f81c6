"""`python -m sluicegate` is the `sluicegate` command."""

import sys

from sluicegate.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
