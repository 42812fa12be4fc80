"""The command `pccl-run`, also `python -m pccl_backend.launch`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from . import arguments, executor


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `pccl-run` with these arguments (None: the process's); returns its exit status."""
    return executor.run(arguments.read(argv))


if __name__ == "__main__":
    sys.exit(main())
