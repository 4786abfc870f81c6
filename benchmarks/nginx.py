"""The nginx node beside bare nginx and the original's way: requests per second, and the tail.

An nginx of two workers answers with a real content handler (`return` would skip the access phase):
bare, with empty Lua handlers, the original's way, and with our `throttle` and `consume`. The
original compares three `get` of a lua_shared_dict with a table of quotas before a request, adds by
three `incr` after it, and reads the keys of each slot when it is over; it reports to nobody here.
Ours has a real central that grants the credit. Each way has an nginx of its own, as what LuaJIT
makes of one depends on what else has run there. wrk asks each in turn, for 1,000 users with three
limited resources, and the best round of each counts.

For the tail, a timer in nginx counts requests of 50,000 users in each second, all of which are then
collected and reported, while wrk asks with few connections. Beside it stands the same with slots of
an hour, so that nothing is collected.
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

ROUNDS = 12
SECONDS = 1
WARM_UP_SECONDS = 3  # until credit follows the rate of each user
TAIL_SECONDS = 6
USERS, MANY_USERS = 1_000, 50_000
LUA = Path(__file__).parents[1] / "lua"
MODULES = Path("/usr/lib/nginx/modules")
PACKAGES = "nginx libnginx-mod-http-lua lua-resty-core lua-cjson wrk"
PORTS = {
    **{"bare": 8471, "empty": 8472, "original": 8473, "ours": 8474},
    **{"quiet": 8475, "reporting": 8476, "central": 8477},
}
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

# wrk asks for one user after the other. Its requests are made beforehand, for less of its time.
WRK = f"""
local requests, at = {{}}, 0
init = function()
    for user = 1, {USERS} do
        local headers = {{ ["Host"] = "localhost", ["X-User"] = "user_" .. user }}
        requests[user] = wrk.format("GET", nil, headers)
    end
end
request = function()
    at = at % {USERS} + 1
    return requests[at]
