"""Mutants: the ledger or the node with one place made wrong, and the simulator that finds out.

Invariants that hold and goals that are met prove something only if a fault would show. So each
mutant is a copy of the package in which one line does what a tired person might have written, and
`headgate simulate` of one scenario must fail on it and say why. The unchanged copy must pass the
very same runs.

The text to be replaced must stand in its file exactly once: who rewrites that line is told to
rewrite its mutant too. A mutant of compiled code is compiled into its copy, without optimization,
which takes a third of the time; two at once, while the others are run. Scenarios beside this file
show a fault that those for people do not; the soak runs all of them with more random seeds.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import headgate

PACKAGE = Path(headgate.__file__).parent
SCENARIOS = Path(__file__).parent
SEEDS = range(5 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 1)
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
BOOK = "quota/_book.pyx"
HOST = "quota/_host.pyx"
USER = "quota/_user.pxd"
REPORTS = "quota/_report_book.pyx"


class Mutant(NamedTuple):
    fault: str
    file: str
    text: str
    instead: str
    scenario: str
    says: str  # what the run prints, as a regular expression


def broken(facts: str) -> str:
    return rf"^BROKEN: .*{facts}"


def missed(goal: str) -> str:
    return rf"^{re.escape(goal)} .* no$"


TOO_MUCH_PROMISED = broken(r"central-\d promises node-\d+ .* that are there")
TOO_MUCH_PASSED = broken(r"node-\d+ let .* through in slot .* in hand")

MUTANTS = [
    Mutant(
        "nodes that are on their own are taken to spend nothing",
        BOOK,
        "return cell.safe * (slot - since) if slot > since else 0.0",
        "return 0.0",
        "return",
        TOO_MUCH_PROMISED,
    ),
    Mutant(
        "promises are not deducted",
        BOOK,
        "available = bucket.level + bucket.rate - held - outstanding",
        "available = bucket.level + bucket.rate - held",
        "overload-3x",
        TOO_MUCH_PROMISED,
    ),
    Mutant(
        "grants to those who ask are not counted",
        BOOK,
        """\
                    cell.promised[target & 3] += <float> amount
                result.append((target, resource, cell.promised[target & 3], cell.safe))
""",
        """\
                else:
                    amount = 0.0
                result.append((target, resource, cell.promised[target & 3] + amount, cell.safe))
""",
        "moving",
        TOO_MUCH_PROMISED,
    ),
    Mutant(
        "what running requests hold is not deducted",
        BOOK,
        "available = bucket.level + bucket.rate - held - outstanding",
        "available = bucket.level + bucket.rate - outstanding",
        "slow-requests.toml",
        TOO_MUCH_PROMISED,
    ),
    Mutant(
        "a bucket is refilled beyond its capacity",
        "quota/_bucket.pxd",
        "if refilled > ceiling:",
        "if False:",
        "doorman-6",
        TOO_MUCH_PROMISED,
    ),
    Mutant(
        "a debt is forgotten",
        BOOK,
        "bucket.level -= news.consumed",
        "bucket.level = max(0.0, bucket.level - news.consumed)",
        "partition",
        TOO_MUCH_PROMISED,
    ),
    Mutant(
        "fractions are dropped",
        BOOK,
        """\
                wanted = amount * per_request + cell.carry
                gathered += wanted
""",
        """\
                wanted = floor(amount * per_request + SLACK)
                gathered = wanted
""",
        "one-per-second",
        missed("under"),
    ),
    Mutant(
        "fractions are not carried to the next slot",
        BOOK,
        "wanted = amount * per_request + cell.carry",
        "wanted = amount * per_request",
        "taking-turns.toml",
        missed("fairness (Jain)"),
    ),
    Mutant(
        "a central with empty books takes what is settled as new",
        "quota/_bucket.pxd",
        "line.consumed if booking.is_reborn else line.consumed - line.settled",
        "line.consumed",
        "empty-books.toml",
        missed("under"),
    ),
    Mutant(
        "old reports are booked again",
        "quota/ledger.py",
        "if report.sequence <= known.sequence or report.since > known.sequence:",
        "if report.since > known.sequence:",
        "lossy",
        broken(r"central-\d has recorded .* were consumed"),
    ),
    Mutant(
        "what a lost report told is not told again",
        REPORTS,
        "lines = made[acknowledged] = self._lines(self._since(acknowledged), acknowledged)",
        "lines = made[acknowledged] = self._lines(self._since(sequence - 1), sequence - 1)",
        "passing-by.toml",
        missed("unrecorded"),
    ),
    Mutant(
        "a quota of a deposed leader is obeyed",
        "quota/reporter.py",
        "if quota.epoch < self._epoch:",
        "if False:",
        "two-leaders.toml",
        broken(r"node-\d follows epoch 1 though it has heard of epoch 2"),
    ),
    Mutant(
        "a quota of a deposed leader is used, though the leader is known",
        "quota/reporter.py",
        """\
        if quota.epoch < self._epoch:
            return
        self._epoch = quota.epoch
