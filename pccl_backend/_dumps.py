"""Core dumps: a file with the memory of a process, and so with its keys.

The kernel writes none for a process that says so (prctl), and lets no other process of the same
user read its memory: no debugger, no py-spy, no pidfd_getfd, by which CUDA shares memory of
several processes. So it is an option of a worker, and what a master with tokens does by itself.
"""

from __future__ import annotations

import ctypes
import os
import sys

_PR_SET_DUMPABLE = 4


def forbid() -> None:
    """From now on this process, and those that it forks, leave no core dump.

    Raises:
        OSError: The system has no such thing, or refuses.
    """
    if not sys.platform.startswith("linux"):
        raise OSError(f"core dumps cannot be forbidden on {sys.platform}; expected Linux")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
