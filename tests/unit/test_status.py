"""The text and the JSON of `pccl-master --status`."""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from half_newcomers import crc32c
from strangers import CHANNEL, opening

from pccl_backend import _cli, _core, _status


def answer(**fields: Any) -> dict[str, Any]:
    member = {
        "peer": "00000000000000aa",
        "name": "node7/4711",
        "host": "node7",
        "process": 4711,
        "address": "10.0.0.7:51000",
        "replica": "r",
        "rank": 0,
        "group": 0,
        "doing": "running",
        "detail": "in step 42, called 42.1",
        "step": 42,
        "silent_ms": 300,
        "late_s": 0,
        "token": "",
        "site": 0,
        "farthest_us": 0,
        "slowest_to": "0000000000000000",
        "slowest_rate": 0,
        "slowest_us": 0,
    }
    late = {**member, "name": "x" * 64, "rank": 1, "silent_ms": 7200, "late_s": 7}
    gone = {**member, "host": "", "process": 0, "address": "", "rank": 2, "doing": "away"}
    door = {**member, "doing": "door", "detail": "waits for the members' next boundary"}
    whole = {
        "run": "default",
        "package": "0.1.0",
        "up_ms": 61_000,
        "state": "running",
        "waits_for": "",
        "epoch": "1.7",
        "step": 42,
        "replicas": 3,
        "min_peers": 2,
        "hold_below": 1,
        "member_count": 3,
        "door_count": 1,
        "members": [member, late, gone],
        "door": [door],
        "events": [{"ago_ms": 1500, "warning": True, "text": "something " * 20}],
    }
    return {**whole, **fields}


def test_the_text_has_80_columns() -> None:
    text = _status.to_text(answer(waits_for="for many " * 20))
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith('run "default": running, epoch 1.7, step 42, 3 members in 3 replicas')
    assert "0     node7/4711            node7/4711                -  in step 42" in text
    assert "7 s" in text
    assert "silent for 7.2 s; in step 42, called 42.1" in text
    assert "at the door: 1 peer" in text
    assert text.endswith("master: pccl 0.1.0, up for 1 min 1 s")


def test_the_json_says_what_is_not_known_as_null() -> None:
    status = _status.to_json(answer(epoch="0.0"))
    assert status["epoch"] is None
    late, gone = status["members"][1:]
    assert (late["late_s"], late["silent_s"], late["rank"]) == (7, 7.2, 1)
    assert (gone["host"], gone["process"], gone["address"]) == (None, None, None)
    assert status["door"][0]["rank"] is None
    assert status["events"][0]["ago_s"] == 1.5
    assert status["events"][0]["level"] == "warning"


def test_members_at_sites_are_named_by_their_ranks() -> None:
    sites = [1, 1, 1, 2, 1, 2, 0]
    [member, *_] = answer()["members"]
    members = [{**member, "rank": rank, "site": site} for rank, site in enumerate(sites)]
    status = answer(members=members, member_count=len(members))
    assert _status.to_text(status).splitlines()[1] == "  2 sites: ranks 0-2, 4 | 3, 5"
    told = [one["site"] for one in _status.to_json(status)["members"]]
    assert told == [0, 0, 0, 1, 0, 1, None]

    of_two = [{**one, "group": group} for group in (0, 1) for one in members[2:4]]
    text = _status.to_text(answer(members=of_two, member_count=4)).splitlines()
    assert text[1:3] == [f"  peer group {group} at 2 sites: ranks 2 | 3" for group in (0, 1)]


def test_sites_are_not_named_where_not_all_members_are_listed() -> None:
    [member, *_] = answer()["members"]
    members = [{**member, "rank": rank, "site": 1 + rank} for rank in range(2)]
    assert "sites" not in _status.to_text(answer(members=members, member_count=3))


def test_the_slowest_link_and_the_longest_round_trip_are_named_by_their_ranks() -> None:
    [member, *_] = answer()["members"]
    assert "slowest" not in _status.to_text(answer())
    slow = {"slowest_to": "00000000000000ab", "slowest_rate": 1_250_000, "slowest_us": 80_000}
    fast = {"slowest_to": "00000000000000aa", "slowest_rate": 99_000_000, "slowest_us": 0}
    members = [
        {**member, **slow},
        {**member, **fast, "peer": "00000000000000ab", "rank": 1, "farthest_us": 81_500},
    ]
    status = answer(members=members, member_count=2)
    assert _status.to_text(status).splitlines()[1:3] == [
        "  slowest link: 1.2 MB/s from rank 0 to rank 1, round trip 80.0 ms",
        "  longest round trip: 81.5 ms, at rank 1",
    ]
    first, second = _status.to_json(status)["members"]
    assert first["longest_round_trip_s"] is None
    assert first["slowest_link"] == {
        "to": "00000000000000ab",
        "rate": 1_250_000,
        "round_trip_s": 0.08,
    }
    assert second["slowest_link"]["round_trip_s"] is None
    assert second["longest_round_trip_s"] == 0.0815
    assert _status.to_json(answer())["members"][0]["slowest_link"] is None


