"""The collectives that FSDP and others use, next to gloo in the same processes (all_reduce.py).

python benchmarks/collectives.py                    # fixed groups, through shared memory
python benchmarks/collectives.py --over TCP
"""

from __future__ import annotations

import sys

from all_reduce import CALLS, main

if __name__ == "__main__":
    sizes = "4096,65536,1048576,16777216,67108864"
    sys.argv[1:1] = ["--calls", ",".join(CALLS[1:]), "--groups", "fixed", "--over", "memory"]
    sys.argv[1:1] = ["--sizes", sizes, "--rounds", "5"]
    main()
