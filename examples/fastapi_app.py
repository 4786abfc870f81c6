r"""FastAPI with four worker processes under one limit for the whole host.

    pip install fastapi uvicorn
    uvicorn examples.fastapi_app:app --workers 4

Then, from another terminal:

    curl -s -o /dev/null -w '%{http_code}\n' 'localhost:8000/?[1-60]' | sort | uniq -c

      50 200      and one more for each 1.2 seconds that it takes
      10 429

The four processes count in one table in shared memory, so it is 50 a minute for each
address and not 50 per process. (The table outlives them: a second try finds the limit
used.) `curl -i localhost:8000/` shows the fields RateLimit-Policy and
RateLimit; `/search` has a tighter limit of its own; `/health` is never refused.
"""

from typing import Annotated

from fastapi import Depends, FastAPI

from sluicegate import SharedKeyed
from sluicegate.integrations import Rule, by_address
from sluicegate.integrations.asgi import RateLimitMiddleware
from sluicegate.integrations.fastapi import RESPONSES, Refused, answer_refused, limit

# With rebuild, a release with another limit replaces the table of the one before.
# Behind a proxy, name its network here: only what it forwards is believed.
client = by_address(trusted=[])
everything = Rule(
    SharedKeyed("example-fastapi", "50/minute", rebuild=True),
    name="all",
    key=client,
    exempt=lambda request: request.path == "/health",
)
searches = Rule(
    SharedKeyed("example-fastapi-search", "5/minute", rebuild=True), name="search", key=client
)

app = FastAPI(responses=RESPONSES)
app.add_middleware(RateLimitMiddleware, rules=[everything], headers=True)
app.add_exception_handler(Refused, answer_refused)


@app.get("/")
async def index() -> dict[str, str]:
    return {"hello": "world"}


@app.get("/search", dependencies=[Depends(limit(searches, headers=True))])
def search(words: Annotated[str, "what to look for"] = "") -> dict[str, str]:
    return {"found": words}


@app.get("/health")
async def health() -> dict[str, bool]:
    return {"well": True}
