"""One process of `test_real_redis.py`: requests by the clock, and a log of what has passed.

    python -m tests.pacing.pacing_node URL NAME TARGET PERIOD RATE LOG

A line of the log is the time of the second, requests and passes in it, written when it is over.
SIGTERM ends it, after its last sync.
"""

import logging
import signal
import sys
import time
from contextlib import closing

from sluicegate import Cluster
from sluicegate.stores import RedisStore

SYNC_INTERVAL = 0.5
MAX_BACKLOG = 0.5  # seconds of requests that are made up after a pause


def main() -> None:
    url, name, target, period, rate, path = sys.argv[1:]
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
    logging.basicConfig(level="INFO", format="%(message)s")
    store = RedisStore(url)
    cluster = Cluster(store, "soak", node_id=name, sync_interval=SYNC_INTERVAL, nodes=4)
    with closing(store), cluster, open(path, "a") as log:
        limiter = cluster.limiter("budget", target=float(target), period=float(period))
        hits = cluster.counter("hits")
        begin = time.monotonic()
        sent, second, requests, passes = 0, int(time.time()), 0, 0
        while not stops:
            due = int((time.monotonic() - begin) * float(rate))
            sent = max(sent, due - int(MAX_BACKLOG * float(rate)))
            while sent < due:
                sent += 1
                has_passed = limiter.acquire()
                if int(time.time()) != second:
                    log.write(f"{second} {requests} {passes}\n")
                    log.flush()
                    second, requests, passes = int(time.time()), 0, 0
                requests += 1
                passes += has_passed
                hits.add()
            time.sleep(0.005)
        log.write(f"{second} {requests} {passes}\n")


if __name__ == "__main__":
    main()
