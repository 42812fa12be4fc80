"""How long do the collectives that FSDP and others use take, next to gloo in the same processes?

As all_reduce.py, whose options these are.

    python benchmarks/collectives.py                    # fixed groups, through shared memory
    python benchmarks/collectives.py --over TCP
"""

from __future__ import annotations

from all_reduce import CALLS, main

if __name__ == "__main__":
    main(
        __doc__,
        sizes="4096,65536,1048576,16777216,67108864",
        calls=",".join(CALLS[1:]),
        groups="fixed",
        over="memory",
        rounds=5,
    )