def test_without_a_name_all_runs_of_a_master_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def ask(master: str, run: str, *_: Any) -> dict[str, Any]:
        asked.append((master, run))
        if run == "gone":
            raise OSError("no such run")
        return answer(run=run) if run else answer(state="several", runs=["a", "b"])

    monkeypatch.setattr(_core, "ask_status", ask)
    assert _status.main("pccl://10.0.0.1:7,10.0.0.2:7", as_json=False) == 0
    said = capsys.readouterr().out
    assert said.index('run "a": running') < said.index('run "b": running')
    assert asked == [("10.0.0.1:7", run) for run in ("", "a", "b")]
    assert _status.main("pccl://10.0.0.1:7", as_json=True) == 0
    assert [one["run"] for one in json.loads(capsys.readouterr().out)["runs"]] == ["a", "b"]
    assert _status.main("pccl://10.0.0.1:7/a", as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["run"] == "a"
    monkeypatch.setattr(
        _core,
        "ask_status",
        lambda *given: answer(state="several", runs=["a", "gone"]) if not given[1] else ask(*given),
    )
    assert _status.main("pccl://10.0.0.1:7", as_json=False) == 1
    said = capsys.readouterr()
    assert 'run "a"' in said.out
    assert "no such run" in said.err


def test_json_without_status_and_a_url_that_is_none_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for argv in (["--json"], ["--status", "http://x"]):
        with pytest.raises(SystemExit):
            _cli.main(argv)
    assert "only with --status" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "variables", "words"),
    [
        (["http://x"], {}, "argument --status: URL is 'http://x'; expected pccl://HOST:PORT"),
        (["pccl://a\udcff:1"], {}, "argument --status: URL is "),
        (["pccl://a\x1b:1"], {}, "argument --status: URL is "),
        ([], {"PCCL_MASTER": "x"}, "argument --status: PCCL_MASTER is 'x'"),
        ([], {"PCCL_TOKEN_FILE": "/no/such"}, "the token file /no/such cannot be opened"),
        ([], {"PCCL_TOKEN_FILE": "/"}, "the token file / is no regular file"),
        ([], {"PCCL_TOKEN_FILE": "a\udcff"}, "the token file is 'a\\udcff'"),
        ([], {"PCCL_TOKEN": "a:secret"}, "the variable PCCL_TOKEN: 2 fields"),
        ([], {"PCCL_TOKEN": "a:secret\udcff"}, "PCCL_TOKEN is not name:secret:master"),
    ],
)
def test_a_status_that_cannot_be_asked_for_is_one_line_and_2(
    argv: list[str],
    variables: dict[str, str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as ended:
        _cli.main(["--status", *argv])
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert said.err.startswith("pccl-master: argument --status: ")
    assert said.err.count("\n") == 1
    assert words in said.err
    assert "secret\udcff" not in said.err


@pytest.mark.parametrize("mode", [0o644, 0o000])
def test_a_token_file_that_is_not_private_is_one_line(
    mode: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tokens"
    file.write_text("half a line")
    file.chmod(mode)
    with pytest.raises(SystemExit):
        _cli.main(["--status", "pccl://127.0.0.1:1", "--token-file", str(file)])
    said = capsys.readouterr().err
    assert said.startswith(f"pccl-master: argument --status: the token file {file}")
    assert said.count("\n") == 1


def test_a_reader_that_has_closed_its_pipe_is_no_error(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    asked = ["--token-file", str(tmp_path / "tokens"), "--new-token", "a"]
    with open(writes, "wb") as pipe:
        ended = subprocess.run(
            [sys.executable, "-m", "pccl_backend._cli", *asked],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "tokens").read_text().startswith("a:")


def test_without_a_master_the_status_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert _cli.main(["--status", "pccl://127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err


def text(words: bytes, major: int = 0x60) -> bytes:
    """In CBOR; of a text that is not UTF-8 the major type is 0x40."""
    return bytes([major | len(words)]) + words


def test_the_words_of_who_answers_reach_no_terminal_as_they_are() -> None:
    words = text(b"gone\x1b[2J\nwell \xff", 0x40)
    error = b"\xa2" + text(b"code") + b"\x06" + text(b"text") + words
    payload = b"\xa2" + text(b"m") + text(b"refuse") + text(b"error") + error
    head = struct.pack("<BBHII", 1, 0, 0, len(payload), 0)
    greeting = opening(CHANNEL) + bytes(40)

    def answers(server: socket.socket) -> None:
        with server.accept()[0] as asked:
            asked.sendall(greeting + struct.pack("<I", crc32c(head)) + head + payload)
            while asked.recv(1 << 16):
                pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answers, args=(server,))
        thread.start()
        with pytest.raises(OSError, match=r"^gone\?\[2J\?well \?$"):
            _core.ask_status(f"127.0.0.1:{server.getsockname()[1]}", "", 5.0, "", "")
        thread.join()
