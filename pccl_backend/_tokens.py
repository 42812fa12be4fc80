"""`pccl-master --token-file`: makes tokens, shows them, and finds the file of a master that serves.

What a token file holds, and who may read it, is decided in csrc/trust. No function here prints a
secret, but for `--show-token` on a terminal.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from ._config import is_run_name
from ._say import say

FIRST = "default"  # the token that a master makes by itself
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def state_folder() -> Path:
    """Where masters of this user keep what they have to know after a restart.

    Raises:
        RuntimeError: There is no home directory.
    """
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "pccl"


def parse_new(text: str) -> tuple[str, list[str]]:
    """Splits `NAME[@RUN,...]`."""
    name, at, rest = text.partition("@")
    runs = rest.split(",") if at else []
    if not _NAME.fullmatch(name) or not all(is_run_name(run) for run in runs):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME[@RUN,...]: names of letters, digits, '-', '_' and '.', that of "
            "a token of up to 64, that of a run of up to 128"
        )
    return name, runs


def command(arguments: argparse.Namespace) -> int:
    """Carries out --new-token or --show-token; returns the exit status.

    Raises:
        ValueError: What is wrong with the arguments, or with the file.
    """
    file: str | None = arguments.token_file
    if not file:
        raise ValueError("--new-token and --show-token need --token-file FILE")
    if arguments.new_token and arguments.show_token:
        raise ValueError("argument --show-token: not with --new-token; give the two one by one")
    from pccl_backend import _core

    if arguments.show_token:
        if not sys.stdout.isatty():
            print(
                "pccl-master: --show-token prints a secret to a terminal only, and the output is "
                f"none: copy the line of the token from {file}",
                file=sys.stderr,
            )
            return 1
        print(_core.token_line(file, arguments.show_token))
        return 0
    name, runs = arguments.new_token
    _core.new_token(file, name, runs)
    opens = f"the runs {', '.join(runs)}" if runs else "all runs of this master"
    say(
        f"The token {name!r} is in {file}; it opens {opens}.\n"
        f"On a machine that may enter: a file with its line, as\n"
        f"  pccl-master --token-file {file} --show-token {name}\n"
        f"prints it, for its user alone (chmod 600); and in the environment there\n"
        f"  PCCL_TOKEN_FILE=that file\n"
        f"A master that runs with {file} reads it again after SIGHUP. {file}.key stays here:\n"
        "whoever has it can play the master."
    )
    return 0


def file_to_serve(arguments: argparse.Namespace, *, shared: bool) -> str:
    """The token file of a master that serves; "": it takes no tokens. Makes one if it is needed.

    Args:
        arguments: Of the command.
        shared: Several masters share the register of a run.

    Raises:
        ValueError: No file is named where one has to be, or it cannot be made.
        RuntimeError: There is no home directory.
        OSError: The master cannot listen on its address, so none is made.
    """
    named: str | None = arguments.token_file
    if named == "":
        raise ValueError("an empty name")
    if named and arguments.insecure:
        raise ValueError("not with --insecure, which lets everybody enter")
    if named or arguments.insecure or is_loopback(arguments.listen[0]):
        return named or ""
    if shared:
        raise ValueError(
            "several masters share the register, and all of them need the same tokens: make them "
            "once with --token-file FILE --new-token NAME, copy FILE and FILE.key to each, and "
            "name the file (or say --insecure: everybody may enter)"
        )
    file = str(state_folder() / "tokens")
    if not os.path.lexists(file):
        from pccl_backend import _core

        _core.check_listen(*arguments.listen)
        _core.new_token(file, FIRST, [])
        say(f"Made the token {FIRST!r} in {file}, and the key of this master in {file}.key.")
    return file


def is_loopback(host: str) -> bool:
    """Whether this machine alone reaches the address, as csrc/base/text.h says it of a host."""
    return host in ("localhost", "::1") or bool(re.fullmatch(r"127\.[0-9.]+", host))
