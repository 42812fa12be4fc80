"""Prints what a command has to say to whoever started it.

A reader that closes the pipe early (`pccl-master --status | head -1`) has what it wants: that is
no error of the command, which goes on. Loads without torch.
"""

from __future__ import annotations

import os
import sys


def say(text: str) -> None:
    """Prints `text` to stdout. Where nobody reads it, this and all later texts go nowhere."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # else Python flushes into the pipe at its end
        os.close(nowhere)