end
"""

NODE = """
    init_worker_by_lua_block {
        require("throttle.node").init {
            active_services = { "front" },
            centrals = { "127.0.0.1:%(central)d" },
            node_id = "%(node)s",
            slot_seconds = %(slot)d,
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
                local now = require("throttle.memory").now
                local users, front, at = node.users, node.services.front, 0
                local amounts = { requests = 1, traffic_up = 300, traffic_down = 5000 }
                while not ngx.worker.exiting() do
                    for _ = 1, %d do
                        at = at %% %d + 1
                        local name = "many_" .. at
                        local passes = users:begin_fast(now(), front, name)
                            or users:throttle(now(), front, name)
                        if passes then
                            local costs = users:parse_costs("consume", amounts)
                            if not users:finish_fast(now(), front, name, costs) then
                                users:consume(now(), front, name, costs)
                            end
                        end
                    end
                    ngx.sleep(0.005)
                end
            end)
        end
"""

# As one would write them: in modules, so that each request only calls them.
OURS = """
local node = require "throttle.node"
local ours = {}

function ours.access()
    if not node.throttle("front", ngx.var.http_x_user) then
        return ngx.exit(429)
    end
end

function ours.log()
    node.consume("front", ngx.var.http_x_user, {
        requests = 1,
        traffic_up = tonumber(ngx.var.request_length),
        traffic_down = tonumber(ngx.var.bytes_sent),
    })
end

return ours
"""

ORIGINAL = """
local cjson = require "cjson"
local dict = ngx.shared.original
local original = {}
local quota = { front = {} }
for user = 1, USERS do
    quota.front["user_" .. user] = { requests = 1e9, traffic_up = 1e15, traffic_down = 1e15 }
end

function original.access()
    local user = ngx.var.http_x_user
    local key = "consumption/" .. ngx.time() .. "/front/" .. user .. "/"
    for resource, limit in pairs(quota.front[user]) do
        if (dict:get(key .. resource) or 0) > limit then
            return ngx.exit(429)
        end
    end
end

function original.log()
    local key = "consumption/" .. ngx.time() .. "/front/" .. ngx.var.http_x_user .. "/"
    dict:incr(key .. "requests", 1, 0, 10)
    dict:incr(key .. "traffic_up", tonumber(ngx.var.request_length), 0, 10)
    dict:incr(key .. "traffic_down", tonumber(ngx.var.bytes_sent), 0, 10)
end

local function collect()
    local last, consumption = tostring(ngx.time() - 1), {}
    for _, key in ipairs(dict:get_keys(0)) do
        local names = "^consumption/(%d+)/([^/]+)/([^/]+)/([^/]+)$"
        local slot, service, user, resource = key:match(names)
        if slot == last then
            consumption[service] = consumption[service] or {}
            consumption[service][user] = consumption[service][user] or {}
            consumption[service][user][resource] = dict:get(key)
        end
    end
    return #cjson.encode(consumption)
end

function original.init()
    if ngx.worker.id() == 0 then
        ngx.timer.every(1, collect)
    end
end

return original
""".replace("USERS", str(USERS))

LUA_HANDLERS = """
        access_by_lua_block { require("handlers").access() }
        log_by_lua_block { require("handlers").log() }
"""

SERVER = """
    lua_shared_dict original 64m;
    server {
        listen 127.0.0.1:%(port)d;
        access_log off;
        keepalive_requests 1000000;
        location / { empty_gif; }
%(handlers)s
    }
"""


def rows() -> list[Row]:
    for program in ("nginx", "wrk"):
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            sys.exit(f"no {program}: apt-get install {PACKAGES}")
    with TemporaryDirectory(prefix="sluicegate-bench-") as name:
        folder = Path(name)
        (folder / "users.lua").write_text(WRK)
        with _central(folder, 1):
            throughput = _throughput(folder)
        return [*throughput, _tail(folder)]


def _throughput(folder: Path) -> list[Row]:
    node = NODE % {**PORTS, "node": "bench", "folder": folder, "slot": 1, "timer": ""}
    original = 'init_worker_by_lua_block { require("handlers").init() }'
    empty = "access_by_lua_block { } log_by_lua_block { }"
    ways = {
        "bare": ("", "", ""),
        "empty": ("", empty, ""),
        "original": (original, LUA_HANDLERS, ORIGINAL),
        "ours": (node, LUA_HANDLERS, OURS),
    }
    best = dict.fromkeys(ways, 0.0)
    with ExitStack() as stack:
        for way, (init, handlers, module) in ways.items():
            stack.enter_context(_nginx(folder / way, PORTS[way], init, handlers, module))
        for way in ways:
            _wrk(folder, PORTS[way], WARM_UP_SECONDS, 32, is_warm=False)
        for _ in range(ROUNDS):
            for way in ways:
                found = _wrk(folder, PORTS[way], SECONDS, 32)
                best[way] = max(best[way], found["requests"])
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
    """p99 while many users are collected in each second, and in slots that outlast the run."""
    timer = MANY % (MANY_USERS // 200, MANY_USERS)
    found = {}
    for name, slot in (("quiet", 3600), ("reporting", 1)):
        values = {**PORTS, "node": name, "folder": folder / name, "slot": slot, "timer": timer}
        with _central(folder, slot), _nginx(folder / name, PORTS[name], NODE % values):
            time.sleep(5.0)  # all users are there, and have credit
            found[name] = min(_wrk(folder, PORTS[name], TAIL_SECONDS, 4)["p99"] for _ in range(3))
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
    folder: Path, port: int, seconds: int, connections: int, *, is_warm: bool = True
) -> dict[str, float]:
    """Requests per second and p99 in seconds. Every answer must be 2xx, once it is warm."""
    command = [
        *("wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency"),
        *("-s", str(folder / "users.lua"), f"http://127.0.0.1:{port}/"),
    ]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if is_warm and "Non-2xx" in text:
        raise RuntimeError(f"port {port}: {text}")
    requests = re.search(r"Requests/sec:\s+([\d.]+)", text)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)", text)
    assert requests is not None, text
    assert p99 is not None, text
    unit = {"us": 1e-6, "ms": 1e-3, "s": 1.0}[p99[2]]
    return {"requests": float(requests[1]), "p99": float(p99[1]) * unit}


@contextmanager
def _nginx(
    folder: Path, port: int, init: str, handlers: str = "", module: str = ""
) -> Iterator[None]:
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
        f"{init}{SERVER % {'port': port, 'handlers': handlers}}}}\n"
    )
    (folder / "handlers.lua").write_text(module)
    path = folder / "nginx.conf"
    path.write_text(configuration)
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program is not None
    with subprocess.Popen([program, "-p", str(folder), "-c", str(path)]) as process:
        try:
            _wait_for(f"http://127.0.0.1:{port}/", {"X-User": "user_1"})
            yield
        finally:
            process.terminate()


@contextmanager
def _central(folder: Path, slot_seconds: int) -> Iterator[None]:
    limits = folder / "limits.toml"
    limits.write_text(LIMITS)
    address = f"127.0.0.1:{PORTS['central']}"
    command = [
        *("sluicegate", "central", "--listen", address),
        *("--limits", str(limits), "--slot", str(slot_seconds)),
    ]
    with (
        (folder / "central.log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            _wait_for(f"http://{address}/healthz")
            yield
        finally:
            process.terminate()


def _wait_for(url: str, headers: dict[str, str] | None = None) -> None:
    request = urllib.request.Request(url, headers=headers or {})
    deadline = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(request, timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    print(json.dumps([vars(row) for row in rows()], indent=1))
