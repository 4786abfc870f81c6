"""The configuration of the demo's nginx, which is an end node in Lua.

All paths are relative to the prefix of nginx, a folder of its own, so that no name of a folder has
to be quoted. A request has its user and its costs in headers. It is throttled before it is served,
and what it cost is consumed after it: with 204 it was admitted, with 429 refused.

Each worker does two things that a server would not need, in a timer:

    worker-N.status   what it knows of the node, a line of its pid, whether it is the worker that
                      reports (1 or 0), and the state, epoch and slot of the node
    PAUSES            for how long the machine did not let it run, as in `pauses.py`

A worker of nginx goes on when its master is killed. Those of the demo do not.
"""

from collections.abc import Sequence
from pathlib import Path

from sluicegate.demo.pauses import SHORTEST_PAUSE, TICK
from sluicegate.demo.traffic import RESOURCE, SERVICE

__all__ = ["STATUS", "nginx_config"]

STATUS = "worker-{}.status"  # of the worker with this number
_MAX_USERS = 1000
_TICKS_PER_STATUS = 5


def nginx_config(
    *,
    address: str,
    node: str,
    centrals: Sequence[str],
    workers: int,
    modules: Sequence[Path],
    user: str | None,
    pauses: str,
) -> str:
    """`centrals`: HOST:PORT of each. `user`: of the workers, if root is to start them.

    `pauses`: the file of their pauses.
    """
    values = {
        "modules": "\n".join(f"load_module {path};" for path in modules),
        "user": "" if user is None else f"user {user};",
        "workers": str(workers),
        "address": address,
        "node": node,
        "centrals": ", ".join(f'"{central}"' for central in centrals),
        "service": SERVICE,
        "resource": RESOURCE,
        "max_users": str(_MAX_USERS),
        "pauses": pauses,
        "status": STATUS.format("%d"),
        "tick": str(TICK),
        "shortest_pause": str(SHORTEST_PAUSE),
        "ticks_per_status": str(_TICKS_PER_STATUS),
    }
    text = _CONFIG
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


_CONFIG = """\
@modules@
@user@
daemon off;
worker_processes @workers@;
pid nginx.pid;
error_log stderr warn;

events {
    worker_connections 1024;
}

http {
    access_log off;
    keepalive_timeout 1h;
    keepalive_requests 1000000000;
    client_body_temp_path client_body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    # The last one is where Debian has lua-resty-core.
    lua_package_path "$prefix/lua/?.lua;;/usr/share/lua/5.1/?.lua";
    lua_socket_log_errors off;

    init_worker_by_lua_block {
        local ffi = require "ffi"
        local memory = require "throttle.memory"
        local node = require "throttle.node"
        local prefix = ngx.config.prefix()

        -- Killed when the master dies (PR_SET_PDEATHSIG, SIGKILL).
        ffi.cdef "int prctl(int option, unsigned long signal); int getppid(void);"
        ffi.C.prctl(1, 9)
        if ffi.C.getppid() ~= require("ngx.process").get_master_pid() then
            os.exit(1) -- it has died already
        end

        node.init {
            node_id = "@node@",
            active_services = { "@service@" },
            centrals = { @centrals@ },
            memory = prefix .. "memory",
            max_users = @max_users@,
        }

        local path = prefix .. ("@status@"):format(ngx.worker.id())

        local function write_status()
            local status = node.status()
            local file = status.is_initialised and io.open(path .. ".new", "w")
            if file then
                local reports = status.is_reporting and 1 or 0
                file:write(("%d %d %s %.0f %.0f\\n"):format(
                    status.pid, reports, status.state, status.epoch, status.slot))
                file:close()
                os.rename(path .. ".new", path)
            end
        end

        local function watch(premature)
            local pauses = assert(io.open(prefix .. "@pauses@", "a"))
            pauses:setvbuf("no")
            local ticks, begin, worked = 0, memory.now(), os.clock()
            while not premature and not ngx.worker.exiting() do
                if ticks % @ticks_per_status@ == 0 then
                    write_status()
                end
                ngx.sleep(@tick@)
                local now, works = memory.now(), os.clock()
                local length = now - begin - @tick@ - (works - worked)
                if length > @shortest_pause@ then
                    pauses:write(("%.6f %.6f\\n"):format(now - length, now))
                end
                ticks, begin, worked = ticks + 1, now, works
            end
        end
        assert(ngx.timer.at(0, watch))
    }

    server {
        listen @address@;

        location / {
            access_by_lua_block {
                local user = ngx.var.http_x_user or "anonymous"
                if not require("throttle.node").throttle("@service@", user) then
                    ngx.header["Retry-After"] = math.max(1, math.ceil(ngx.ctx.throttle_retry_after))
                    return ngx.exit(429)
                end
            }
            content_by_lua_block {
                return ngx.exit(204)
            }
            log_by_lua_block {
                local user, costs = ngx.var.http_x_user or "anonymous", {}
                local words = ngx.var.http_x_costs or "@resource@=1"
                for resource, cost in words:gmatch("([^ =]+)=([^ ]+)") do
                    costs[resource] = tonumber(cost)
                end
                require("throttle.node").consume("@service@", user, costs)
            }
        }
    }
}
"""
