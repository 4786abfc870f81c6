"""A process ends with the one that started it, whatever ends that.

    python die_with_parent.py PARENT COMMAND...      runs COMMAND, and kills it when PARENT dies

The kernel is told to kill this process when its parent dies (PR_SET_PDEATHSIG), which a new
program in the same process keeps. It is SIGKILL: a process that was stopped would not hear any
other, and nothing here is worth saving. The parent may be gone before the kernel is told, so
`set_up` checks for it.

This file imports nothing of sluicegate's: as a program it should cost nothing.
"""

import ctypes
import os
import signal
import sys

__all__ = ["set_up"]

_PR_SET_PDEATHSIG = 1


def set_up(parent: int) -> None:
    """From now on this process ends with its parent."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    set_up(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
