"""Mutants: the ledger or the node with one place made wrong, and the simulator that finds out.

Invariants that hold and goals that are met prove something only if a fault would show. So each
mutant is a copy of the package in which one line does what a tired person might have written, and
`sluicegate simulate` of one scenario must fail on it and say why. The unchanged copy must pass the
very same runs.

The text to be replaced must occur in its file exactly once: a test fails if that line is rewritten
and its mutant is not. In compiled code it is either an expression or whole lines. All mutants of
one compiled module share a copy, which has both versions of each place: the environment variable
SLUICEGATE_FAULT says which fault the run has, and without it nothing is wrong. So each module is
compiled once for all processes of a test run, without optimization, which takes a third of the
time. Scenarios beside this file show a fault that those for people do not; the soak runs all of
them with more random seeds.
"""

import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import sluicegate
from tests.harness.shipped_scenarios import SECONDS, SOAK

PACKAGE = Path(sluicegate.__file__).parent
SCENARIOS = Path(__file__).parent / "scenarios"
SEEDS = range(5 if SOAK else 1)
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
SERVICE_LEDGER = "quota/ledger/_service_ledger.pyx"
QUEUE_SERVER = "quota/ledger/_queue_server.pyx"
USER_ASK = "quota/ledger/_user_ask.pyx"
ANSWERS = "quota/ledger/_answers.pyx"
FLOATS = "quota/ledger/_floats.pxd"
BOOKING = "quota/ledger/_booking.pxd"
BUCKET = "quota/ledger/_bucket.pxd"
CREDIT = "quota/ledger/_credit.pxd"
USER_TABLE = "quota/node/core/_user_table.pyx"
ADMISSION = "quota/node/core/_admission.pxd"
REPORTS = "quota/node/core/_report_tracker.pyx"


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


TOO_MUCH_GRANTED = broken(r"central-\d, .* grants node-\d+ .* that are there")
TOO_MUCH_PASSED = broken(r"node-\d+ let .* through: .* more than its credit")
TOO_MUCH_RECORDED = broken(r"central-\d has recorded .* were consumed")

