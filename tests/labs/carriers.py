"""By what the ranks of a test reach each other: whatever holds by one of these holds by all."""

from __future__ import annotations

# Variables of each process. Memory: between processes of one machine; between machines TCP. Three
# threads, since that is where several have most to do (PCCL_THREADS; here there would be one).
CARRIERS = {
    "memory": {},
    "TCP": {"PCCL_SHARED_MEMORY": "0"},
    "TLS": {"PCCL_SHARED_MEMORY": "0", "PCCL_PLAINTEXT": "none", "PCCL_THREADS": "3"},
}
