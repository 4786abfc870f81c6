"""The nginx node beside bare nginx and the original's way: requests per second, and the tail.

One nginx of two workers answers with a real content handler (`return` would skip the access
phase): bare, with empty Lua handlers, with three `get` and three `incr` on a lua_shared_dict as the
original does it, and with our `throttle` and `consume`. wrk asks for each in turn, for 1,000 users
with three limited resources, and the best round of each counts. A real central grants the credit.

For the tail, a timer in nginx counts requests of 50,000 users in each slot, all of which are then
collected and reported, while wrk asks with few connections. Beside it stands the same without
reports.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import Row

ROUNDS = 5
SECONDS = 2
WARM_UP_SECONDS = 3  # until credit follows the rate of each user
TAIL_SECONDS = 6
USERS, MANY_USERS = 1_000, 50_000
LUA = Path(__file__).parents[1] / "lua"
MODULES = Path("/usr/lib/nginx/modules")
PACKAGES = "nginx libnginx-mod-http-lua lua-resty-core lua-cjson wrk"
PORTS = {"nginx": 8471, "central": 8472, "quiet": 8473, "reporting": 8474}
NOTES = (
    f"The best of {ROUNDS} rounds of {SECONDS} s in turns; wrk with 32 connections, nginx of 2 "
    f"workers and a central on the same 2 cores; {USERS:,} users, 3 limited resources."
)

LIMITS = """
[[limit]]
service = "front"
user = "*"
burst_seconds = 10
requests = 1e9
traffic_up = 1e15
traffic_down = 1e15
"""

# wrk asks for one user after the other.
WRK = f"""
local at = 0
request = function()
    at = at % {USERS} + 1
    return wrk.format("GET", nil, {{ ["X-User"] = "user_" .. at }})
end
"""

NODE = """
    init_worker_by_lua_block {
        require("throttle.node").init {
            active_services = { "front" },
            centrals = { "127.0.0.1:%(central)d" },
            node_id = "%(node)s",
            memory = "%(folder)s/memory",
            max_users = 60000,
        }
        %(timer)s
    }
"""

# Counts a request of each of many users in each second, in steps of a few milliseconds.
MANY = """
        if ngx.worker.id() == 0 then
            ngx.timer.at(0, function()
                local node = require "throttle.node"
                local memory = require "throttle.memory"
                local users, at = node.users, 0
                local amounts = { requests = 1, traffic_up = 300, traffic_down = 5000 }
                while not ngx.worker.exiting() do
                    for _ = 1, %d do
                        at = at %% %d + 1
                        local name, number = "many_" .. at, node.services.front
                        if users:throttle(memory.now(), number, name) then
                            local costs = users:parse_costs("consume", amounts)
                            users:consume(memory.now(), number, name, costs)
                        end
                    end
                    ngx.sleep(0.005)
                end
            end)
        end
"""

# As one would write them: in a module, so that each request only calls them.
HANDLERS = """
local node = require "throttle.node"
local dict = ngx.shared.original
local handlers = { original = {}, ours = {} }

function handlers.original.access()
    local key = "consumption/" .. ngx.time() .. "/front/" .. ngx.var.http_x_user .. "/"
    for _, resource in ipairs { "requests", "traffic_up", "traffic_down" } do
        local used = dict:get(key .. resource)
        if used and used > 1e15 then
            return ngx.exit(429)
        end
    end
end

function handlers.original.log()
    local key = "consumption/" .. ngx.time() .. "/front/" .. ngx.var.http_x_user .. "/"
    dict:incr(key .. "requests", 1, 0, 10)
    dict:incr(key .. "traffic_up", tonumber(ngx.var.request_length), 0, 10)
    dict:incr(key .. "traffic_down", tonumber(ngx.var.bytes_sent), 0, 10)
end

function handlers.ours.access()
    if not node.throttle("front", ngx.var.http_x_user) then
        return ngx.exit(429)
    end
end

function handlers.ours.log()
    node.consume("front", ngx.var.http_x_user, {
        requests = 1,
        traffic_up = tonumber(ngx.var.request_length),
        traffic_down = tonumber(ngx.var.bytes_sent),
    })
end

return handlers
"""

SERVER = """
    lua_shared_dict original 64m;
    server {
        listen 127.0.0.1:%(port)d;
        access_log off;
        keepalive_requests 1000000;
        location = /bare { empty_gif; }
        location = /empty {
            access_by_lua_block { }
            log_by_lua_block { }
            empty_gif;
        }
        location = /original {
            access_by_lua_block { require("handlers").original.access() }
            log_by_lua_block { require("handlers").original.log() }
            empty_gif;
        }
        location = /ours {
            access_by_lua_block { require("handlers").ours.access() }
            log_by_lua_block { require("handlers").ours.log() }
            empty_gif;
        }
    }
