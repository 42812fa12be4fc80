"""The command `pccl-master`: the process that coordinates elastic runs.

It parses its arguments and hands over to the extension `_core` (csrc/master), which serves until a
signal ends it. It loads without torch and stays small, so that it may run on any machine that the
peers reach. Nothing is decided here but defaults; what a value means is csrc/master/options.h.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import re
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from . import _dumps, _etcd_access, _tokens
from ._config import ETCD_SCHEMES, RUN_NAME, SCHEME, is_run_name, token
from ._version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ._etcd import EtcdRegister
    from ._etcd_gateway import Access

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 48148
ALL_INTERFACES = "0.0.0.0"
RING_RULES = ("fastest", "rank")
PATIENCE_MARGIN_S = 5.0  # a reconnect, after a peer has found its old master silent
LEASE_S = 5.0
SECONDS_MAX = 86400.0
_DEFAULT_URL = f"{SCHEME}{DEFAULT_HOST}:{DEFAULT_PORT}"


def parse_listen(text: str) -> tuple[str, int]:
    """Splits `HOST:PORT`, `:PORT` (all interfaces), `[V6]:PORT`; an address may lack its port."""
    host, port = text, str(DEFAULT_PORT)
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise argparse.ArgumentTypeError(f"{text!r} is not [IPV6]:PORT")
        port = rest[1:] if rest else port
    elif text.count(":") == 1:
        host, port = text.split(":")
    elif ":" in text:
        raise argparse.ArgumentTypeError(
            f"{text!r} has several colons; an IPv6 address stands in brackets: [::1]:{DEFAULT_PORT}"
        )
    elif not _is_address(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} has no port; expected HOST:PORT, as in {text or DEFAULT_HOST}:{DEFAULT_PORT}"
        )
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"the port of {text!r} is not a number from 0 to 65535")
    return host or ALL_INTERFACES, int(port)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return text == "localhost"
    return True


def positive_s(text: str) -> float:
    """Seconds above 0, at most a day."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 < value <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds above 0 and up to {SECONDS_MAX:.0f}"
        )
    return value


def ending_time(text: str) -> int:
    """Unix time in seconds of `2026-11-23 at 22:01:05 UTC`, or `2026-11-23T22:01:05Z`."""
    parts = re.fullmatch(r"(\d{4}-\d\d-\d\d)(?: at |[T ])(\d\d:\d\d:\d\d)(?: UTC|Z)?", text)
    try:
        time = datetime.fromisoformat(f"{parts[1]}T{parts[2]}+00:00" if parts else "")
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the time at which a run was finished, as the master's log says it: "
            "2026-11-23 at 22:01:05 UTC"
        ) from None
    return int(time.timestamp())


def positive_count(text: str) -> int:
    """A count of at least 1, at most 4096."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 4096:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count from 1 to 4096")
    return int(text)


def run_name(text: str) -> str:
    """The name of a run."""
    if not is_run_name(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a run name: {RUN_NAME}")
    return text


def ring_rule(text: str) -> str:
    """How the order of a ring is chosen."""
    if text not in RING_RULES:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(RING_RULES)}")
    return text


def register_place(text: str) -> str:
    """What --state names. A URL of another scheme than etcd's would be a file of that name."""
    if "://" in text and not text.startswith(ETCD_SCHEMES):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no file and no URL of etcd; expected {' or '.join(ETCD_SCHEMES)}"
            "HOST:PORT/KEY"
        )
    return text


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line: the flags would fill a screen above it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} ({self.prog} --help lists the flags)\n")


class Run(NamedTuple):
    """A run to serve: its name, and where it differs from the flags for all runs."""

    name: str
    settings: dict[str, Any]


def parse_run(text: str) -> Run:
    """Splits `NAME[:SETTING,...]`; a setting is a flag without `--`, as in `min-peers=4`."""
    name, _, rest = text.partition(":")
    settings: dict[str, Any] = {}
    for setting in rest.split(",") if rest else []:
        key, equals, value = setting.partition("=")
        if key in _RUN_SWITCHES and not equals:
            settings[key] = True
        elif key in _RUN_VALUES and equals:
            settings[key.replace("-", "_")] = _RUN_VALUES[key](value)
        else:
            raise argparse.ArgumentTypeError(
                f"{setting!r} of {text!r} is no setting of a run: "
                f"{', '.join([*(f'{k}=…' for k in _RUN_VALUES), *_RUN_SWITCHES])}"
            )
    return Run(run_name(name), settings)


_RUN_VALUES: dict[str, Callable[[str], Any]] = {
    "min-peers": positive_count,
    "hold-below": positive_count,
    "max-peers": positive_count,
    "ring": ring_rule,
    "heartbeat": positive_s,
    "evict-after": positive_s,
    "refound-after": positive_s,
    "again": ending_time,
}
_RUN_SWITCHES = ("adopt", "refound")


