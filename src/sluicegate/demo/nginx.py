"""`Nginx`: the nginx of the demo, which is an end node in Lua, as a process of the fleet.

It has a folder for all its files, no root, and an address of its own. Its master is started like
any other process of the fleet, and starts its workers itself: one that dies is replaced at once.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sluicegate.demo.nginx_config import STATUS, nginx_config
from sluicegate.demo.process import Process
from sluicegate.demo.shared_counts import WorkerStatus
from sluicegate.quota.lua_files import LUA

__all__ = ["INSTALL", "Nginx", "NginxProgram", "find_nginx"]

INSTALL = "apt-get install nginx libnginx-mod-http-lua lua-resty-core lua-cjson"
# Where it is, and what is seldom in the PATH of someone who is not root.
_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/usr/local/openresty/nginx/sbin")
_BUILT_IN = re.compile(r"--add-module=\S*(ngx_lua|lua-nginx-module)")
_MODULES_PATH = re.compile(r"--modules-path=(\S+)")
_MODULES = ("ndk_http_module.so", "ngx_http_lua_module.so")  # the second needs the first
_CHECK_TIMEOUT = 30.0  # seconds


@dataclass(frozen=True, slots=True)
class NginxProgram:
    """An nginx with Lua, and the modules that it has to load for that: none if it is built in."""

    path: str
    modules: Sequence[Path]


def find_nginx() -> NginxProgram | None:
    """The first nginx with Lua, in the PATH or where it is usually installed."""
    folders = [*os.environ.get("PATH", os.defpath).split(os.pathsep), *_FOLDERS]
    for folder in folders:
        path = shutil.which("nginx", path=folder)
        modules = None if path is None else _lua_modules(path)
        if path is not None and modules is not None:
            return NginxProgram(os.path.abspath(path), modules)
    return None


def _lua_modules(program: str) -> list[Path] | None:
    """The modules that a program has to load for Lua; None if they are not installed."""
    try:
        ran = subprocess.run(
            [program, "-V"], capture_output=True, text=True, timeout=_CHECK_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if _BUILT_IN.search(ran.stderr) is not None:
        return []
    found = _MODULES_PATH.search(ran.stderr)
    modules = [] if found is None else [Path(found[1]) / name for name in _MODULES]
    return modules if modules and all(path.exists() for path in modules) else None


class Nginx(Process):
    """The end node `node` at an address (HOST:PORT). `centrals` are URLs."""

    stop_signal = signal.SIGQUIT  # with SIGTERM its workers would send no leave message

    def __init__(
        self,
        folder: Path,
        program: NginxProgram,
        *,
        address: str,
        node: str,
        centrals: Sequence[str],
        workers: int,
    ) -> None:
        self.address = address
        self._prefix = folder / "nginx"
        self._prefix.mkdir()
        self._status_paths = [self._prefix / STATUS.format(number) for number in range(workers)]
        self._pids: list[int] = []  # of the workers, as seen last
        command = [program.path, "-p", f"{self._prefix}/", "-c", "nginx.conf", "-e", "stderr"]
        super().__init__(self._prefix, "nginx", command)
        (self._prefix / "lua").symlink_to(LUA)
        (self._prefix / "nginx.conf").write_text(
            nginx_config(
                address=address,
                node=node,
                centrals=[central.removeprefix("http://") for central in centrals],
                workers=workers,
                modules=program.modules,
                # Else the workers that root starts belong to a user who may not read the folder.
                user="root" if os.geteuid() == 0 else None,
                pauses=self.pause_path.name,
            )
        )

    def can_run(self) -> bool:
        """Whether it accepts the configuration: it does not if it lacks a part of Lua."""
        try:
            ran = subprocess.run(
                [*self._command, "-t", "-q"], capture_output=True, timeout=_CHECK_TIMEOUT
            )
        except (OSError, subprocess.SubprocessError):
            return False
        return ran.returncode == 0

    def start(self) -> None:
        for path in self._status_paths:
            path.unlink(missing_ok=True)
        self._pids = []
        super().start()

    def is_ready(self) -> bool:
        """Whether all workers are initialised."""
        return len(self.statuses()) == len(self._status_paths)

    def statuses(self) -> list[WorkerStatus]:
        """Of the workers that have begun; of one that was killed until another replaces it."""
        if self.pid is None:
            return []
        statuses = []
        for path in self._status_paths:
            with contextlib.suppress(FileNotFoundError):
                pid, is_reporting, state, epoch, slot = path.read_text().split()
                statuses.append(
                    WorkerStatus(int(pid), is_reporting == "1", state, int(epoch), int(slot))
                )
        return statuses

    def count_restarts(self) -> None:
        """Count the workers that the master has started again since the last call."""
        pids = [status.pid for status in self.statuses()]
        if len(self._pids) == len(pids) == len(self._status_paths):
            self.restarts += len(set(pids) - set(self._pids))
        self._pids = pids
