"""Whatever requests and leaders do, the core of the nginx node says nothing that cannot be sent."""

import subprocess
from pathlib import Path

from tests.harness.nginx import find_luajit
from tests.harness.waits import PATIENCE

_SEEDS = 100


def test_every_report_and_ask_can_be_written_and_nothing_is_booked_twice() -> None:
    """One that cannot would be made again and again, and the node would not report any more.

    Credit that came and went in odd parts once made a node return more than it was granted, by the
    last bit of a float. And a node that had left, and came back in the same slot, told less than
    was settled; or all of its totals as new.
    """
    script = Path(__file__).with_name("fuzz_node.lua")
    done = subprocess.run(
        [find_luajit(), script, "1", str(_SEEDS)],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
