"""A real Transformer behind a queue: CTranslate2, with batches of one, of 16, and by length.

    pip install '.[dispatch]' ctranslate2 numpy
    redis-server --port 6379 &
    python -m examples.dispatch_ctranslate2

The model is a small encoder and decoder that is built here, with random weights: nothing is
downloaded, it computes what a real one of its size computes, and its translations mean nothing.
With a model of your own, converted by CTranslate2, only `load` changes.

    batches of 1       128 batches   2.69 s of CPU
    batches of 16        8 batches   1.05 s of CPU
    by length            8 batches   0.81 s of CPU

`sluicegate worker examples.dispatch_ctranslate2:translate --queue translate --size builtins:len`
serves it to clients anywhere.
"""

import asyncio
import functools
import os
import random
import tempfile
import time
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerSpec

from sluicegate import Dispatcher, Worker

REDIS = os.environ.get("REDIS", "redis://127.0.0.1:6379")
LAYERS, HEADS, WIDTH, INNER, WORDS = 2, 4, 256, 1024, 2000
LENGTH = 16  # of a translation

VOCABULARY = ["<blank>", "<unk>", "<s>", "</s>", *(f"w{number}" for number in range(WORDS - 4))]


def build(folder: str) -> None:
    """Write a model with random weights."""
    chance = np.random.default_rng(1)

    def fill(layer: Any, rows: int, columns: int) -> None:
        layer.weight = chance.normal(0.0, 0.05, (rows, columns)).astype(np.float32)

    def fill_norm(norm: Any) -> None:
        norm.gamma, norm.beta = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)

    def fill_attention(attention: Any, *rows: int) -> None:
        fill_norm(attention.layer_norm)
        for linear, count in zip(attention.linear, rows, strict=True):
            fill(linear, count, WIDTH)

    def fill_network(network: Any) -> None:
        fill_norm(network.layer_norm)
        fill(network.linear_0, INNER, WIDTH)
        fill(network.linear_1, WIDTH, INNER)

    spec = TransformerSpec.from_config((LAYERS, LAYERS), HEADS)
    for part, embeddings in (
        (spec.encoder, spec.encoder.embeddings[0]),
        (spec.decoder, spec.decoder.embeddings),
    ):
        fill(embeddings, WORDS, WIDTH)
        fill_norm(part.layer_norm)
        for layer in part.layer:
            fill_attention(layer.self_attention, 3 * WIDTH, WIDTH)
            fill_network(layer.ffn)
    for layer in spec.decoder.layer:
        fill_attention(layer.attention, WIDTH, 2 * WIDTH, WIDTH)
    fill(spec.decoder.projection, WORDS, WIDTH)
    spec.register_source_vocabulary(VOCABULARY)
    spec.register_target_vocabulary(VOCABULARY)
    spec.validate()
    spec.optimize()
    spec.save(folder)


@functools.cache
def load() -> Any:
    """The model, once for each process."""
    with tempfile.TemporaryDirectory() as folder:
        build(folder)
        return ctranslate2.Translator(folder, device="cpu", inter_threads=1, intra_threads=1)


def translate(texts: list[list[str]]) -> list[list[str]]:
    """The handler: lists of words."""
    options = {"beam_size": 1, "min_decoding_length": LENGTH, "max_decoding_length": LENGTH}
    return [found.hypotheses[0] for found in load().translate_batch(texts, **options)]


def make_texts(number: int) -> list[list[str]]:
    """Most are short, some are long."""
    chance = random.Random(1)
    lengths = [min(1 + int(chance.lognormvariate(3.0, 0.9)), 200) for _ in range(number)]
    return [chance.choices(VOCABULARY[4:], k=length) for length in lengths]


async def measure(name: str, **options: Any) -> None:
    texts = make_texts(128)
    worker = Worker(REDIS, "example-ctranslate2", translate, **options)
    async with worker, Dispatcher(REDIS, "example-ctranslate2") as dispatcher:
        await dispatcher.call(texts[0], timeout=60.0)  # loads the model
        before = time.process_time()
        answers = await dispatcher.call_many(texts, timeout=60.0)
        took = time.process_time() - before
    assert all(len(answer) == LENGTH for answer in answers)
    batches = worker.cores["example-ctranslate2"].stats.batch_sizes.count - 1
    print(f"{name:16}{batches:6} batches   {took:.2f} s of CPU")


async def main() -> None:
    await measure("batches of 1", max_batch=1)
    await measure("batches of 16", max_batch=16)
    await measure("by length", max_batch=16, size=len)


if __name__ == "__main__":
    asyncio.run(main())
