"""Runs a command that is killed when its parent process dies, however that happens.

    python die_with_parent.py PARENT COMMAND...

The kernel sends SIGKILL to this process when its parent dies (PR_SET_PDEATHSIG), which holds for
the program that replaces it, too. It is SIGKILL because a stopped process would receive no other
signal, and nothing here is worth saving. If the parent has died before the kernel knows, the
command is not started.

This file imports nothing of sluicegate: as a program it should cost nothing.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

__all__ = ["wrap"]

_PR_SET_PDEATHSIG = 1


def wrap(command: Sequence[str]) -> list[str]:
    """The same command, killed when this process dies."""
    return [sys.executable, "-SI", __file__, str(os.getpid()), *command]


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
