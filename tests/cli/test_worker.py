"""`sluicegate worker`: real processes over a real Redis."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sluicegate import HandlerFailed, SyncDispatcher
from sluicegate.cli.main import main
from sluicegate.cli.reload import changed_file, folder_of, snapshot
from sluicegate.dispatch.queue_admin import QueueAdmin
from sluicegate.errors import ConfigError
from tests.harness.servers import RedisServer, default_signals
from tests.harness.waits import PATIENCE, Output, wait_for

APP = """
import os, time
from pathlib import Path

ANSWER = "first"

def handle(items):
    if "bad" in items:
        raise ValueError("a bad item")
    return [[ANSWER, len(items)] for _ in items]

def hold(items):
    Path("began").touch()
    while not Path("go-on").exists():
        time.sleep(0.01)
    return items

def process(items):
    Path("began").touch()
    Path("pid").write_text(str(os.getpid()))
    while not Path("go-on").exists():
        time.sleep(0.01)
    return [os.getpid() for _ in items]

def length(item):
    return len(item)

def two(items, more):
    return items

class Model:
    def __call__(self, items):
        return items

model = Model()
local = (lambda: lambda items: items)()

"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


class RunningWorker:
    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sluicegate", "worker", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=default_signals,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.output = Output(self.process.stdout)
        self.log = Output(self.process.stderr)

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()


Start = Callable[..., RunningWorker]


@pytest.fixture
def start(folder: Path, redis_server: RedisServer) -> Iterator[Start]:
    """Starts workers of the queue `q`, which have begun to serve."""
    started: list[RunningWorker] = []

    def begin(*arguments: str) -> RunningWorker:
        worker = RunningWorker(folder, *arguments, "--queue", "q", "--url", redis_server.url)
        started.append(worker)
        worker.output.wait_for(" serves ")
        return worker

    yield begin
    for worker in started:
        worker.process.kill()
        worker.process.wait()


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[SyncDispatcher]:
    with SyncDispatcher(redis_server.url, "q", timeout=PATIENCE) as client:
        yield client


def workers_alive(redis_server: RedisServer) -> int:
    async def count() -> int:
        admin = QueueAdmin(redis_server.url, "q", timeout=PATIENCE)
        status = await admin.status()
        await admin.close()
        return len(status.workers)

    return asyncio.run(count())


def test_it_serves_a_function_of_the_current_folder_until_sigterm(
    start: Start, client: SyncDispatcher, redis_server: RedisServer
) -> None:
    worker = start(
        *("app:handle", "--queue", "r", "--batch", "4", "--isolate", "--size", "app:length"),
        *("--metrics", "127.0.0.1:0", "--max-wait", "0.001", "--cost", "app:length"),
        *("--max-cost", "1000"),
    )
    line = worker.output.wait_for("serves")
    assert " serves r, q, metrics at http://127.0.0.1:" in line
    answers = client.call_many(["a", "b", "c"] * 4, timeout=PATIENCE)
    assert {answer for answer, _ in answers} == {"first"}
    assert max(size for _, size in answers) <= 4
    with pytest.raises(HandlerFailed, match="ValueError: a bad item"):
        client.call("bad", timeout=PATIENCE)
    assert workers_alive(redis_server) == 1
    text = httpx.get(line.split()[-1], timeout=PATIENCE).text
    assert 'sluicegate_dispatch_answered_total{queue="q"} 12' in text
    assert worker.stop() == 0
    assert workers_alive(redis_server) == 0
    log = worker.log.text()
    assert "INFO worker starting: app:handle for queue" in log
    assert "batches of up to 4, 1 at once" in log
    assert "INFO worker stopping: SIGTERM received, 10 s for what runs" in log
    assert "queue q: 12 answered, 1 failed, 0 dropped" in log
    assert log.count("Traceback") == 1  # that of the handler
    assert "ValueError: a bad item" in log


def test_a_batch_that_runs_is_finished_after_sigint(
    start: Start, client: SyncDispatcher, folder: Path
) -> None:
    worker = start("app:hold", "--stop-timeout", f"{PATIENCE:g}")
    answer = client.submit("x", timeout=2 * PATIENCE)
    wait_for((folder / "began").exists)
    worker.process.send_signal(signal.SIGINT)
    worker.log.wait_for("worker stopping: SIGINT")
    (folder / "go-on").touch()
    assert answer.result(PATIENCE) == "x"
    assert worker.wait() == 0


def test_a_batch_that_does_not_end_in_time_is_given_back(
    start: Start, client: SyncDispatcher, folder: Path, redis_server: RedisServer
) -> None:
    worker = start("app:hold", "--stop-timeout", "0.05")
    answer = client.submit("x", timeout=3 * PATIENCE)
    wait_for((folder / "began").exists)
    assert worker.stop() == 1
    assert "batches did not end within 0.05 s" in (worker.log.text())
    (folder / "go-on").touch()
    start("app:hold")
    assert answer.result(PATIENCE) == "x"


