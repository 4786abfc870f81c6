"""`--reload`: runs a command as a child, and starts it again when a Python file changes.

Files are looked at once in a while: a folder of a program has few, and no library for it is needed.
A child that ended by itself (an error in the file that is being edited) is started again with the
next change. SIGTERM and SIGINT are passed on to the child as SIGTERM; a second one kills it.
"""

import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from sluicegate.demo import die_with_parent
from sluicegate.errors import ConfigError

__all__ = ["changed_file", "folder_of", "run_reloading", "snapshot"]

_LOOK_EVERY = 0.3  # seconds
_MOST_FILES = 20_000
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Snapshot = Mapping[str, tuple[int, int]]  # when it was changed, and its size, by path

log = logging.getLogger("sluicegate.reload")


def folder_of(module: str) -> Path:
    """The folder with the file of a module, which is not imported (but its packages are)."""
    try:
        spec = find_spec(module)
    except Exception as error:  # noqa: BLE001  a package may raise anything
        raise ConfigError(f"cannot find module {module!r}: {error}") from None
    if spec is None or spec.origin is None or not os.path.isfile(spec.origin):
        raise ConfigError(f"--reload needs a module with a file, got {module!r}")
    return Path(spec.origin).parent


def snapshot(folder: Path) -> Snapshot:
    """The Python files below a folder, without those of virtual environments."""
    found: dict[str, tuple[int, int]] = {}
    for path in _python_files(str(folder)):
        try:
            status = os.stat(path)
        except OSError:
            continue  # it was removed just now
        found[path] = (status.st_mtime_ns, status.st_size)
        if len(found) >= _MOST_FILES:
            break
    return found


def _python_files(folder: str) -> Iterator[str]:
    for root, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith((".", "__pycache__"))
            and not os.path.exists(os.path.join(root, name, "pyvenv.cfg"))
        ]
        yield from (os.path.join(root, name) for name in files if name.endswith(".py"))


def changed_file(before: Snapshot, after: Snapshot) -> str | None:
    """A file that was added, removed or changed."""
    return next((path for path, _ in before.items() ^ after.items()), None)


def run_reloading(command: list[str], folder: Path, stop_timeout: float) -> int:
    """Run the command until a signal, again after each change; the exit code of the last run."""
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)

    for number in _SIGNALS:
        signal.signal(number, receive)
    files = snapshot(folder)
    child = _start(command)
    is_reported = False
    try:
        while not received:
            time.sleep(_LOOK_EVERY)
            found = snapshot(folder)
            path = changed_file(files, found)
            files = found
            if path is not None:
                log.info("file changed, starting again: %s", path)
                _stop(child, stop_timeout, received)
                child, is_reported = _start(command), False
            elif child.poll() is not None and not is_reported:
                log.warning("exit code %d, waiting for a file to change", child.returncode)
                is_reported = True
        return _stop(child, stop_timeout, received)
    finally:
        child.kill()
        child.wait()


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    # A process group of its own: Ctrl-C reaches this process alone, which passes it on.
    return subprocess.Popen(die_with_parent.wrap(command), process_group=0)


def _stop(child: subprocess.Popen[bytes], timeout: float, received: list[int]) -> int:
    """End the child within the time that it has for it; killed at a second signal."""
    child.terminate()
    deadline = time.monotonic() + timeout + 5.0
    while child.poll() is None:
        if time.monotonic() > deadline or len(received) > 1:
            child.kill()
        time.sleep(0.02)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode
