"""Batches of like lengths beside first-come batches, with a model whose cost is padding.

    pip install '.[dispatch]'
    redis-server --port 6379 &
    python -m examples.dispatch_translation

A model that takes texts in batches pads them to the longest of the batch: a batch costs its number
of texts times the length of the longest. One long text among 15 short ones is paid for 16 times.
`size=` makes batches of texts of like lengths, out of up to four batches that wait. What waits
when the first batch is made varies a little, and the figures with it (1.80 to 1.90 in five runs):

    first come     25 batches   3.71 tokens computed for each one of the texts
    by length      25 batches   2.06 tokens computed for each one of the texts
    first come costs 1.80 times as much

`translate` is also the handler of the other example: `examples/dispatch_fastapi.py`.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable

from sluicegate import Dispatcher, Worker

REDIS = os.environ.get("REDIS", "redis://127.0.0.1:6379")
SECONDS_PER_TOKEN = 20e-6


def count_tokens(text: str) -> int:
    return len(text.split())


def translate(texts: list[str]) -> list[str]:
    """A fake model. It knows one rule of one language, and its time is that of a real one."""
    padded = len(texts) * max(map(count_tokens, texts))
    time.sleep(SECONDS_PER_TOKEN * padded)
    return [" ".join(word[1:] + word[:1] + "ay" for word in text.split()) for text in texts]


class CountingModel:
    """`translate`, and how much it has computed."""

    def __init__(self) -> None:
        self.batches = self.tokens = self.padded = 0

    def __call__(self, texts: list[str]) -> list[str]:
        lengths = [count_tokens(text) for text in texts]
        self.batches += 1
        self.tokens += sum(lengths)
        self.padded += len(texts) * max(lengths)
        return translate(texts)


def make_texts(number: int, seed: int = 1) -> list[str]:
    """Texts as people write them: most are short, some are long."""
    chance = random.Random(seed)
    lengths = [min(1 + int(chance.lognormvariate(3.0, 0.9)), 400) for _ in range(number)]
    return [" ".join(["word"] * length) for length in lengths]


async def measure(queue: str, size: Callable[[str], float] | None) -> CountingModel:
    model = CountingModel()
    texts = make_texts(400)
    worker = Worker(REDIS, queue, model, max_batch=16, size=size)
    async with worker, Dispatcher(REDIS, queue) as dispatcher:
        answers = await dispatcher.call_many(texts, timeout=60.0)
    assert len(answers) == len(texts)
    return model


async def main() -> None:
    first_come = await measure("example-first-come", None)
    by_length = await measure("example-by-length", count_tokens)
    for name, model in (("first come", first_come), ("by length", by_length)):
        each = model.padded / model.tokens
        computed = f"{each:.2f} tokens computed for each one of the texts"
        print(f"{name:12}{model.batches:5} batches   {computed}")
    print(f"first come costs {first_come.padded / by_length.padded:.2f} times as much")


if __name__ == "__main__":
    asyncio.run(main())