MUTANTS = [
    Mutant(
        "grants are not deducted",
        CREDIT,
        "bucket.level - bucket.outstanding - bucket.reserved + bucket.postponed - bucket.kept",
        "bucket.level - bucket.reserved + bucket.postponed - bucket.kept",
        "overload-3x",
        TOO_MUCH_GRANTED,
    ),
    Mutant(
        "returns are counted twice",
        CREDIT,
        "max(0.0, cell.granted - cell.returned - cell.consumed)",
        "max(0.0, cell.granted - 2.0 * cell.returned - cell.consumed)",
        "hopping",
        TOO_MUCH_GRANTED,
    ),
    Mutant(
        "what is outstanding takes no room in the bucket",
        BUCKET,
        "capacity_of(bucket) + bucket.unbooked + bucket.silent + bucket.kept",
        "capacity_of(bucket) + bucket.outstanding + bucket.silent + bucket.kept",
        "saved-burst.toml",
        TOO_MUCH_GRANTED,
    ),
    Mutant(
        "a bucket is refilled beyond its capacity",
        BUCKET,
        "capacity_of(bucket) + bucket.unbooked + bucket.silent + bucket.kept",
        "1e18",
        "saved-burst.toml",
        TOO_MUCH_GRANTED,
    ),
    Mutant(
        "a debt is forgotten",
        SERVICE_LEDGER,
        "bucket.level -= delta.consumed",
        "bucket.level = max(0.0, bucket.level - delta.consumed)",
        "partition",
        TOO_MUCH_GRANTED,
    ),
    Mutant(
        "a central with empty books takes what is settled as new",
        BOOKING,
        "line.consumed if context.is_new_boot else line.consumed - line.settled",
        "line.consumed",
        "empty-books.toml",
        TOO_MUCH_RECORDED,
    ),
    Mutant(
        "old reports are booked again",
        "quota/ledger/ledger.py",
        "if report.sequence <= known.sequence or report.since > known.sequence:",
        "if report.since > known.sequence:",
        "lossy",
        TOO_MUCH_RECORDED,
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
        "a node goes on spending what it has given back",
        ADMISSION,
        "return cell.granted - cell.returned - cell.consumed - reserved_of(cell)",
        "return cell.granted - cell.consumed - reserved_of(cell)",
        "hopping",
        TOO_MUCH_PASSED,
    ),
    Mutant(
        "what running requests reserve is not counted",
        ADMISSION,
        "<double> cell.reserved + cell.old_reserved + cell.ticketed[0] + cell.ticketed[1]",
        "0.0",
        "slow-requests.toml",
        TOO_MUCH_PASSED,
    ),
    Mutant(
        "any number of requests may pass ahead of their grants",
        ADMISSION,
        "not is_covered(&cells[i], 0.0)",
        "False",
        "thin-no-wait.toml",
        TOO_MUCH_PASSED,
    ),
    Mutant(
        "the leader lets any number of nodes go ahead of their grants",
        FLOATS,
        "not _covers_floats(bucket, costs[r], most_debt, now_ms)",
        "False",
        "floats.toml",
        missed("excess, requests"),
    ),
    Mutant(
        "of several resources only the first is granted",
        QUEUE_SERVER,
        "grant(bucket, cell, account.waiters[i].given * account.costs[i * count + r])",
        "grant(bucket, cell, account.waiters[i].given * account.costs[i * count] * (r == 0))",
        "two-resources",
        broken(r"node-\d+ has refused all requests of .* all of its buckets had room"),
    ),
    Mutant(
        "a node that was silent and asks is still taken to live on its safe share",
        SERVICE_LEDGER,
        "self.is_silent(cell, self.assigned)",
        "False",
        "central-away.toml",
        missed("over 10 s"),
    ),
    Mutant(
        "what was used beyond the grants is not booked against the refill of its time",
        BOOKING,
        "unforeseen = min(delta.consumed, <double> cell.uncovered)",
        "unforeseen = 0.0",
        "cut-off.toml",
        missed("shortfall"),
    ),
    Mutant(
        "recalls are ignored",
        "quota/node/core/reporter.py",
        "if hint.recall:",
        "if False:",
        "thin-wait.toml",
        missed("shortfall"),
    ),
    Mutant(
        "there is an allowance while a leader is heard",
        ADMISSION,
        "return state != FRESH and state != FREE",
        "return state != FREE",
        "overload-3x",
        TOO_MUCH_PASSED,
    ),
    Mutant(
        "without a leader there is no limit",
        ADMISSION,
        "REUSED if window.time - window.alone_since < window.lease * window.slot_seconds else SAFE",
        "FREE",
        "partition",
        TOO_MUCH_PASSED,
    ),
    Mutant(
        "an ask that was lost is not repeated",
        ADMISSION,
        "window.time < user.asked_at + window.retry_seconds",
        "True",
        "lost-asks.toml",
        broken(r"node-\d+ has refused all requests of .* all of its buckets had room"),
    ),
    Mutant(
        "a quota of a deposed leader is obeyed",
        "quota/node/core/reporter.py",
        "if quota.epoch < self._epoch:",
        "if False:",
        "two-leaders-lossy.toml",
        TOO_MUCH_PASSED,
    ),
]
COMPILED_WITH = {
    ADMISSION: USER_TABLE,
    BOOKING: SERVICE_LEDGER,
    BUCKET: QUEUE_SERVER,
    CREDIT: QUEUE_SERVER,
    FLOATS: QUEUE_SERVER,
}
# Modules that the same files are compiled into: all of them get the fault.
COMPILED_TOGETHER = {QUEUE_SERVER: (USER_ASK, ANSWERS)}
NUMBERS = {mutant.fault: number for number, mutant in enumerate(MUTANTS, 1)}

# Appended to each file with a fault in it; two of them may end up in one module.
FAULT = """
cdef extern from *:
    \"\"\"
    #ifndef SLUICEGATE_FAULT
    #define SLUICEGATE_FAULT
    #include <stdlib.h>
    static int sg_fault(void) {
        static int fault = -1;
        if (fault < 0) {
            const char *number = getenv("SLUICEGATE_FAULT");
            fault = number ? atoi(number) : 0;
        }
        return fault;
    }
    #endif
    \"\"\"
    int FAULT "sg_fault"() noexcept nogil
"""


def module_of(mutant: Mutant) -> str | None:
    """The compiled module that a mutant is in; None: it is in plain Python."""
    module = COMPILED_WITH.get(mutant.file, mutant.file)
    return module if module.endswith(".pyx") else None


def copy_package(directory: Path) -> Path:
    """A copy of links: a file that is to be another is replaced by a file."""
    copy = directory / PACKAGE.name
    shutil.copytree(PACKAGE, copy, copy_function=os.symlink, ignore=shutil.ignore_patterns("*.c"))
    return copy


