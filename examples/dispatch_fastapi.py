r"""FastAPI takes single requests and answers from workers that run them in batches.

    pip install fastapi uvicorn '.[dispatch]'
    redis-server --port 6379 &
    sluicegate worker examples.dispatch_translation:translate --queue translate &
    uvicorn examples.dispatch_fastapi:app --workers 2

Then, from another terminal:

    curl -s localhost:8000/translate --json '{"text": "hello world"}'

    {"text":"ellohay orldway"}

Start as many workers as you have processors for the model: each takes its next batch when it is
free, and none is ever sent more than it can do. When more is asked for than they can answer, the
queue grows up to two seconds of work, and what is beyond that is refused at once:

| | |
|---|---|
| the queue is full, or no worker is alive | 503 with Retry-After |
| no answer within `timeout` seconds (5) | 504 |
| the model failed | 500 |

`/metrics` counts the calls of this process by outcome; those of the workers are at their own port
(`sluicegate worker --metrics`).
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Body, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse

from sluicegate import Busy, Dispatcher, HandlerFailed, NoWorkers, TimedOut, Unavailable

dispatcher = Dispatcher(
    os.environ.get("REDIS", "redis://127.0.0.1:6379"),
    "translate",
    max_wait_seconds=2.0,
)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with dispatcher:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/translate")
async def translate(
    text: Annotated[str, Body(min_length=1, max_length=10_000)],
    timeout: Annotated[float, Body(gt=0, le=60)] = 5.0,
) -> dict[str, str]:
    return {"text": await dispatcher.call(text, timeout=timeout)}


@app.get("/metrics", response_class=PlainTextResponse)
async def metrics() -> str:
    return dispatcher.metrics()


@app.exception_handler(Busy)
@app.exception_handler(NoWorkers)
@app.exception_handler(Unavailable)
async def answer_unavailable(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 503, headers={"Retry-After": "1"})


@app.exception_handler(TimedOut)
async def answer_timed_out(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 504)


@app.exception_handler(HandlerFailed)
async def answer_failed(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 500)
