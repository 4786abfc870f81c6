"""The no-op task in Celery, in the pool with the least overhead."""

import sys

from celery import Celery
from measuring import blocking

ROLE, URL = sys.argv[1:3]
app = Celery("bench", broker=URL, backend=URL)


@app.task
def same(number: int) -> int:
    return number


if ROLE == "worker":
    app.worker_main(["worker", "--pool", "solo", "--loglevel", "ERROR", "--without-mingle"])
else:
    blocking(same.delay, lambda result: result.get(timeout=60))
