"""A worker process for tests: notes every item that it begins in a file, and echoes it.

Run as `python -m tests.dispatch.counting_worker URL QUEUE LEASE SECONDS FILE`: the lease, how long
a batch takes, and the file, to which several workers may append.
"""

import os
import sys
import time
from typing import Any

from sluicegate import Worker
from tests.harness.waits import PATIENCE


def main() -> None:
    url, queue, lease, seconds, path = sys.argv[1:]
    ledger = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def handle(items: list[Any]) -> list[Any]:
        os.write(ledger, "".join(f"{item}\n" for item in items).encode())
        time.sleep(float(seconds))
        return items

    Worker(url, queue, handle, lease=float(lease), timeout=PATIENCE).run()


if __name__ == "__main__":
    main()