def default_state_file(port: int) -> str:
    """Where the register of the master on `port` is kept by default ("": in memory)."""
    return "" if port == 0 else str(_tokens.state_folder() / f"master-{port}")


def make_state_folder(arguments: argparse.Namespace) -> None:
    """Makes the folder of the default state file. A folder that --state names has to be there.

    Raises:
        OSError: It cannot be made.
    """
    if arguments.state is None and arguments.listen[1] != 0:
        _tokens.state_folder().mkdir(mode=0o700, parents=True, exist_ok=True)


def build_parser() -> argparse.ArgumentParser:
    """The arguments of `pccl-master`."""
    parser = _Parser(
        prog="pccl-master",
        description="Serves elastic runs: decides which processes are their members, and holds no "
        "tensor data. At its start the master prints how to join. If the master is killed and "
        "started again with the same state file, the runs go on.",
        allow_abbrev=False,  # --port would be --port-file
    )
    add = parser.add_argument
    add("--version", action="version", version=f"pccl {__version__}")
    add(
        "--listen",
        metavar="HOST:PORT",
        type=parse_listen,
        default=(DEFAULT_HOST, DEFAULT_PORT),
        help="address on which peers connect; port 0 is any free one; without a host, as in "
        f":{DEFAULT_PORT}, on all interfaces; an IPv6 address stands in brackets "
        f"(default: {DEFAULT_HOST}:{DEFAULT_PORT})",
    )
    add(
        "--min-peers",
        metavar="N",
        type=positive_count,
        default=2,
        help="replicas that have to wait before the run is founded (default: 2)",
    )
    add(
        "--hold-below",
        metavar="M",
        type=positive_count,
        default=1,
        help="with fewer replicas than this the run holds at its next boundary until more have "
        "joined (default: 1, it never holds)",
    )
    add(
        "--run",
        metavar="NAME[:SETTING,...]",
        type=parse_run,
        action="append",
        help="name of a run; once for each of several runs, which know nothing of each other, and "
        "which peers tell apart by the end of the URL, pccl://HOST:PORT/NAME. The other flags are "
        "for all runs; a setting is for this run, as in --run b:min-peers=4 (default: default)",
    )
    add(
        "--state",
        metavar="FILE|etcd://…|none",
        type=register_place,
        help="file that keeps what a restarted master must know, in a folder that exists; or an "
        "etcd cluster, etcds://HOST:PORT[,HOST:PORT...]/KEY (etcd:// without TLS), that several "
        "masters share: one is in charge, the others stand by; 'none' keeps it in memory, then a "
        "restarted master does not know its run. A run of another name than 'default' has -NAME at "
        "the end of its file or key (default: master-PORT in $XDG_STATE_HOME/pccl or "
        "~/.local/state/pccl; none with port 0)",
    )
    add(
        "--etcd-ca",
        metavar="FILE",
        help="with etcds://: file (PEM) with the authorities whose certificates an etcd may show "
        "(default: those of this machine)",
    )
    add(
        "--etcd-cert",
        metavar="FILE",
        help="with etcds://: file (PEM) with the certificate that this master shows "
        "(default: none)",
    )
    add(
        "--etcd-key",
        metavar="FILE",
        help="file (PEM) with the key of that certificate, which only this user may read "
        "(default: none)",
    )
    add(
        "--etcd-user",
        metavar="NAME",
        help="user as which this master speaks to etcd; the password is in --etcd-password-file, "
        "or in the variable PCCL_ETCD_PASSWORD (default: no user)",
    )
    add(
        "--etcd-password-file",
        metavar="FILE",
        help="file with one line, the password of --etcd-user, which only this user may read "
        "(default: the variable PCCL_ETCD_PASSWORD, taken out of the environment)",
    )
    add(
        "--lease",
        metavar="SECONDS",
        type=positive_s,
        help="with etcd: seconds from the death of the master in charge until a standby takes over "
        f"(default: {LEASE_S:g})",
    )
    add(
        "--adopt",
        action="store_true",
        help="when members report an epoch that the register does not know (the file was lost): go "
        "on with them. You answer for it that no other master runs (default: nothing goes on)",
    )
    add(
        "--refound",
        action="store_true",
        help="when members report an epoch that the register does not know, or do not come back: "
        "give them up, the next newcomers found the run anew. You answer for it that no other "
        "master runs (default: nothing goes on)",
    )
    add(
        "--again",
        metavar="TIME",
        type=ending_time,
        default=0,
        help="open the run anew that its members have finished at this time, as the master's log "
        "and RunEndedError say it: the next newcomers begin the run, or go on from a checkpoint. A "
        "later end of the run stays (default: who joins a finished run gets RunEndedError)",
    )
    add(
        "--max-peers",
        metavar="N",
        type=positive_count,
        default=4096,
        help="most members of the run; further peers wait at the door (default: 4096)",
    )
    add(
        "--ring",
        metavar="|".join(RING_RULES),
        type=ring_rule,
        default=RING_RULES[0],
        help="in which order data go round among four members and more: 'fastest' has the members "
        "measure their links while they train, and a boundary adopts the order whose slowest link "
        "is the fastest; 'rank' keeps the order of ranks and measures nothing (default: fastest)",
    )
    add(
        "--heartbeat",
        metavar="SECONDS",
        type=positive_s,
        default=1.0,
        help="seconds between two heartbeats, in both directions (default: 1)",
    )
    add(
        "--evict-after",
        metavar="SECONDS",
        type=positive_s,
        default=10.0,
        help="a peer that is silent for so many seconds is evicted; at least two heartbeats "
        "(default: 10)",
    )
    add(
        "--refound-after",
        metavar="SECONDS",
        type=positive_s,
        default=60.0,
        help="when all members are lost, the run is kept for so many seconds, in which they may "
        "come back; only then may newcomers found the run anew (default: 60)",
    )
    add(
        "--token-file",
        metavar="FILE",
        help="file with the tokens by which peers enter; FILE.key has the key of this master. Only "
        "this user may read the two. SIGHUP: FILE is read again. With --status: the file with the "
        "token of who asks, else PCCL_TOKEN_FILE (default: none on a loopback address, where every "
        "process of this machine may enter; elsewhere the file tokens in $XDG_STATE_HOME/pccl or "
        "~/.local/state/pccl, made at the first start)",
    )
    add(
        "--new-token",
        metavar="NAME[@RUN,...]",
        type=_tokens.parse_new,
        help="add a token to FILE, make FILE and its key where there are none, and end; after '@' "
        "the runs that the token opens (default: all runs of this master)",
    )
    add(
        "--show-token",
        metavar="NAME",
        help="print the line of a token of FILE, which is a secret, to the terminal, and end "
        "(default: no secret is printed)",
    )
    add(
        "--insecure",
        action="store_true",
        help="allow an address that other machines reach, without tokens: every machine that "
        "connects may join, and the traffic can be read (default: tokens, see --token-file)",
    )
    add(
        "--core-dumps",
        action="store_true",
        help="with tokens: let the system write the memory of this master, with its keys, into a "
        "file when it crashes, and let debuggers read it (default: neither, on Linux)",
    )
    add(
        "--port-file",
        metavar="FILE",
        default="",
        help="file that gets the port once it is open, for launchers (default: none)",
    )
    add(
        "--log-level",
        choices=["debug", "info", "warning", "error", "off"],
        default="info",
        help="least level of the lines on stderr (default: info)",
    )
    add(
        "--status",
        metavar="URL",
        nargs="?",
        const="",
        help="ask the master at URL who is in its run, print that, and end "
        f"(default: PCCL_MASTER, or {SCHEME}{DEFAULT_HOST}:{DEFAULT_PORT})",
    )
    add("--json", action="store_true", help="with --status: print it as JSON (default: text)")
    return parser


