"""A crawler that stays inside the limits of the sites it reads.

    pip install httpx
    python -m examples.httpx_crawler https://www.example.org/     a site, up to 50 pages
    python -m examples.httpx_crawler                              a little site of its own

It reads several pages at a time, follows links within the site, and asks each host at most
twenty times a second. When a site says that it is enough (429 or 503 with `Retry-After`, or
`RateLimit` with nothing left), all requests to it wait for as long as it asks. Without an
address it serves a site of 24 pages itself, which allows only 8 a second, and ends with

    24 pages in 3.1 s; refused by the server and tried again: 1
"""

import asyncio
import sys
import threading
import time
from collections.abc import Iterable
from html.parser import HTMLParser
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import httpx

from sluicegate.integrations import Outcome, Request, Rule
from sluicegate.integrations.httpx import AsyncRateLimitTransport
from sluicegate.integrations.wsgi import RateLimitMiddleware

PAGES = 50
AT_A_TIME = 4


class Links(HTMLParser):
    """The addresses that a page links to."""

    def __init__(self, page: httpx.Response) -> None:
        super().__init__()
        self._page = page
        self.found: list[httpx.URL] = []
        self.feed(page.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        target = dict(attrs).get("href") if tag == "a" else None
        if target:
            self.found.append(self._page.url.join(target).copy_with(fragment=None))


async def crawl(start: str) -> list[str]:
    """Read a site from one page on; the addresses that were read."""
    transport = AsyncRateLimitTransport("20/second burst 5", retries=3)
    first = httpx.URL(start)
    seen, waiting, read = {first}, [first], []
    async with httpx.AsyncClient(transport=transport, follow_redirects=True) as client:

        async def visit(url: httpx.URL) -> None:
            page = await client.get(url)
            print(f"{page.status_code} {url}")
            read.append(str(url))
            for link in Links(page).found:
                if link.host == first.host and link not in seen and len(seen) < PAGES:
                    seen.add(link)
                    waiting.append(link)

        while waiting:
            batch, waiting[:] = waiting[:AT_A_TIME], waiting[AT_A_TIME:]
            await asyncio.gather(*map(visit, batch))
    return read


class QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def little_site(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Twenty-four pages; each links to the next three."""
    number = int(environ["PATH_INFO"].strip("/") or 0)
    links = [f'<a href="/{other}">{other}</a>' for other in range(number, number + 4) if other < 24]
    start_response("200 OK", [("Content-Type", "text/html")])
    return [" ".join(links).encode()]


def main(addresses: list[str]) -> None:
    if addresses:
        asyncio.run(crawl(addresses[0]))
        return
    refused: list[Outcome] = []

    def count(request: Request, outcome: Outcome) -> None:
        refused.append(outcome)

    rules = [Rule("8/second", name="site")]
    site = RateLimitMiddleware(little_site, rules, headers=True, on_refusal=count)
    with make_server("127.0.0.1", 0, site, WSGIServer, QuietHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        start = time.monotonic()
        try:
            read = asyncio.run(crawl(f"http://127.0.0.1:{server.server_port}/0"))
        finally:
            server.shutdown()
            thread.join()
    took = time.monotonic() - start
    again = f"refused by the server and tried again: {len(refused)}"
    print(f"{len(read)} pages in {took:.1f} s; {again}")


if __name__ == "__main__":
    main(sys.argv[1:])
