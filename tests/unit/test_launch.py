"""pccl-run without its workers: arguments, variables, streams, and what it costs to load."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, wait_until

from pccl_backend._config import Options, Replica
from pccl_backend.launch import environment, output
from pccl_backend.launch.arguments import Plan, count_processes, read, streams
from pccl_backend.launch.output import (
    ERR,
    OUT,
    TAIL_LINES,
    Pump,
    Sink,
    Streams,
    last_lines,
    tail_of,
)
from pccl_backend.launch.supervisor import Rules

LOAD_CPU_S_MAX = 0.7
MASTER = ("--master", "pccl://a:1")
SCRIPT = str(ROOT / "examples" / "first" / "train.py")


@pytest.fixture(autouse=True)
def nobodys_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PCCL_MASTER", "PCCL_JOIN_URL", "PYTHON_EXEC"):
        monkeypatch.delenv(name, raising=False)


def plan(*arguments: str) -> Plan:
    return read([*MASTER, *arguments])


# ------------------------------------------------------------------------------ arguments


def test_without_flags_one_worker_is_run_by_this_python() -> None:
    got = plan(SCRIPT, "--steps", "3", "--tee")
    assert got.command == (sys.executable, "-u", SCRIPT, "--steps", "3", "--tee")
    assert (got.processes, got.replica, got.standalone, got.spot) == (1, False, False, None)
    assert got.rules == Rules()
    assert (got.log_folder, got.redirects, got.tees) == (None, {0: 0}, {0: 0})
    assert got.signals == (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def test_flags_have_torchruns_spellings() -> None:
    got = plan(
        "--nproc_per_node=3", "--log_dir", "logs", "--tee", "0:1,2:3", "-r2", "-m", "json.tool", "x"
    )
    assert got.command == (sys.executable, "-u", "-m", "json.tool", "x")
    assert got.tees == {0: 1, 1: 0, 2: 3}
    assert got.redirects == {0: 2, 1: 2, 2: 2}
    assert got.log_folder == Path("logs")
    assert plan("--no-python", "sh", "-c", "true").command == ("sh", "-c", "true")


def test_the_rules_of_the_supervisor_are_flags() -> None:
    got = plan(
        *("--max-failures", "3", "--steady-after", "4", "--restart-delay", "5"),
        *("--restart-delay-max", "7", "--shutdown-timeout", "6", "--signals-to-handle", "SIGUSR1"),
        SCRIPT,
    )
    assert got.rules == Rules(
        delay_s=5.0, delay_s_max=7.0, steady_s=4.0, failures_max=3, grace_s=6.0
    )
    assert got.signals == (signal.SIGUSR1,)
    assert plan("--restart-delay", "90", SCRIPT).rules.delay_s_max == 90.0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([SCRIPT], "expected --master pccl://HOST:PORT"),
        (["--standalone", *MASTER, SCRIPT], "not with --master"),
        (["--master", "tcp://a:1", SCRIPT], "--master is 'tcp://a:1'"),
        ([*MASTER, "no-such-script.py"], "there is no script no-such-script.py"),
        ([*MASTER, "-m", "no_such_module"], "there is no module no_such_module that"),
        ([*MASTER, "-m", "json.no_such"], "there is no module json.no_such that"),
        ([*MASTER, "-m", "json"], "there is no module json that"),  # a package, not a program
        ([*MASTER, "--no-python", "no-such-program"], "there is no program no-such-program"),
        ([*MASTER, "--no-python", "-m", "sh"], "expected one of them"),
        (
            [*MASTER, "--nproc-per-node", "0", SCRIPT],
            "--nproc-per-node: '0'; expected a number from 1",
        ),
        ([*MASTER, "--nproc-per-node", "many", SCRIPT], "auto, cpu, gpu, xpu"),
        ([*MASTER, "--tee", "4", SCRIPT], "argument --tee: '4'; expected 0, 1, 2 or 3"),
        ([*MASTER, "--redirects", "0:4", SCRIPT], "argument --redirects: '0:4'; expected"),
        (
            [*MASTER, "--restart-delay", "5", "--restart-delay-max", "2", SCRIPT],
            "argument --restart-delay-max: 2; expected at least --restart-delay, 5",
        ),
        ([*MASTER, "--signals-to-handle", "SIGNONE", SCRIPT], "'SIGNONE' is no signal"),
        ([*MASTER, "--signals-to-handle", "SIGKILL", SCRIPT], "SIGKILL cannot be handed on"),
        ([*MASTER, "--max-failures", "0", SCRIPT], "not a count from 1"),
        ([*MASTER, "--spot", "none", SCRIPT], "invalid choice"),
        ([*MASTER, "--nnodes", "2", SCRIPT], "of torchrun only: start pccl-run on each host"),
        ([*MASTER, "--rdzv_backend=c10d", SCRIPT], "--master takes the place of a rendezvous"),
        ([*MASTER, "--max-restarts=3", SCRIPT], "--max-failures limits"),
        (MASTER, "required: SCRIPT"),
    ],
)
def test_wrong_arguments_are_refused_with_what_was_expected(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        read(arguments)
    assert caught.value.code == 2
    assert text in capsys.readouterr().err


def test_a_module_is_looked_for_by_the_python_of_the_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = tmp_path / "moved"
    (moved / "real").mkdir(parents=True)
    (moved / "real" / "train.py").touch()
    (moved / "__init__.py").write_text("__path__.append(__path__[0] + '/real')")
    (moved / "broken.py").write_text("import no_such_dependency")
    monkeypatch.chdir(tmp_path)  # `python -m` looks there, and the launcher does not
    for module in ("moved.train", "moved.broken"):
        assert plan("-m", module).command[-2:] == ("-m", module)
    with pytest.raises(SystemExit):
        plan("-m", "moved.trian")
    assert f"there is no module moved.trian that {sys.executable}" in capsys.readouterr().err
    monkeypatch.setenv("PYTHON_EXEC", "no-such-python")
    with pytest.raises(SystemExit):
        plan("-m", "moved.train")
    assert "PYTHON_EXEC: no-such-python cannot be executed" in capsys.readouterr().err


def test_the_master_may_be_named_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PCCL_MASTER", "pccl://b:2")
    assert read([SCRIPT]).master == "pccl://b:2"
    assert plan(SCRIPT).master == "pccl://a:1"
    assert read(["--standalone", SCRIPT]).master is None
    monkeypatch.setenv("PCCL_MASTER", "tcp://b:2")
    with pytest.raises(SystemExit):
        read([SCRIPT])
    assert "PCCL_MASTER is 'tcp://b:2'" in capsys.readouterr().err


def test_processes_may_be_counted_by_the_machine() -> None:
    assert count_processes("cpu") == len(os.sched_getaffinity(0))
    assert count_processes("4") == 4


def test_streams_of_ranks_that_are_not_named_stay_where_they_are() -> None:
    assert streams("1:2,5:1", 2, flag="--tee") == {0: 0, 1: 2}
    with pytest.raises(ValueError, match="expected"):
        streams("0:1,", 2, flag="--tee")


# ------------------------------------------------------------------------------ variables


def of_worker(base: dict[str, str], **settings: Any) -> dict[str, str]:
    given = {
        "url": "pccl://a:1/r",
        "note": Path("/x/note"),
        "rank": 1,
        "processes": 2,
        "attempt": 3,
    }
    return environment.of_worker(base, **(given | settings))


def test_a_worker_gets_what_torchrun_sets_where_that_means_the_same() -> None:
    base = {"HOME": "/", "RANK": "7", "MASTER_ADDR": "b", "TORCHELASTIC_RUN_ID": "outer"}
    assert of_worker(base) == {
        "HOME": "/",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "TORCHELASTIC_RESTART_COUNT": "3",
        "PCCL_MASTER": "pccl://a:1/r",
        "PCCL_RUN_NOTE": "/x/note",
        "PCCL_RUN_FINISHED": "/x/finished-1-3",
        "OMP_NUM_THREADS": "1",
    }
    assert "OMP_NUM_THREADS" not in of_worker({}, processes=1)
    assert of_worker({"OMP_NUM_THREADS": "4"})["OMP_NUM_THREADS"] == "4"


def test_a_rank_of_a_replica_is_what_a_torchrun_of_one_host_would_start() -> None:
    got = environment.of_rank(of_worker({"PCCL_MASTER": "pccl://c:3"}), name="west", port=77)
    assert Replica.from_torchrun(got) == Replica("west", rank=1, size=2, attempt=3)
    assert (got["MASTER_ADDR"], got["MASTER_PORT"]) == ("127.0.0.1", "77")
    assert "PCCL_MASTER" not in got  # the default group is the replica's
    assert Options.from_environment(got).join_target().run == "r"


# ------------------------------------------------------------------------------ streams


def copied(data: bytes, prefix: str, folder: Path, file: Path | None = None) -> tuple[bytes, str]:
    """What comes out of a pump on its console, and its last lines."""
    source, write = os.pipe()
    console = os.open(folder / "console", os.O_RDWR | os.O_CREAT)
    pump = Pump(source, console=console, prefix=prefix, file=file)
    os.write(write, data)
    os.close(write)
    tail = pump.tail(30.0)
    os.close(console)
    return (folder / "console").read_bytes(), tail


def test_bytes_without_a_prefix_are_copied_as_they_come(tmp_path: Path) -> None:
    data = b"\r 10%\xff\x00 no newline"
    assert copied(data, "", tmp_path)[0] == data


def test_a_prefix_stands_before_each_line_and_the_file_has_none(tmp_path: Path) -> None:
    file = tmp_path / "log"
    console, _ = copied(b"a\n\nb\nrest", "[3]: ", tmp_path, file)
    assert console == b"[3]: a\n[3]: \n[3]: b\n[3]: rest\n"
    assert file.read_bytes() == b"a\n\nb\nrest"


def test_the_last_lines_are_few_and_short(tmp_path: Path) -> None:
    data = b"".join(b"line %d\n" % i for i in range(5000))
    lines = copied(data[:60000], "", tmp_path)[1].splitlines()
    assert len(lines) == TAIL_LINES
    file = tmp_path / "file"
    file.write_bytes(data)
    assert tail_of(file).splitlines()[-1] == "line 4999"
    assert "cannot be read" in tail_of(tmp_path / "missing")
    assert last_lines(b"\xff\n").endswith("\ufffd")


def test_a_console_that_nobody_reads_any_more_stops_no_worker(tmp_path: Path) -> None:
    source, write = os.pipe()
    nobody, console = os.pipe()
    os.close(nobody)
    pump = Pump(source, console=console, file=tmp_path / "log")
    for _ in range(100):
        os.write(write, b"x" * 4096)
    os.close(write)
    pump.tail(30.0)
    assert (tmp_path / "log").stat().st_size == 409600
    os.close(console)


# ------------------------------------------------------------------------------ the process


def test_the_launcher_loads_without_torch_and_stays_small() -> None:
    code = """
