"""Types of the extension csrc/python/core_module.cpp: master and pure cores, without torch."""

from typing import Any

def run_master(options: dict[str, Any], runs: list[tuple[dict[str, Any], Any]]) -> int:
    """Serves until SIGINT or SIGTERM; returns the exit status. Fields: csrc/master/options.h.

    `runs`: of each run its options, and the register that it has in place of the file
    options["state_file"], see _etcd.EtcdRegister, or None.
    """

def check_listen(host: str, port: int) -> None:
    """Raises OSError where no master can listen on that address now."""

def ask_status(
    address: str, run: str, timeout_s: float, token_file: str, token: str
) -> dict[str, Any]:
    """The fields of Status (csrc/wire/messages.h), ids and epochs as texts.

    `token_file`, else `token` (a line, which is taken out of PCCL_TOKEN): with what to enter; both
    may be empty. Raises OSError without an answer, and ValueError for a wrong token.
    """

def new_token(path: str, name: str, runs: list[str]) -> None:
    """Adds a token to the file of a master; makes the file and its key. Raises ValueError."""

def token_line(path: str, name: str) -> str:
    """The line of a token in the file of a master: a secret. Raises ValueError."""

def private_content(what: str, path: str) -> bytes:
    """The content of a file that nobody else may read or change.

    Raises ValueError, which begins with `what` and the path.
    """

def wipe_variable(name: str) -> None:
    """Overwrites the value of a variable in the memory of this process, and unsets it."""

def build_schedule(args: dict[str, Any]) -> dict[str, Any]:
    """collectives/schedule.h, for the tests: fields of CollectiveArgs in, steps and scratch_bytes out."""

def reduce_into(to: Any, a: Any, b: Any, dtype: str, op: str) -> None:
    """kernels/reduce.h over writable buffers of equal size, for the tests."""

def finish_average(data: Any, dtype: str, contributors: int) -> None: ...
def reducible(dtype: str, op: str) -> bool: ...