"""


def rows() -> list[Row]:
    for program in ("nginx", "wrk"):
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            sys.exit(f"no {program}: apt-get install {PACKAGES}")
    with TemporaryDirectory(prefix="sluicegate-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "users.lua").write_text(WRK)
        stack.enter_context(_central(folder))
        return [*_throughput(folder), _tail(folder)]


def _throughput(folder: Path) -> list[Row]:
    best = dict.fromkeys(("bare", "empty", "original", "ours"), 0.0)
    node = NODE % {**PORTS, "node": "bench", "folder": folder, "timer": ""}
    with _nginx(folder / "throughput", PORTS["nginx"], node):
        for path in best:
            _wrk(folder, PORTS["nginx"], path, WARM_UP_SECONDS, 32, is_warm=False)
        for _ in range(ROUNDS):
            for path in best:
                found = _wrk(folder, PORTS["nginx"], path, SECONDS, 32)
                best[path] = max(best[path], found["requests"])
    ours = f"{best['ours']:,.0f}/s"

    def row(what: str, peer: str, goal: float | None) -> Row:
        ratio = best["ours"] / best[peer]
        text = "" if goal is None else f"≥ {goal:.2f}"
        met = None if goal is None else ratio >= goal
        return Row(what, ours, f"{best[peer]:,.0f}/s", ratio, f"{ratio:.2f}", text, met)

    return [
        row("`throttle` and `consume`, over bare nginx", "bare", 0.70),
        row("the same, over the original's way", "original", 1.4),
        row("the same, over empty Lua handlers", "empty", None),
    ]


def _tail(folder: Path) -> Row:
    """p99 while many users are reported in each slot, and while they are only counted."""
    timer = MANY % (MANY_USERS // 200, MANY_USERS)
    found = {}
    for name, central in (("quiet", 1), ("reporting", PORTS["central"])):
        values = {**PORTS, "central": central, "node": name, "folder": folder / name}
        node = NODE % {**values, "timer": timer}
        with _nginx(folder / name, PORTS[name], node):
            time.sleep(3.0)  # all users are there
            found[name] = min(
                _wrk(folder, PORTS[name], "bare", TAIL_SECONDS, 4)["p99"] for _ in range(3)
            )
    ratio = found["reporting"] / found["quiet"]
    return Row(
        f"p99 while {MANY_USERS:,} users are collected in each slot, over p99 without",
        f"{found['reporting'] * 1e3:.2f} ms",
        f"{found['quiet'] * 1e3:.2f} ms",
        ratio,
        f"{ratio:.2f}",
        "≤ 2.00",
        ratio <= 2.0,
    )


def _wrk(
    folder: Path, port: int, path: str, seconds: int, connections: int, *, is_warm: bool = True
) -> dict[str, float]:
    """Requests per second and p99 in seconds. Every answer must be 2xx, once it is warm."""
    command = [
        *("wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency"),
        *("-s", str(folder / "users.lua"), f"http://127.0.0.1:{port}/{path}"),
    ]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if is_warm and "Non-2xx" in text:
        raise RuntimeError(f"{path}: {text}")
    requests = re.search(r"Requests/sec:\s+([\d.]+)", text)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)", text)
    assert requests is not None, text
    assert p99 is not None, text
    unit = {"us": 1e-6, "ms": 1e-3, "s": 1.0}[p99[2]]
    return {"requests": float(requests[1]), "p99": float(p99[1]) * unit}


@contextmanager
def _nginx(folder: Path, port: int, node: str) -> Iterator[None]:
    folder.mkdir()
    user = "user root;" if os.geteuid() == 0 else ""
    modules = "".join(
        f"load_module {MODULES / name};\n"
        for name in ("ndk_http_module.so", "ngx_http_lua_module.so")
        if (MODULES / name).exists()
    )
    temporary = "".join(
        f"    {kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = (
        f"{modules}{user}\nworker_processes 2;\ndaemon off;\npid {folder}/pid;\n"
        f"error_log {folder}/error.log warn;\nevents {{ worker_connections 1024; }}\n"
        f"http {{\n{temporary}    "
        f"lua_package_path '{LUA}/?.lua;{folder}/?.lua;/usr/share/lua/5.1/?.lua;;';\n"
        f"{node}{SERVER % {'port': port}}}}\n"
    )
    (folder / "handlers.lua").write_text(HANDLERS)
    path = folder / "nginx.conf"
    path.write_text(configuration)
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program is not None
    with subprocess.Popen([program, "-p", str(folder), "-c", str(path)]) as process:
        try:
            _wait_for(f"http://127.0.0.1:{port}/bare")
            yield
        finally:
            process.terminate()


@contextmanager
def _central(folder: Path) -> Iterator[None]:
    limits = folder / "limits.toml"
    limits.write_text(LIMITS)
    address = f"127.0.0.1:{PORTS['central']}"
    command = ["sluicegate", "central", "--listen", address, "--limits", str(limits)]
    with (
        (folder / "central.log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            _wait_for(f"http://{address}/healthz")
            yield
        finally:
            process.terminate()


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    print(json.dumps([vars(row) for row in rows()], indent=1))