def read_once(path: Path, mutant: Mutant) -> str:
    source = path.read_text(encoding="utf-8")
    count = source.count(mutant.text)
    assert count == 1, f"{mutant.file} has this {count} times, expected once: {mutant.text}"
    return source


def with_fault(source: str, mutant: Mutant) -> str:
    """The source with both versions: the mutant's holds when its number is that of the fault."""
    is_faulty = f"FAULT() == {NUMBERS[mutant.fault]}"
    text = textwrap.dedent(mutant.text).strip("\n")
    lines = "^( *)" + r"\n\1".join(map(re.escape, text.splitlines())) + r"\n"
    if not re.search(lines, source, re.MULTILINE):
        return source.replace(text, f"({mutant.instead} if {is_faulty} else {text})")

    def both(found: re.Match[str]) -> str:
        instead = textwrap.indent(textwrap.dedent(mutant.instead).strip("\n"), "    ")
        either = f"if {is_faulty}:\n{instead}\nelse:\n{textwrap.indent(text, '    ')}\n"
        return textwrap.indent(either, found[1])

    return re.sub(lines, both, source, flags=re.MULTILINE)


def make_compiled_copy(directory: Path, module: str) -> Path:
    """A copy of the package with all faults of one compiled module, and of those it goes with."""
    copy = copy_package(directory)
    for mutant in MUTANTS:
        if module_of(mutant) == module:
            read_once(PACKAGE / mutant.file, mutant)
            path = copy / mutant.file
            source = path.read_text(encoding="utf-8")
            if path.is_symlink():
                source += FAULT
            path.unlink()
            path.write_text(with_fault(source, mutant), encoding="utf-8")
    for compiled in (module, *COMPILED_TOGETHER.get(module, ())):
        compile_again(copy / compiled, directory)
    return directory


def make_plain_copy(directory: Path, mutant: Mutant) -> Path:
    copy = copy_package(directory)
    source = read_once(copy / mutant.file, mutant)
    (copy / mutant.file).unlink()  # it is a link
    (copy / mutant.file).write_text(source.replace(mutant.text, mutant.instead), encoding="utf-8")
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
def copy_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Where the copy of a compiled module can be imported from. The first process that needs it
    makes it, and the others wait for that."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    @cache
    def copy_of(module: str) -> Path:
        copy = shared / f"mutants-of-{Path(module).stem}"
        with open(f"{copy}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not copy.exists():
                make_compiled_copy(tmp_path_factory.mktemp("copy"), module).rename(copy)
        return copy

    return copy_of


# The command as people call it, without the classic system: no mutant is in that one's code.
WITHOUT_CLASSIC = """
import sys
from sluicegate.cli.main import main
from sluicegate.sim import simulate
simulate.SYSTEMS = ("fair",)
sys.exit(main(sys.argv[1:]))
"""


def simulate(copy: Path, scenario: str, seed: int, fault: int) -> subprocess.CompletedProcess[str]:
    named = str(SCENARIOS / scenario) if scenario.endswith(".toml") else scenario
    options = ["--seed", str(seed)]
    if not SOAK and scenario in SECONDS:
        options += ["--seconds", str(SECONDS[scenario])]
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_CLASSIC, "simulate", named, *options],
        env={**os.environ, "PYTHONPATH": str(copy), "SLUICEGATE_FAULT": str(fault)},
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.fault for mutant in MUTANTS])
def test_a_mutant_is_found_out(
    mutant: Mutant, copy_of: Callable[[str], Path], tmp_path: Path
) -> None:
    module = module_of(mutant)
    copy = make_plain_copy(tmp_path, mutant) if module is None else copy_of(module)
    for seed in SEEDS:
        run = simulate(copy, mutant.scenario, seed, NUMBERS[mutant.fault])
        assert run.returncode == 1, run.stdout + run.stderr
        assert re.search(mutant.says, run.stdout, re.MULTILINE), run.stdout + run.stderr


# The scenarios are run unchanged elsewhere too: here a few of them, and in the soak all.
SCENARIOS_UNCHANGED = list(dict.fromkeys(mutant.scenario for mutant in MUTANTS))


@pytest.mark.parametrize("scenario", SCENARIOS_UNCHANGED[:: 1 if len(SEEDS) > 1 else 4])
def test_the_copy_without_a_fault_passes_the_same_run(
    copy_of: Callable[[str], Path], scenario: str
) -> None:
    for seed in SEEDS:
        run = simulate(copy_of(SERVICE_LEDGER), scenario, seed, 0)
        assert run.returncode == 0, run.stdout + run.stderr