import json, resource, sys
import pccl_backend.launch.__main__
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"torch": "torch" in sys.modules, "cpu_s": usage.ru_utime + usage.ru_stime}))
"""
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    seen = json.loads(found.stdout)
    assert not seen["torch"]
    assert seen["cpu_s"] < LOAD_CPU_S_MAX


def test_the_folder_of_a_launcher_is_locked_while_it_runs(tmp_path: Path) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import fcntl, os, sys\n"
        "folder = os.open(os.path.dirname(os.environ['PCCL_RUN_NOTE']), os.O_RDONLY)\n"
        "try: fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except BlockingIOError: sys.exit(0)\n"
        "sys.exit('nobody holds it')\n"
    )
    command = [sys.executable, "-m", "pccl_backend.launch", "--master", "pccl://127.0.0.1:1"]
    done = subprocess.run(
        [*command, "--max-failures", "1", str(worker)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_a_child_ends_with_the_thread_that_started_it_however_that_ends(tmp_path: Path) -> None:
    child = str(ROOT / "pccl_backend" / "launch" / "child.py")
    code = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-I", "-S", {child!r}, str(os.getpid()), "sleep", "600"])
print(child.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    wait_until(lambda: b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0])
    parent.kill()
    parent.wait()
    parent.stdout.close()

    def is_gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    wait_until(is_gone)


def test_a_child_whose_parent_is_gone_or_whose_program_is_missing_says_so() -> None:
    child = str(ROOT / "pccl_backend" / "launch" / "child.py")

    def status(parent: int, *command: str) -> tuple[int, str]:
        words = [sys.executable, "-I", "-S", child, str(parent), *command]
        got = subprocess.run(words, capture_output=True, text=True)
        return got.returncode, got.stderr

    assert status(1 if os.getpid() != 1 else 2, "true")[0] == 137
    missing, text = status(os.getpid(), "no-such-program")
    assert missing == 127
    assert "no-such-program cannot be executed: No such file" in text
    assert status(os.getpid(), "/")[0] == 126


def test_the_end_waits_for_what_workers_have_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_all = output.write_all

    def slowly(descriptor: int, data: bytes) -> OSError | None:
        time.sleep(0.3)
        return write_all(descriptor, data)

    monkeypatch.setattr(output, "write_all", slowly)
    source, target = os.pipe()
    Pump(source, console=-1, file=tmp_path / "log")
    os.write(target, b"the last line\n")
    os.close(target)
    output.wait_for_streams(20.0)
    assert (tmp_path / "log").read_bytes() == b"the last line\n"


def test_a_disk_that_was_full_loses_no_later_line(tmp_path: Path) -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    sink = Sink(descriptor)
    sink.write(b"one\n")
    sink.write(b"two\n")
    file = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(file, descriptor)  # as if there were room
    sink.write(b"three\n")
    sink.write(b"four\n")
    os.close(file)
    os.close(descriptor)
    said = "[pccl-run: up to 8 bytes are lost: the disk was full]\n"
    assert (tmp_path / "log").read_text() == said + "three\nfour\n"


def test_nothing_more_is_written_for_a_reader_that_is_gone(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    sink = Sink(writer)
    sink.write(b"one\n")
    file = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(file, writer)
    sink.write(b"two\n")
    os.close(file)
    os.close(writer)
    assert (tmp_path / "log").read_text() == ""


@pytest.mark.parametrize("missing", ["file", "thread"])
def test_streams_that_cannot_be_opened_leave_no_descriptor_open(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    if missing == "thread":
        monkeypatch.setattr(threading.Thread, "start", no_thread)
    folder = tmp_path / "no" / "such" if missing == "file" else tmp_path
    wanted = Streams(redirects=ERR if missing == "file" else 0, tees=OUT, folder=folder)
    before = set(os.listdir("/proc/self/fd"))

    def begin() -> None:
        with contextlib.ExitStack() as opened:
            wanted.copy(wanted.open(opened)[1])

    with pytest.raises((OSError, RuntimeError)):
        begin()
    assert set(os.listdir("/proc/self/fd")) == before