""",
        """\
        self._epoch = max(self._epoch, quota.epoch)
""",
        "two-leaders-lossy.toml",
        TOO_MUCH_PASSED,
    ),
    Mutant(
        "an acknowledgement makes a deposed leader the leader again",
        "quota/reporter.py",
        "leads = ack.leads and ack.epoch >= self._epoch",
        "leads = ack.leads",
        "two-leaders.toml",
        broken(r"node-\d follows epoch 1 though it has heard of epoch 2"),
    ),
    Mutant(
        "without a fresh quota there is no limit",
        USER,
        "return FRESH if age == 0 else REUSED if age <= now.lease else SAFE",
        "return FRESH if age == 0 else FREE",
        "partition",
        TOO_MUCH_PASSED,
    ),
    Mutant(
        "a lease has no end",
        USER,
        "return FRESH if age == 0 else REUSED if age <= now.lease else SAFE",
        "return FRESH if age == 0 else REUSED",
        "cut-off-rich.toml",
        TOO_MUCH_PASSED,
    ),
]
COMPILED_WITH = {USER: HOST, "quota/_bucket.pxd": BOOK}
BY_FAULT = {mutant.fault: mutant for mutant in MUTANTS}
UNCHANGED = "nothing is wrong"


def make_copy(directory: Path, fault: str) -> Path:
    """A copy of the package with the fault in it, and where it can be imported from."""
    copy = directory / PACKAGE.name
    shutil.copytree(
        PACKAGE,
        copy,
        # A compiled file is replaced or left alone, so a link will do for it.
        copy_function=lambda source, target: (
            os.symlink(source, target) if source.endswith(".so") else shutil.copy(source, target)
        ),
        ignore=shutil.ignore_patterns("__pycache__", "*.c"),
    )
    if fault == UNCHANGED:
        # It is compiled like the mutants, so that this is not the difference between them.
        compile_again(copy / BOOK, directory)
        return directory
    mutant = BY_FAULT[fault]
    path = copy / mutant.file
    source = path.read_text(encoding="utf-8")
    count = source.count(mutant.text)
    assert count == 1, f"{mutant.file} has this {count} times, expected once: {mutant.text}"
    path.write_text(source.replace(mutant.text, mutant.instead), encoding="utf-8")
    if path.suffix in (".pyx", ".pxd"):
        compile_again(copy / COMPILED_WITH.get(mutant.file, mutant.file), directory)
    return directory


def compile_again(path: Path, root: Path) -> None:
    source, library = path.with_suffix(".c"), path.with_suffix(SUFFIX)
    cython = [sys.executable, "-m", "cython", "-3", "-I", str(root), str(path), "-o", str(source)]
    subprocess.run(cython, check=True)
    library.unlink()  # it is a link
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    flags = ["-shared", "-fPIC", "-O0", "-w", "-ffp-contract=off"]
    include = f"-I{sysconfig.get_paths()['include']}"
    subprocess.run([*compiler, *flags, include, str(source), "-o", str(library)], check=True)


@pytest.fixture(scope="module")
def copies(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Future[Path]]]:
    """By fault, for the tests that were chosen, in their order."""
    chosen: list[Any] = [
        item.callspec.params["fault"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
    ]
    with ThreadPoolExecutor(2) as pool:
        yield {
            fault: pool.submit(make_copy, tmp_path_factory.mktemp("copy"), fault)
            for fault in dict.fromkeys(chosen)
        }
        pool.shutdown(cancel_futures=True)


def simulate(copy: Path, scenario: str, seed: int) -> subprocess.CompletedProcess[str]:
    named = str(SCENARIOS / scenario) if scenario.endswith(".toml") else scenario
    return subprocess.run(
        [sys.executable, "-m", "headgate", "simulate", named, "--seed", str(seed)],
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.parametrize("fault", BY_FAULT)
def test_a_mutant_is_found_out(copies: Mapping[str, Future[Path]], fault: str) -> None:
    mutant = BY_FAULT[fault]
    for seed in SEEDS:
        run = simulate(copies[fault].result(), mutant.scenario, seed)
        assert run.returncode == 1, run.stdout + run.stderr
        assert re.search(mutant.says, run.stdout, re.MULTILINE), run.stdout + run.stderr


# The scenarios are run unchanged elsewhere too: here a few of them, and in the soak all.
SCENARIOS_UNCHANGED = list(dict.fromkeys(mutant.scenario for mutant in MUTANTS))


@pytest.mark.parametrize("scenario", SCENARIOS_UNCHANGED[:: 1 if len(SEEDS) > 1 else 4])
@pytest.mark.parametrize("fault", [UNCHANGED])
def test_the_unchanged_copy_passes_the_same_run(
    copies: Mapping[str, Future[Path]], fault: str, scenario: str
) -> None:
    for seed in SEEDS:
        run = simulate(copies[fault].result(), scenario, seed)
        assert run.returncode == 0, run.stdout + run.stderr
