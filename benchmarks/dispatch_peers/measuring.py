"""What the clients share: they keep a number of requests in flight, and measure."""

import asyncio
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any


def serve_lines(measure: Callable[[int, int], list[float]]) -> None:
    """Answer each line of stdin with the seconds of the run and the median of a request."""
    for line in sys.stdin:
        count, in_flight = map(int, line.split())
        began = time.perf_counter()
        times = measure(count, in_flight)
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, "median": statistics.median(times)}), flush=True)


def blocking(send: Callable[[int], Any], receive: Callable[[Any], int]) -> None:
    """A client that sends without waiting, and waits for the oldest."""

    def measure(count: int, in_flight: int) -> list[float]:
        waiting: deque[tuple[int, float, Any]] = deque()
        times = []
        for number in range(count + in_flight):
            if number >= in_flight:
                sent, began, handle = waiting.popleft()
                assert receive(handle) == sent
                times.append(time.perf_counter() - began)
            if number < count:
                waiting.append((number, time.perf_counter(), send(number)))
        return times

    serve_lines(measure)


async def flood(call: Callable[[int], Awaitable[int]], count: int, in_flight: int) -> list[float]:
    """As many tasks as requests in flight, each of which calls again and again."""
    times = []
    numbers = iter(range(count))

    async def one() -> None:
        for number in numbers:
            began = time.perf_counter()
            assert await call(number) == number
            times.append(time.perf_counter() - began)

    await asyncio.gather(*(one() for _ in range(in_flight)))
    return times
