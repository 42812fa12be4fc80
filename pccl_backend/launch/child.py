"""Becomes a worker: `python child.py PARENT COMMAND...`, run as a file, with the standard library.

Before it executes the command it asks the kernel to end this process when its parent ends
(PR_SET_PDEATHSIG), which outlives the exec. Between fork and exec of a parent with threads no
Python code may run, so the parent starts this program, and not the command.
"""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main(parent: int, command: list[str]) -> int:
    """Executes the command; returns only where that cannot be, with a shell's status for it."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel knew
        return 128 + signal.SIGKILL
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"pccl-run: {command[0]} cannot be executed: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
