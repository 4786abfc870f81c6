"""The text of an nginx configuration: what `sluicegate nginx-conf` prints.

A value of the command line reaches the text in one of two ways, and in no other but the comment
with the command. In Lua it is a string in which every byte that could end a string, a block or a
line is a decimal escape (`lua_string`). In a directive it is quoted, and what nginx would read as
more than text is refused (`nginx_string`).

The server's part throttles a request once, however often nginx redirects it internally (index,
try_files, error_page), each time through the access phase. `ngx.ctx` is lost in such a redirect and
a variable of `set` may be set anew; a variable of `map` keeps what Lua has put there.
"""

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["HttpPart", "ServerPart", "UserFrom", "lua_string", "nginx_string"]

_PLAIN = frozenset((string.ascii_letters + string.digits + " -._:/@=+,[]").encode())
_MORE_THAN_TEXT = frozenset('"\\$')
_PLACE = re.compile(r"@(\w+)@")


def lua_string(text: str) -> str:
    r"""A Lua literal of the UTF-8 bytes of `text`: `a"b` is "a\034b"."""
    data = text.encode()
    return '"' + "".join(chr(byte) if byte in _PLAIN else f"\\{byte:03d}" for byte in data) + '"'


def nginx_string(text: str) -> str:
    """A quoted word of nginx; ValueError if it would not mean `text` there."""
    wrong = sorted(_MORE_THAN_TEXT & set(text))
    if wrong or not text.isprintable():
        what = f"without {' '.join(wrong)}" if wrong else "that can be printed"
        raise ValueError(f"expected text {what}, got {text!r}")
    return f'"{text}"'


@dataclass(frozen=True, slots=True)
class UserFrom:
    """How the user of a request is found; `name` is that of the header or the claim."""

    kind: Literal["header", "jwt", "certificate", "address"]
    name: str = ""

    def lua(self) -> str:
        """Lua lines that set the local `user`, to nil or false if the request names none."""
        values = {"header": lua_string(self.name.lower()), "claim": lua_string(self.name)}
        return _fill(_USER[self.kind], values)


@dataclass(frozen=True, slots=True)
class ServerPart:
    """What goes into a server {} or a location {}."""

    service: str
    user_from: UserFrom

    def text(self) -> str:
        values = {"service": lua_string(self.service), "user": self.user_from.lua()}
        return _fill(_SERVER, values)


@dataclass(frozen=True, slots=True)
class HttpPart:
    """What goes into http {}, once."""

    command: str  # for the comment at the top: one line
    services: Sequence[str]
    centrals: Sequence[str]  # URLs, ws:// or wss://
    node_id: str
    lua_path: str
    dict_size: str
    token_file: str | None
    ca_file: str | None  # with wss:// only
    server_name: str | None  # in the certificates of the centrals
    resolvers: Sequence[str]
    example: ServerPart

    def text(self) -> str:
        values = {
            "command": self.command,
            "lua_path": nginx_string(f"{self.lua_path}/?.lua;;"),
            "dict_size": self.dict_size,
            "tls": "",
            "resolver": "",
            "services": _lua_list(self.services),
            "centrals": _lua_list(self.centrals),
            "node_id": lua_string(self.node_id),
            "token": _NO_TOKEN,
            "verify": "",
            "example": _example(self.example),
        }
        if self.ca_file is not None:
            values["tls"] = _fill(_TLS, {"ca_file": nginx_string(self.ca_file)})
            name = f", server_name = {lua_string(self.server_name)}" if self.server_name else ""
            values["verify"] = f"        tls = {{ verify = true{name} }},\n"
        if self.resolvers:
            values["resolver"] = _fill(_RESOLVER, {"resolvers": " ".join(self.resolvers)})
        if self.token_file is not None:
            values["token"] = _fill(_TOKEN, {"token_file": lua_string(self.token_file)})
        return _fill(_HTTP, values)


def _fill(template: str, values: Mapping[str, str]) -> str:
    """Put the values into their places, in one pass: a value is never read as a place."""
    return _PLACE.sub(lambda place: values[place[1]], template)


def _lua_list(texts: Sequence[str]) -> str:
    return "{ " + ", ".join(map(lua_string, texts)) + " }"


def _example(server: ServerPart) -> str:
    lines = [f"    {line}" if line else "" for line in server.text().splitlines()]
    block = ["server {", "    listen 8080;", "", *lines, "", *_PROXY.splitlines(), "}"]
    return "\n".join(f"# {line}".rstrip() for line in block)


