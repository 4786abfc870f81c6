"""A real nginx with Lua for tests: to reload, and to kill workers of."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

import pytest

from sluicegate.demo import die_with_parent
from tests import busy
from tests.harness.servers import ROOT, reserve_port
from tests.harness.waits import PATIENCE, wait_for

__all__ = ["Nginx", "find_luajit", "find_nginx"]

_PACKAGES = "nginx libnginx-mod-http-lua lua-resty-core lua-cjson luajit2"
_OPENRESTY = Path("/usr/local/openresty")
# Debian's: the Lua module needs the other one, which is loaded first.
_MODULES = [
    Path("/usr/lib/nginx/modules") / name
    for name in ("ndk_http_module.so", "ngx_http_lua_module.so")
]
_BUILT_IN = re.compile(r"--add-module=\S*(ngx_lua|lua-nginx-module)")
_WORKER = b"nginx: worker process"  # one that is shutting down has a longer title
# The workers of a master that is killed go on, and the signal for the death of a parent does not
# pass to the children of a process. So a guard kills them all when its input ends, which the
# kernel closes when the test's process dies.
_GUARD = 'read -r _; kill -s KILL -- "-$1"'

_CONFIG = """
{modules}
daemon off;
master_process on;
worker_processes {workers};
{user}
pid {folder}/nginx.pid;
error_log {folder}/error.log notice;
events {{
    worker_connections 1024;
}}
http {{
    access_log off;
    client_body_temp_path {folder}/client_body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    lua_package_path "{root}/lua/?.lua;;/usr/share/lua/5.1/?.lua";
    {http}
    server {{
        listen 127.0.0.1:{port};
        {server}
    }}
}}
"""


def find_nginx() -> str:
    """The program, with Lua as a module or built in. Fails in CI, skips elsewhere."""
    found = _find("nginx", Path("/usr/sbin"), _OPENRESTY / "nginx" / "sbin")
    if found is None or not (_has_built_in_lua(found) or all(path.exists() for path in _MODULES)):
        _give_up("nginx with Lua")
    return found


def find_luajit() -> str:
    """The program. Fails in CI, skips elsewhere."""
    found = _find("luajit", _OPENRESTY / "luajit" / "bin")
    if found is None:
        _give_up("luajit")
    return found


class Nginx:
    """An nginx with its files in a folder and on a port of its own, started by `with` or `start`.

    `http` and `server` are text for these blocks of its configuration: `lua_shared_dict` goes into
    the first, `location` into the second. Lua code can require what is in the folder `lua`.
    """

    def __init__(self, folder: Path, *, http: str = "", server: str = "", workers: int = 1) -> None:
        self._program = find_nginx()
        self._folder = folder
        self._workers = workers
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._reserved = reserve_port()
        self.port: int = self._reserved.getsockname()[1]
        modules = () if _has_built_in_lua(self._program) else _MODULES
        self._config = folder / "nginx.conf"
        self._config.write_text(
            _CONFIG.format(
                modules="\n".join(f"load_module {path};" for path in modules),
                workers=workers,
                # Else workers that root starts belong to a user who may not read the test's files.
                user="user root;" if os.geteuid() == 0 else "",
                folder=folder,
                root=ROOT,
                http=http,
                port=self.port,
                server=server,
            )
        )

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def master_pid(self) -> int:
        assert self._process is not None, "it is not started"
        return self._process.pid

    @property
    def errors(self) -> str:
        """The error log: everything from the level notice on."""
        path = self._folder / "error.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def worker_pids(self) -> list[int]:
        """The workers that have begun (`init_worker_by_lua` has run) and are not shutting down."""
        return sorted(
            pid
            for pid, state in busy.descendants(self.master_pid, set())
            if state not in "ZX" and _title(pid) == _WORKER
        )

    def start(self) -> None:
        """Start it, and wait until it accepts connections and all workers have begun."""
        error_log = str(self._folder / "error.log")
        command = [self._program, "-p", str(self._folder), "-c", str(self._config), "-e", error_log]
        self._process = subprocess.Popen(
            die_with_parent.wrap(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # what it writes there is in the error log, too
            process_group=0,
        )
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "guard", str(self._process.pid)],
            stdin=subprocess.PIPE,
            process_group=0,
        )
        wait_for(self._is_up, seen=lambda: self.errors)

    def reload(self) -> None:
        """Read the configuration again, and wait until new workers have replaced the old ones.

        Old workers may go on for as long as they have connections.
        """
        old = set(self.worker_pids())
        os.kill(self.master_pid, signal.SIGHUP)
        wait_for(lambda: self._has_all_workers(without=old), seen=lambda: self.errors)

    def kill_worker(self, pid: int) -> None:
        """Kill a worker, and wait until the master has started another one in its place."""
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: self._has_all_workers(without={pid}), seen=lambda: self.errors)

    def quit(self) -> None:
        """End it gracefully, and wait until the last request has its response; then `stop` it."""
        assert self._process is not None, "it is not started"
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(PATIENCE)

    def stop(self) -> None:
        """End it and its workers at once; it can be started again."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGCONT)  # a stopped one would not end
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)
        with contextlib.suppress(ProcessLookupError):  # nobody is left of its group
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE)
        self._process = None
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None

    def close(self) -> None:
        """Stop it for good, and give its port away."""
        self.stop()
        self._reserved.close()

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"it ended: {self.errors}"
        with socket.socket() as probe:
            accepts = probe.connect_ex(("127.0.0.1", self.port)) == 0
        return accepts and self._has_all_workers(without=set())

    def _has_all_workers(self, without: set[int]) -> bool:
        pids = self.worker_pids()
        return len(pids) == self._workers and without.isdisjoint(pids)


def _find(name: str, *folders: Path) -> str | None:
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(map(str, folders)))


def _has_built_in_lua(program: str) -> bool:
    """As in OpenResty."""
    ran = subprocess.run([program, "-V"], capture_output=True, text=True, timeout=PATIENCE)
    return _BUILT_IN.search(ran.stderr) is not None


def _give_up(what: str) -> NoReturn:
    message = f"no {what}: apt-get install {_PACKAGES}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def _title(pid: int) -> bytes:
    """What a process says that it is; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0 ")
    except OSError:
        return b""