def test_a_second_signal_ends_it_at_once(
    start: Start, client: SyncDispatcher, folder: Path
) -> None:
    worker = start("app:hold", "--stop-timeout", f"{10 * PATIENCE:g}")
    client.submit("x", timeout=PATIENCE)
    wait_for((folder / "began").exists)
    worker.process.send_signal(signal.SIGTERM)
    worker.log.wait_for("worker stopping")
    assert worker.stop() == -signal.SIGTERM


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_handler_process_outlives_ctrl_c_but_not_its_worker(
    start: Start, client: SyncDispatcher, folder: Path
) -> None:
    began, pid_file, go_on = folder / "began", folder / "pid", folder / "go-on"
    worker = start("app:process", "--processes", "--lease", "1")
    answer = client.submit("x", timeout=3 * PATIENCE)
    pid = int(wait_for(lambda: pid_file.exists() and pid_file.read_text()))
    assert pid != worker.process.pid
    os.kill(pid, signal.SIGINT)  # a terminal sends it to all: the batch is finished
    go_on.touch()
    assert answer.result(PATIENCE) == pid
    go_on.unlink()
    began.unlink()
    answer = client.submit("x", timeout=3 * PATIENCE)
    wait_for(began.exists)
    worker.stop(signal.SIGKILL)
    wait_for(lambda: not is_running(pid))
    go_on.touch()
    second = start("app:process", "--processes", "--concurrency", "2", "--lease", "1")
    assert answer.result(2 * PATIENCE) not in (pid, second.process.pid)
    assert second.stop() == 0


def test_it_starts_again_when_a_file_changes(
    start: Start, client: SyncDispatcher, folder: Path
) -> None:
    worker = start("app:handle", "--reload")
    assert client.call("x", timeout=PATIENCE) == ["first", 1]

    def replace(text: str) -> None:
        new = folder / "new"
        new.write_text(text)
        new.rename(folder / "app.py")

    replace("this is no Python")
    worker.log.wait_for("app.py")
    worker.log.wait_for("error: cannot import 'app': SyntaxError: invalid syntax (app.py, line 1)")
    worker.log.wait_for("exit code 2, waiting for a file to change")
    replace(APP.replace('"first"', '"second version"'))
    wait_for(lambda: sum(" serves " in line for line in worker.output.lines()) == 2)
    assert client.call("x", timeout=PATIENCE) == ["second version", 1]
    assert worker.stop(signal.SIGINT) == 0
    assert "worker stopped" in worker.log.text()


def test_files_that_are_added_changed_or_removed_are_noticed(tmp_path: Path) -> None:
    def sees(act: Callable[[], Any]) -> bool:
        before = snapshot(tmp_path)
        act()
        return changed_file(before, snapshot(tmp_path)) is not None

    package = tmp_path / "package"
    package.mkdir()
    venv = tmp_path / "venv"
    venv.mkdir()
    (venv / "pyvenv.cfg").touch()
    assert sees((package / "one.py").touch)
    assert sees(lambda: (package / "one.py").write_text("x = 1"))
    assert sees(lambda: (package / "one.py").rename(package / "two.py"))
    assert sees((package / "two.py").unlink)
    assert not sees((package / "notes.txt").touch)
    assert not sees((venv / "three.py").touch)
    assert not sees((tmp_path / ".hidden").mkdir)


def test_reload_needs_a_module_with_a_file() -> None:
    assert folder_of("sluicegate.cli.reload").name == "cli"
    for name in ("sys", "there_is_none", "sluicegate.there_is_none.x"):
        with pytest.raises(ConfigError):
            folder_of(name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["app"], "expected MODULE:FUNCTION, like app.translate:handle, got 'app'"),
        (["app:"], "expected MODULE:FUNCTION"),
        (["nowhere:f"], "no module named 'nowhere' in "),
        (["app:nothing"], "app:nothing: module 'app' has no 'nothing'"),
        (["app:ANSWER"], "app:ANSWER: expected a function, got a str"),
        (["app:Model"], "app:Model: expected a function, got a class"),
        (["app:two"], "called with one argument, a list of items: missing a required argument"),
        (["app:handle", "--size", "app:nothing"], "app:nothing: module 'app' has no"),
        (["app:handle", "--max-cost", "9"], "max_cost needs a cost function"),
        (["app:local", "--processes"], "app:local: --processes needs a function of a module"),
        (["app:handle", "--url", "http://x"], "url must start with redis://"),
        (["app:handle", "--metrics", "9100"], "expected HOST:PORT, like 127.0.0.1:9100"),
        (["app:handle", "--queue", "q"], "queue must name each queue once, got ['q', 'q']"),
        (["app:handle", "--max-wait", "-1"], "expected a finite number of 0 or more, got '-1'"),
        (["bad_import:f"], "cannot import 'bad_import': ZeroDivisionError: "),
        (["bad_exit:f"], "SystemExit: 7"),
        (["bad_need:f"], "cannot import 'bad_need': ModuleNotFoundError: No module named 'absent"),
        (["sys:exit", "--reload"], "--reload needs a module with a file, got 'sys'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "bad_import.py").write_text("x = 1\ny = x / 0\n")
    (folder / "bad_need.py").write_text("import absent_package\n")
    (folder / "bad_exit.py").write_text("import sys\nsys.exit(7)\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    for name in ("app", "bad_import", "bad_need", "bad_exit"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SystemExit) as caught:
        main(["worker", *arguments, "--queue", "q"])
    assert caught.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("sluicegate worker: error: ")
    assert message in last
    if arguments == ["bad_import:f"]:
        assert last.endswith(f"({folder / 'bad_import.py'}, line 2)")


def test_without_redis_it_says_so_and_ends_with_exit_code_1(
    folder: Path, redis_server: RedisServer
) -> None:
    redis_server.kill()
    worker = RunningWorker(folder, "app:model", "--queue", "q", "--url", redis_server.url)
    assert worker.wait() == 1
    assert worker.log.text().splitlines()[-1].startswith("sluicegate worker: cannot connect")
    assert worker.log.text().endswith("(--url names another Redis)\n")
    assert worker.output.text() == ""