_HTTP = """\
# The quotas of sluicegate in nginx: include this file in http {}. It was written by
#
#     @command@
#
# It needs nginx with Lua: OpenResty, or on Debian
#
#     apt-get install nginx libnginx-mod-http-lua lua-resty-core lua-cjson
#
# An http block has one lua_package_path and one init_worker_by_lua_block. If yours has them
# already, move these into them.

# The Lua files. The user of the worker processes must be able to read them.
lua_package_path @lua_path@;

# What this node counts, for a look from outside. The counters that decide are in /dev/shm, in a
# file that all workers share and their user owns.
lua_shared_dict throttle @dict_size@;

# The node logs what goes wrong with its connections. nginx would log each wait as an error, too.
lua_socket_log_errors off;
@tls@@resolver@
# The user of a request that was admitted. Unlike ngx.ctx it is kept in an internal redirect.
# Lua can assign it because the second variable, for log_format and the like, refers to it.
map "" $sluicegate_user {
    default "";
}
map $sluicegate_user $sluicegate_admitted {
    default 1;
    "" 0;
}

init_worker_by_lua_block {
    require("throttle.node").init({
        -- The name of this host at the centrals: no other node may have it.
        node_id = @node_id@,
        active_services = @services@,
        centrals = @centrals@,
        shared_dict_name = "throttle",
@token@@verify@    })
}

# A server whose requests are limited. `sluicegate nginx-conf --part server` prints the two
# blocks for a file of their own, to be included in several servers.
#
@example@
"""

_TLS = """
# The authorities that certificates of centrals are checked against.
lua_ssl_trusted_certificate @ca_file@;
lua_ssl_verify_depth 5;
"""

_RESOLVER = """
# Lua in nginx asks a name server itself for the addresses of centrals. Remove this line if your
# http block has a resolver.
resolver @resolvers@;
"""

_TOKEN = """\
        -- The token and no more, readable by the user of the worker processes and by no one else.
        token_file = @token_file@,
"""

_NO_TOKEN = """\
        -- Centrals that other machines can reach require a token:
        -- token_file = "/etc/sluicegate/node-token",
"""

_PROXY = """\
    location / {
        proxy_pass http://127.0.0.1:8000;
    }"""

_SERVER = """\
# Before the request. A location with an access_by_lua_block of its own does not run this one.
access_by_lua_block {
    -- An internal redirect (index, try_files, error_page) comes here again: throttle once.
    local admitted = ngx.var.sluicegate_user
    if admitted and admitted ~= "" then
        return
    end

@user@
    if type(user) ~= "string" or user == "" then
        -- The address of the client; of IPv6 the /64 network, all of which a client has.
        local binary = ngx.var.binary_remote_addr
        user = ngx.var.remote_addr
        user = user:match("^::ffff:([%d.]+)$") or user
        if #binary == 16 and user:find(":", 1, true) then
            local a, b, c, d, e, f, g, h = binary:byte(1, 8)
            local network = string.format(
                "%x:%x:%x:%x", a * 256 + b, c * 256 + d, e * 256 + f, g * 256 + h)
            for _ = 1, 3 do
                network = network:gsub(":0$", "")
            end
            user = network:gsub("^0$", "") .. "::/64"
        end
    end

    local ok, _, message = require("throttle.node").throttle(@service@, user)
    if not ok then
        ngx.status = 429
        ngx.header["Retry-After"] = math.max(1, math.ceil(ngx.ctx.throttle_retry_after or 1))
        ngx.header["Content-Type"] = "text/plain"
        ngx.say(message)
        return ngx.exit(ngx.HTTP_OK)
    end
    ngx.var.sluicegate_user = user
}

# After the request: count it. traffic_up and traffic_down are bytes, with the header lines.
log_by_lua_block {
    local user = ngx.var.sluicegate_user
    if user and user ~= "" then
        require("throttle.node").consume(@service@, user, {
            requests = 1,
            traffic_up = tonumber(ngx.var.request_length),
            traffic_down = tonumber(ngx.var.bytes_sent),
        })
    end
}
"""

_USER = {
    "header": """\
    -- A header is the word of the client, unless something in front of nginx has checked it and
    -- replaced what came. Centrals see it: of a secret, such as an API key, take the ngx.md5.
    local user = ngx.req.get_headers(0)[@header@]
    if type(user) == "table" then
        user = table.concat(user, ", ") -- all lines: the first may be of the client
    end
""",
    "jwt": """\
    -- WARNING: the token is decoded and NOT VERIFIED. Anyone can write a token with any claim.
    -- Something in front of this block (auth_jwt, auth_request, a gateway) MUST have verified
    -- its signature and its expiry, or every client can spend the quota of every user.
    local authorization = ngx.req.get_headers(0)["authorization"]
    if type(authorization) ~= "string" then
        authorization = "" -- none, or several, of which another one may have been verified
    end
    local scheme, payload = authorization:match("^(%a+) +[%w_-]+%.([%w_-]+)%.")
    local is_bearer = scheme and scheme:lower() == "bearer"
    local json = is_bearer and require("ngx.base64").decode_base64url(payload)
    local claims = json and require("cjson.safe").decode(json)
    local user = type(claims) == "table" and claims[@claim@]
    if type(user) == "number" then
        user = string.format("%.14g", user)
    end
""",
    "certificate": """\
    -- The subject of the client certificate, if nginx has verified it: the server needs
    -- ssl_client_certificate, and ssl_verify_client on or optional.
    local user = ngx.var.ssl_client_verify == "SUCCESS" and ngx.var.ssl_client_s_dn
""",
    "address": """\
    -- Behind a proxy use set_real_ip_from and real_ip_header, or the proxy is the only user.
    local user
""",
}
