"""The arguments of `pccl-run`, with torchrun's names where they mean the same; and the plan.

Nothing is started here but a Python that looks for the module of --module. A flag of torchrun's
that has no meaning under pccl is refused, and the error names what to do instead.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .._cli import positive_count, positive_s
from .._config import parse_url
from .._cores import allowed_cores
from .._version import __version__
from .spot import PROVIDERS
from .supervisor import Rules

PROG = "pccl-run"
DEVICES = ("auto", "cpu", "gpu", "xpu")
JOB = "start pccl-run on each host with the same --master; the master counts the processes"
MASTERS = ("PCCL_MASTER", "PCCL_JOIN_URL")  # variables that name one; the first counts
RESTARTS = (
    "a worker is started again whenever it fails; --max-failures limits the failures in a row"
)

# Ends with status NOT_FOUND if `python -m NAME` finds no module. Packages are imported only where
# their files alone do not say it: a package may change its own path.
FIND = """
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec

def locate(name):
    parent = name.rpartition(".")[0]
    if not parent:
        return find_spec(name)
    package = locate(parent)
    return package and PathFinder.find_spec(name, package.submodule_search_locations or [])

name, not_found = sys.argv[1], int(sys.argv[2])
spec = locate(name)
if spec and spec.submodule_search_locations is not None:
    name += ".__main__"
    spec = locate(name)
try:
    sys.exit(0 if spec or find_spec(name) else not_found)
except ModuleNotFoundError as error:
    sys.exit(not_found if f"{name}.".startswith(f"{error.name}.") else 0)
"""
NOT_FOUND = 3
FIND_S_MAX = 60.0

# Flags of torchrun's whose subject does not exist here.
INSTEAD = {
    "--nnodes": JOB,
    "--node-rank": JOB,
    "--master-addr": f"--master names the master; {JOB}",
    "--master-port": f"--master names the master; {JOB}",
    "--rdzv-backend": f"--master takes the place of a rendezvous; {JOB}",
    "--rdzv-endpoint": f"--master takes the place of a rendezvous; {JOB}",
    "--rdzv-id": "the run's name is in the master's URL",
    "--rdzv-conf": f"--master takes the place of a rendezvous; {JOB}",
    "--max-restarts": RESTARTS,
    "--run-path": "give the path of the script",
}


@dataclass(frozen=True)
class Plan:
    """What a launcher does.

    Attributes:
        command: Of each worker.
        processes: Number of workers.
        replica: They are the ranks of one replica.
        master: URL of the run; None with `standalone`.
        standalone: A master is run too.
        rules: Of the supervisor.
        signals: That are handed on, and end the launcher.
        spot: The cloud whose notices are watched for; None: no one's.
        log_folder: Where logs are kept; None where nothing is logged.
        redirects: Of each rank, the streams (1 stdout, 2 stderr, 3 both) that go into a file only.
        tees: Of each rank, the streams that go into a file and to the console.
    """

    command: tuple[str, ...]
    processes: int
    replica: bool
    master: str | None
    standalone: bool
    rules: Rules
    signals: tuple[int, ...]
    spot: str | None
    log_folder: Path | None
    redirects: Mapping[int, int]
    tees: Mapping[int, int]


class _Instead(argparse.Action):
    """Refuses a flag of torchrun's."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        name = self.option_strings[0]
        parser.error(f"argument {name}: a flag of torchrun only: {INSTEAD[name]}")


