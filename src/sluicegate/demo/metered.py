"""Runs a `sluicegate` command that logs its pauses: for how long the machine held it up.

    python -m sluicegate.demo.metered PAUSES central --listen HOST:PORT --limits FILE ...

PAUSES is the file of a `PauseMeter`.
"""

import runpy
import sys
from pathlib import Path

from sluicegate.demo.pauses import PauseMeter


def main() -> None:
    with PauseMeter(Path(sys.argv.pop(1))):
        runpy.run_module("sluicegate", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
