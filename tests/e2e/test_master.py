"""`pccl-master` as a process: how it starts, what it says, what it survives and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import PATIENCE_S, ROOT, Master, wait_until

StartMaster = Callable[..., Master]


def wait_for_words(master: Master, words: str) -> str:
    """What the master has written, once `words` are in it."""

    def found() -> str:
        text = "".join(master.errors)
        return text if words in text else ""

    return str(wait_until(found, what=f"the master says {words!r}\n{master.log()}"))


def fails(*arguments: str) -> str:
    """The one line on stderr of a master that cannot start."""
    run = subprocess.run(
        [sys.executable, "-m", "pccl_backend._cli", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 1, run.stderr
    assert len(run.stderr.splitlines()) == 1, run.stderr
    return run.stderr


def wait_until_closed(client: socket.socket) -> None:
    """Reads until the other side has closed or reset the connection."""
    with contextlib.suppress(ConnectionResetError):
        while client.recv(4096):
            pass


def test_a_status_without_a_name_shows_all_runs(start_master: StartMaster) -> None:
    master = start_master("--run", "vision", "--run", "speech:min-peers=4")
    ask = [sys.executable, "-m", "pccl_backend._cli", "--status", master.url]

    def said(*arguments: str) -> str:
        asked = [*ask, *arguments]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout

    text = said()
    assert 'run "speech": founding' in text
    assert 'run "vision": founding' in text
    runs = json.loads(said("--json"))["runs"]
    assert [(run["run"], run["min_peers"]) for run in runs] == [("speech", 4), ("vision", 2)]


def test_it_prints_how_to_join(start_master: StartMaster) -> None:
    master = start_master("--run", "my-run", "--min-peers", "3")
    url = f"{master.url}/my-run"
    said = wait_for_words(master, "State file: none")
    assert f'torch.distributed.init_process_group("pccl", init_method="{url}")' in said
    assert f"PCCL_MASTER={url}\n" in said
    assert "3 replicas" in said


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_ends_it_with_status_0(start_master: StartMaster, name: str) -> None:
    master = start_master()
    master.signal(signal.Signals[name])
    master.finish()
    assert "Traceback" not in "".join(master.errors)


def test_garbage_on_its_port_costs_the_sender_its_connection_and_nothing_else(
    start_master: StartMaster,
) -> None:
    master = start_master()
    for payload in (
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(200),
        os.urandom(100_000),
        b"\x00" * 17,
    ):
        with socket.create_connection(("127.0.0.1", master.port), PATIENCE_S) as client:
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                client.sendall(payload)
            wait_until_closed(client)
    wait_for_words(master, "refused a connection from 127.0.0.1")
    with socket.create_connection(("127.0.0.1", master.port), PATIENCE_S) as quiet:
        quiet.sendall(b"\x89pc")  # then nothing: it must not keep the master from ending
        master.signal(signal.SIGTERM)
        master.finish()


def test_while_it_waits_it_says_for_whom(start_master: StartMaster) -> None:
    master = start_master("--min-peers", "3")
    wait_for_words(master, "waiting for 3 replicas")


def test_it_is_small(start_master: StartMaster) -> None:
    master = start_master()
    status = Path(f"/proc/{master.pid}/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak is not None
    assert int(peak[1]) << 10 < 50 << 20


def test_a_killed_master_starts_again_with_its_state_file_and_a_second_one_does_not(
    start_master: StartMaster, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    master = start_master("--state", str(state))
    wait_for_words(master, f"State file: {state}")
    refusal = fails("--listen", "127.0.0.1:0", "--state", str(state))
    assert str(state) in refusal
    assert "another master" in refusal
    master.kill()
    again = start_master("--state", str(state), port=master.port)
    again.signal(signal.SIGTERM)
    again.finish()
    assert state.stat().st_mode & 0o077 == 0


def test_a_state_file_in_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "typo" / "state"
    refusal = fails("--listen", "127.0.0.1:0", "--state", str(state))
    assert f"there is no folder {state.parent} for the state file {state}" in refusal
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_state_file_is_refused_by_name_and_left_as_it_is(tmp_path: Path) -> None:
    state = tmp_path / "state"
    content = b"pccl register 1 crc32 00000000\nnot it"
    state.write_bytes(content)
    refusal = fails("--listen", "127.0.0.1:0", "--state", str(state))
    assert str(state) in refusal
    assert "damaged" in refusal
    assert state.read_bytes() == content


def test_insecure_lets_everybody_in_on_all_interfaces(start_master: StartMaster) -> None:
    master = start_master("--insecure", "--listen", "0.0.0.0:0")
    assert "PCCL_TOKEN_FILE" not in wait_for_words(master, "State file: none")
    with socket.create_connection(("127.0.0.1", master.port), PATIENCE_S):
        pass


def test_a_port_that_is_taken_is_one_line_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert f"--listen: cannot listen on {address}: " in fails(
            "--listen", address, "--state", "none"
        )


def test_no_token_is_made_for_an_address_on_which_the_master_cannot_listen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    foreign = "203.0.113.1:48148"  # an address of documents
    said = fails("--listen", foreign, "--state", "none")
    assert f"--listen: cannot listen on {foreign}: this machine has no such address" in said
    with socket.create_server(("0.0.0.0", 0)) as other:
        taken = f"0.0.0.0:{other.getsockname()[1]}"
        assert f"cannot listen on {taken}: " in fails("--listen", taken, "--state", "none")
    assert list(tmp_path.iterdir()) == []


def test_a_port_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    port_file = tmp_path / "no" / "port"
    assert str(port_file) in fails("--listen", "127.0.0.1:0", "--port-file", str(port_file))