def build_parser() -> argparse.ArgumentParser:
    """The arguments of `pccl-run`."""
    parser = argparse.ArgumentParser(
        prog=PROG,
        description="Starts the workers of this host. A worker that dies or is evicted is started "
        "again, while the others go on.",
        allow_abbrev=False,
    )

    def add(*names: str, **settings: object) -> None:
        """Adds a flag with torchrun's second spelling, which has underscores."""
        spellings = [n.replace("-", "_") for n in names if n.startswith("--") and "-" in n[2:]]
        parser.add_argument(*names, *(f"--{s[2:]}" for s in spellings), **settings)  # type: ignore[arg-type]

    add("--version", action="version", version=f"pccl {__version__}")
    add(
        "--nproc-per-node",
        metavar="N|auto|cpu|gpu|xpu",
        default="1",
        help="workers on this host: a number, or one for each device or CPU (default: 1)",
    )
    add(
        "--master",
        metavar="URL",
        help="pccl://HOST:PORT[,HOST:PORT...][/RUN] of the run (default: PCCL_MASTER)",
    )
    add(
        "--standalone",
        action="store_true",
        help="run a master too, on a free port of 127.0.0.1, until the workers have ended",
    )
    add(
        "--replica",
        action="store_true",
        help="the workers are the ranks of one replica, which is replaced as a whole "
        '(pccl.join(replica="torchrun"))',
    )
    add(
        "--spot",
        metavar="|".join(sorted(PROVIDERS)),
        choices=sorted(PROVIDERS),
        help="when this cloud says that the machine is taken back, the workers get SIGTERM",
    )
    add("-m", "--module", action="store_true", help="the script is a module, as of `python -m`")
    add("--no-python", action="store_true", help="the script is executed as it is")
    add(
        "--log-dir",
        metavar="FOLDER",
        type=Path,
        help="folder for the files of --redirects and --tee; each start of pccl-run makes a folder "
        "of its own in this one (default: a folder for temporary files)",
    )
    add(
        "-r",
        "--redirects",
        metavar="STREAMS",
        default="0",
        help="streams that go into files: 1 stdout, 2 stderr, 3 both, 0:1,1:3 by local rank "
        "(default: 0, none)",
    )
    add(
        "-t",
        "--tee",
        metavar="STREAMS",
        default="0",
        help="streams that go into files and to the console, as for --redirects (default: 0)",
    )
    add(
        "--max-failures",
        metavar="N",
        type=positive_count,
        default=Rules.failures_max,
        help="pccl-run gives up when a worker has failed so many times in a row, each time before "
        f"--steady-after (default: {Rules.failures_max})",
    )
    add(
        "--steady-after",
        metavar="SECONDS",
        type=positive_s,
        default=Rules.steady_s,
        help="when a worker has lived for so long, pccl-run forgets its failures, and the delays "
        f"begin anew (default: {Rules.steady_s:g})",
    )
    add(
        "--restart-delay",
        metavar="SECONDS",
        type=positive_s,
        default=Rules.delay_s,
        help="from a worker's first failure to its next start; each further failure in a row "
        f"doubles it (default: {Rules.delay_s:g})",
    )
    add(
        "--restart-delay-max",
        metavar="SECONDS",
        type=positive_s,
        help=f"the longest delay (default: {Rules.delay_s_max:g}, or --restart-delay if that is "
        "more)",
    )
    add(
        "--signals-to-handle",
        metavar="NAMES",
        type=signals,
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        help="signals that are handed on to the workers, and after which none is started "
        "(default: %(default)s)",
    )
    add(
        "--shutdown-timeout",
        metavar="SECONDS",
        type=positive_s,
        default=Rules.grace_s,
        help=f"from such a signal to SIGKILL (default: {Rules.grace_s:g})",
    )
    for name in INSTEAD:
        add(name, action=_Instead, nargs="?", help=argparse.SUPPRESS)
    add("training_script", metavar="SCRIPT", help="program of the workers")
    add("training_script_args", metavar="ARGUMENTS", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def signals(text: str) -> tuple[int, ...]:
    """The signals of `SIGTERM,SIGINT`."""
    found = []
    for name in text.split(","):
        try:
            number = signal.Signals[name.strip()]
        except KeyError:
            raise argparse.ArgumentTypeError(f"{name!r} is no signal, as SIGTERM is") from None
        if number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
            raise argparse.ArgumentTypeError(f"{name} cannot be handed on")
        found.append(int(number))
    return tuple(found)


def streams(text: str, processes: int, *, flag: str) -> dict[int, int]:
    """The streams of each local rank, as `3` or `0:1,1:3` say. Raises ValueError, with `flag`."""
    if re.fullmatch("[0-3]", text):
        return dict.fromkeys(range(processes), int(text))
    if not re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", text):
        raise ValueError(
            f"argument {flag}: {text!r}; expected 0, 1, 2 or 3, or RANK:STREAMS[,RANK:STREAMS...]"
        )
    named = {int(rank): int(value) for rank, value in (p.split(":") for p in text.split(","))}
    return {rank: named.get(rank, 0) for rank in range(processes)}


def restart_delays(arguments: argparse.Namespace) -> tuple[float, float]:
    """The first delay and the longest one. Raises ValueError where the first one is longer."""
    first: float = arguments.restart_delay
    longest: float | None = arguments.restart_delay_max
    if longest is None:
        return first, max(first, Rules.delay_s_max)
    if longest < first:
        raise ValueError(
            f"argument --restart-delay-max: {longest:g}; expected at least --restart-delay, "
            f"{first:g}"
        )
    return first, longest


def count_processes(text: str) -> int:
    """The number that --nproc-per-node means. Raises ValueError."""
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 4096:
        return int(text)
    if text not in DEVICES:
        raise ValueError(
            f"argument --nproc-per-node: {text!r}; expected a number from 1 to 4096 or "
            f"{', '.join(DEVICES)}"
        )
    if text == "cpu":
        return allowed_cores()
    from torch.distributed.run import determine_local_world_size  # loads torch: two seconds

    return int(determine_local_world_size(text))


def worker_command(arguments: argparse.Namespace) -> tuple[str, ...]:
    """What each worker executes. Raises ValueError where that cannot be."""
    script = arguments.training_script
    if arguments.no_python:
        if arguments.module:
            raise ValueError("--no-python with --module; expected one of them")
        if shutil.which(script) is None:
            raise ValueError(f"there is no program {script}")
        return (script, *arguments.training_script_args)
    if not arguments.module and not Path(script).exists():
        raise ValueError(f"there is no script {script}")
    python = os.environ.get("PYTHON_EXEC") or sys.executable
    if arguments.module:
        find_module(python, script)
    module = ("-m",) if arguments.module else ()
    return (python, "-u", *module, script, *arguments.training_script_args)


def find_module(python: str, name: str) -> None:
    """Raises ValueError where that Python finds no such module, which would fail at each start."""
    command = [python, "-c", FIND, name, str(NOT_FOUND)]
    none = subprocess.DEVNULL
    try:
        found = subprocess.run(
            command, stdin=none, stdout=none, stderr=none, timeout=FIND_S_MAX, check=False
        )
    except subprocess.TimeoutExpired:  # of a package whose import takes long: it is there
        return
    except OSError as error:
        raise ValueError(f"PYTHON_EXEC: {python} cannot be executed: {error.strerror}") from None
    if found.returncode == NOT_FOUND:
        raise ValueError(f"there is no module {name} that {python} could run")


def read(argv: Sequence[str] | None = None) -> Plan:
    """The plan of these arguments (None: the process's); what is wrong ends the process."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    named = {"--master": arguments.master} | {name: os.environ.get(name) for name in MASTERS}
    source, master = next(((name, url) for name, url in named.items() if url), ("", None))
    if arguments.standalone:
        if arguments.master:
            parser.error("argument --standalone: not with --master; it runs a master of its own")
        master = None
    elif not master:
        parser.error(
            "no master: expected --master pccl://HOST:PORT, the variable PCCL_MASTER, or "
            "--standalone, which runs one"
        )
    try:
        if master:
            parse_url(master, name=source)
        processes = count_processes(arguments.nproc_per_node)
        redirects = streams(arguments.redirects, processes, flag="--redirects")
        tees = streams(arguments.tee, processes, flag="--tee")
        delays = restart_delays(arguments)
        command = worker_command(arguments)
    except ValueError as error:
        parser.error(str(error))
    is_logged = any([*redirects.values(), *tees.values()])
    return Plan(
        command=command,
        processes=processes,
        replica=arguments.replica,
        master=master,
        standalone=arguments.standalone,
        rules=Rules(
            delay_s=delays[0],
            delay_s_max=delays[1],
            steady_s=arguments.steady_after,
            failures_max=arguments.max_failures,
            grace_s=arguments.shutdown_timeout,
        ),
        signals=arguments.signals_to_handle,
        spot=arguments.spot,
        log_folder=arguments.log_dir if is_logged else None,
        redirects=redirects,
        tees=tees,
    )