def master_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of MasterOptions (csrc/master/options.h) for these arguments."""
    host, port = arguments.listen
    return {
        "host": host,
        "port": port,
        "insecure": arguments.insecure,
        "token_file": arguments.token_file or "",
        "port_file": arguments.port_file,
        "log_level": arguments.log_level,
        "package": __version__,
    }


def runs_of(arguments: argparse.Namespace) -> list[argparse.Namespace]:
    """The flags of each run: those for all runs, with its name and its settings.

    Raises:
        ValueError: A run cannot be served so; the text names the flag.
    """
    runs = arguments.run or [Run("default", {})]
    names = [run.name for run in runs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"argument --run: two runs have the name {name!r}")
    flags = []
    for run in runs:
        one = argparse.Namespace(**{**vars(arguments), **run.settings, "run": run.name})
        one.lease = LEASE_S if one.lease is None else one.lease
        of = f" (run {run.name!r})" if len(runs) > 1 else ""
        if one.evict_after < 2 * one.heartbeat:
            raise ValueError(
                "argument --evict-after: less than two heartbeats, every peer would be evicted" + of
            )
        if one.max_peers < one.min_peers:
            raise ValueError(
                "argument --max-peers: less than --min-peers, no run could be founded" + of
            )
        if one.max_peers < one.hold_below:
            raise ValueError(
                "argument --hold-below: above --max-peers, the run would hold for ever" + of
            )
        if one.adopt and one.refound:
            raise ValueError("argument --adopt: not with --refound; members go on, or do not" + of)
        flags.append(one)
    return flags


def state_of(run: argparse.Namespace) -> str:
    """Where the register of a run is kept ("": in memory): a file, or a URL of etcd."""
    state: str = default_state_file(run.listen[1]) if run.state is None else run.state
    if state in ("", "none"):
        return ""
    return state if run.run == "default" else f"{state}-{run.run}"


def run_options(run: argparse.Namespace) -> dict[str, Any]:
    """The fields of RunOptions (csrc/master/options.h) for the flags of a run."""
    state_file = state_of(run)
    lease = run.lease if state_file.startswith(ETCD_SCHEMES) else 0.0
    return {
        "run": run.run,
        "min_peers": run.min_peers,
        "hold_below": run.hold_below,
        "max_peers": run.max_peers,
        "measure_links": run.ring == "fastest",
        "adopt": run.adopt,
        "refound": run.refound,
        "again": run.again,
        "state_file": state_file,
        "heartbeat_ms": max(1, round(run.heartbeat * 1000)),
        "silence_ms": max(1, round(run.evict_after * 1000)),
        "patience_ms": round((run.evict_after + lease + PATIENCE_MARGIN_S) * 1000),
        "refound_after_ms": max(1, round(run.refound_after * 1000)),
        "lease_renew_ms": max(100, round(run.lease * 1000 / 4)),
    }


def shared_register(run: argparse.Namespace, access: Access | None) -> EtcdRegister | None:
    """The register of several masters, if --state names one. Raises ValueError.

    Args:
        run: The flags of the run.
        access: How etcd is spoken to; None: --state names none.
    """
    if access is None:
        return None
    from ._etcd import EtcdRegister

    host, port = run.listen
    return EtcdRegister(state_of(run), lease_s=run.lease, name=f"{host}:{port}", access=access)


def ask_status(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """`--status`: asks a master who is in its run, and prints that; returns the exit status."""
    from . import _status

    url = arguments.status or os.environ.get("PCCL_MASTER") or _DEFAULT_URL
    name = "URL" if arguments.status else "PCCL_MASTER"
    try:
        with token() as line:
            file = arguments.token_file or os.environ.get("PCCL_TOKEN_FILE", "")
            return _status.main(url, name=name, as_json=arguments.json, token_file=file, token=line)
    except ValueError as error:
        parser.error(f"argument --status: {error}")


def served_runs(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace
) -> list[tuple[dict[str, Any], EtcdRegister | None]]:
    """The options of each run to serve, and the register of several masters if it has one."""
    if arguments.state == "":
        parser.error("argument --state: an empty name; 'none' keeps the state in memory")
    try:
        runs = runs_of(arguments)
        access = _etcd_access.of_arguments(arguments)
    except ValueError as error:
        parser.error(str(error))
    try:
        return [(run_options(run), shared_register(run, access)) for run in runs]
    except ValueError as error:
        parser.error(f"argument --state: {error}")
    except RuntimeError as error:  # no home directory
        parser.error(
            f"no place for the state file ({error}); name one with --state, or --state none"
        )


def serve(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Serves the runs until a signal comes; returns the exit status."""
    served = served_runs(parser, arguments)
    shared = any(register is not None for _, register in served)
    try:
        arguments.token_file = _tokens.file_to_serve(arguments, shared=shared)
    except (ValueError, RuntimeError) as error:
        parser.error(f"argument --token-file: {error}")
    except OSError as error:
        print(f"pccl-master: argument --listen: {error}", file=sys.stderr)
        return 1
    try:
        make_state_folder(arguments)
    except OSError as error:
        print(f"pccl-master: {error}; name a state file with --state", file=sys.stderr)
        return 1
    from pccl_backend import _core

    if arguments.token_file and not arguments.core_dumps and sys.platform.startswith("linux"):
        _dumps.forbid()
    if len(served) > 1:  # the threads of libuv: a register that does not answer takes one
        os.environ.setdefault("UV_THREADPOOL_SIZE", str(4 + len(served)))
    status = _core.run_master(master_options(arguments), served)
    if shared:
        # A thread may still wait for an etcd that does not answer: nothing here waits for it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `pccl-master` with these arguments (None: the process's); returns its exit status."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.json and arguments.status is None:
        parser.error("argument --json: only with --status")
    if arguments.status is not None:
        return ask_status(parser, arguments)
    try:
        if arguments.new_token or arguments.show_token:
            return _tokens.command(arguments)
    except ValueError as error:
        parser.error(str(error))
    return serve(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
