"""The no-op task in dramatiq."""

import signal
import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
from measuring import blocking

ROLE, URL = sys.argv[1:3]

broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=RedisBackend(url=URL)))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def same(number: int) -> int:
    return number


if ROLE == "worker":
    dramatiq.Worker(broker, worker_threads=8).start()
    signal.pause()
else:
    blocking(same.send, lambda message: message.get_result(block=True, timeout=60_000))
