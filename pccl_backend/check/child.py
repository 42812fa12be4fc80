"""One process of a case: `python -m pccl_backend.check.child`, started by processes.py.

Calls the case's function with a `Rank`, and writes down what came of it. Shortly before the limit
the stacks of all its threads go to its log.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import sys
import traceback
from pathlib import Path

from .rank import CheckFailedError, Rank

STACKS_BEFORE_S = 3.0  # the limit


def main() -> int:
    """FUNCTION RANK SIZE FOLDER LIMIT_S DEVICE; returns the exit status."""
    function, rank, size, folder, limit_s, device = sys.argv[1:]
    faulthandler.dump_traceback_later(max(1.0, float(limit_s) - STACKS_BEFORE_S))
    at = Rank(int(rank), int(size), Path(folder), device)
    module, _, name = function.partition(":")
    try:
        getattr(importlib.import_module(module, __package__), name)(at)
    except Exception as error:
        traceback.print_exc()
        text = str(error) if isinstance(error, CheckFailedError) else ""
        at.answer["error"] = text or f"{type(error).__name__}: {error}"
    at.finish()
    if at.answer["error"]:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # what failed may hold the process up; the answer says it all
    return 0


if __name__ == "__main__":
    sys.exit(main())
