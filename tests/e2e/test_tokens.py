"""Runs that a token opens: members with one, strangers without, and places that show no secret."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PATIENCE_S, ROOT, Master, Peer, hear, say, wait_until
from elastic_members import (
    Run,
    Start,
    answers,
    contribution,
    digest,
    end,
    member,
    one,
    tell,
    together,
    train_until,
)
from taps import any_seen, taps
from token_files import command, copy_of, cut, holding, line_of, new_token, refused, secrets_of

FRESH = True  # a member's environment and memory are its own


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """A master's file with the tokens a, b and c, of which c opens the run "other" only."""
    file = tmp_path / "private" / "tokens"
    for name in ("a", "b", "c@other"):
        new_token(file, name)
    return file


def test_members_join_and_train_with_tokens_on_all_interfaces(
    run_peers: Run, start_master: Start, tokens: Path
) -> None:
    master = start_master("--token-file", str(tokens), "--listen", "0.0.0.0:0")
    members = run_peers(member, 1, master.url, env=holding(copy_of(tokens, "a")))
    members += run_peers(member, 1, master.url, first=1, env={"PCCL_TOKEN": line_of(tokens, "b")})
    answers(members, "join")
    together(members, "refresh")
    for _ in range(3):
        lines = together(members, "train")
    one(together(members, "refresh"), "w")
    status = command("--status", master.url, "--token-file", str(copy_of(tokens, "b")))
    assert status.returncode == 0, status.stderr
    assert "(token a)" in status.stdout
    assert "(token b)" in status.stdout
    end(members)
    assert lines


def test_a_stranger_is_refused_at_once_and_told_why(
    run_peers: Run, start_master: Start, tokens: Path, tmp_path: Path
) -> None:
    master = start_master("--token-file", str(tokens))
    other = tmp_path / "other"
    new_token(other, "a")
    forged = tmp_path / "forged"
    forged.touch(0o600)
    name, _, key = line_of(tokens, "a").split(":")
    forged.write_text(f"{name}:{line_of(other, 'a').split(':')[1]}:{key}\n")
    given = {
        "takes processes with a token only": {},
        "is not the master of any token": holding(other),
        'refuses the token "a"': holding(forged),
        'the token "c" opens the run other': holding(copy_of(tokens, "c")),
    }
    for words, env in given.items():
        (peer,) = run_peers(refused, 1, master.url, env=env)
        line = peer.next(raised="RefusedError")
        assert words in line["text"], line
        assert line["after_s"] < 8, line  # a refusal is no wait of 60 s
    asked = command("--status", master.url)
    assert asked.returncode == 1
    assert "with a token only" in asked.stderr


def test_a_member_with_a_token_does_not_join_a_master_without(
    run_peers: Run, start_master: Start, tokens: Path
) -> None:
    master = start_master()
    (peer,) = run_peers(refused, 1, master.url, env=holding(tokens))
    assert "does not go on without protection" in peer.next(raised="RefusedError")["text"]


def test_a_token_that_is_taken_away_evicts_its_holder_for_good(
    run_peers: Run, start_master: Start, tokens: Path
) -> None:
    master = start_master("--token-file", str(tokens), "--min-peers", "3")
    kept = run_peers(member, 2, master.url, env=holding(copy_of(tokens, "a")))
    (gone,) = run_peers(member, 1, master.url, first=2, env=holding(copy_of(tokens, "b")))
    answers([*kept, gone], "join")
    together([*kept, gone], "refresh")
    cut(tokens, "b")
    master.signal(signal.SIGHUP)
    wait_until(lambda: "revoked: b" in "".join(master.errors), what=master.log())
    tell([gone], "train")
    text = gone.next(did="train", error="EvictedError")["text"]
    assert 'the token "b" by which it came has been revoked' in text
    train_until(kept, 2)
    (again,) = run_peers(refused, 1, master.url, first=3, env=holding(tokens.parent / "of-b"))
    assert 'refuses the token "b"' in again.next(raised="RefusedError")["text"]
    end(kept)


@pytest.mark.long
def test_members_hold_while_somebody_else_listens_in_the_place_of_their_master(
    run_peers: Run, start_master: Start, tokens: Path, tmp_path: Path
) -> None:
    """What is said before a handshake has ended proves nothing: it ends newcomers alone."""
    state = ("--state", str(tmp_path / "state"))
    master = start_master("--token-file", str(tokens), *state)
    port = master.port
    members = run_peers(member, 2, master.url, env=holding(copy_of(tokens, "a")))
    answers(members, "join")
    together(members, "refresh")
    together(members, "train")
    other = tmp_path / "other"
    new_token(other, "a")
    for words, arguments in (
        ("is not the master of any token", ("--token-file", str(other))),
        ("does not go on without protection", ()),
    ):
        master.kill()
        master = start_master(*arguments, port=port)
        for peer in members:
            wait_until(lambda peer=peer, words=words: words in peer.log(), what=words)
        (newcomer,) = run_peers(refused, 1, master.url, first=9, env=holding(copy_of(tokens, "a")))
        assert words in newcomer.next(raised="RefusedError")["text"]
        newcomer.tell("end")
    tell(members, "issue", step=9, index=0)
    answers(members, "issue")
    master.kill()
    start_master("--token-file", str(tokens), *state, port=port)
    one(together(members, "wait"), "result")
    together(members, "refresh")
    together(members, "train")
    end(members)


def test_who_passes_on_what_members_and_master_say_reads_neither_state_nor_store(
    run_peers: Run, start_master: Start, tokens: Path
) -> None:
    value = b"v" * 300
    with taps(3) as made:
        start_master("--token-file", str(tokens), "--listen", f"127.0.0.1:{made[2].port}")
        members = []
        for index, tap in enumerate(made[:2]):
            env = tap.env | holding(copy_of(tokens, "a"))
            url = f"pccl://127.0.0.2:{made[2].port}"
            members += run_peers(member, 1, url, first=index, env=env)
        answers(members, "join")
        w = one(together(members, "refresh"), "w")  # one of them has fetched it
        (whose,) = (x for x in (0, 1) if digest(contribution(x, 0, 0)) == w)
        together(members, "put", key_bytes=50, value_bytes=len(value))
        end(members)
        seen = [bytes(one) for tap in made for one in tap.seen]
        plain = contribution(whose, 0, 0).numpy().tobytes()
        assert sum(map(len, seen)) > len(plain)
        assert not any_seen(plain, made)
        assert not any(value[:32] in bytes_ for bytes_ in seen)
        assert not any(b"made by" in bytes_ for bytes_ in seen)
        assert sum(map(len, made[2].seen)) > 2 * len(value)
        for secret in secrets_of(tokens):
            assert not any(secret in bytes_ for bytes_ in seen)


def test_a_file_wins_over_the_variable(run_peers: Run, start_master: Start, tokens: Path) -> None:
    master = start_master("--token-file", str(tokens), "--min-peers", "1")
    env = holding(copy_of(tokens, "a")) | {"PCCL_TOKEN": line_of(tokens, "b")}
    members = run_peers(member, 1, master.url, env=env)
    answers(members, "join")
    status = command("--status", master.url, "--token-file", str(copy_of(tokens, "b")))
    assert "(token a)" in status.stdout
    assert "(token b)" not in status.stdout
    end(members)


def test_wrong_files_are_named_and_no_secret_is_shown(
    run_peers: Run, start_master: Start, tokens: Path
) -> None:
    master = start_master("--token-file", str(tokens))
    file = copy_of(tokens, "a")
    whole = file.read_text()
    wrong = {
        "holds no token": "",
        "half written": whole[:-1],
        "a second token": whole + whole,
        "is not 32 bytes in base64": whole.replace(":", ":A", 1),
    }
    for words, text in wrong.items():
        file.write_text(text)
        (peer,) = run_peers(refused, 1, master.url, env=holding(file))
        line = peer.next(raised="ValueError")
        assert words in line["text"], line
        assert whole.split(":")[1][:12] not in line["text"]
    file.write_text(whole)
    file.chmod(0o644)
    (peer,) = run_peers(refused, 1, master.url, env=holding(file))
    assert "may be read or changed by other users" in peer.next(raised="ValueError")["text"]


def test_the_first_start_beyond_loopback_makes_a_token_and_prints_where(tmp_path: Path) -> None:
    port = tmp_path / "port"
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    arguments = ["--listen", "0.0.0.0:0", "--port-file", str(port)]
    file = tmp_path / "state" / "pccl" / "tokens"
    for words in (f"Made the token 'default' in {file}", f"holders of a token of {file}"):
        with subprocess.Popen(
            [sys.executable, "-m", "pccl_backend._cli", *arguments],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as master:
            wait_until(lambda: port.exists() and port.read_text(), what="the port")
            master.terminate()
            said, _ = master.communicate(timeout=PATIENCE_S)
        assert words in said
        assert "PCCL_TOKEN_FILE" in said
        assert not any(secret.decode() in said for secret in secrets_of(file)[::3])
        port.unlink()
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(file.read_text().splitlines()) == 1


def test_a_token_is_shown_to_a_terminal_only(tokens: Path) -> None:
    asked = command("--token-file", str(tokens), "--show-token", "a")
    assert asked.returncode == 1
    assert asked.stdout == ""
    assert "to a terminal only" in asked.stderr
    shown = bytearray()
    reader, writer = pty.openpty()
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pccl_backend._cli",
            "--token-file",
            str(tokens),
            "--show-token",
            "a",
        ],
        cwd=ROOT,
        stdout=writer,
    ) as shows:
        os.close(writer)
        while b"\n" not in shown:
            shown += os.read(reader, 4096)
        assert shows.wait(PATIENCE_S) == 0
    os.close(reader)
    assert shown.decode().strip() == line_of(tokens, "a")


def leak(index: int, url: str) -> None:
    """Joins, fails in ways that print much, and tells where a secret may have stayed."""
    import faulthandler
    import traceback

    import pccl_backend as pccl

    pccl.join(url, timeout_s=120.0)
    group = pccl.group()
    group.refresh({"step": 0})
    try:
        pccl.join(url, options=pccl.Options(token_file="/nonexistent"))
    except Exception:
        traceback.print_exc()
    print(pccl.Options.from_environment(), group, vars(group), file=sys.stderr)
    print(pccl.counters(), group.in_flight(), file=sys.stderr)
    faulthandler.dump_traceback(file=sys.stderr)
    say(
        did="leak",
        environment=dict(os.environ),
        of_the_kernel=Path("/proc/self/environ").read_bytes().hex(),
        arguments=Path("/proc/self/cmdline").read_bytes().hex(),
        options=repr(pccl.Options.from_environment()),
    )
    hear()


def test_no_output_of_a_run_shows_a_secret(
    run_peers: Run, start_master: Start, tokens: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    master = start_master(
        *("--token-file", str(tokens), "--state", str(state), "--log-level", "debug")
    )
    env = {"PCCL_LOG_LEVEL": "debug"}
    peers = run_peers(leak, 1, master.url, env=env | holding(copy_of(tokens, "a")))
    peers += run_peers(leak, 1, master.url, first=1, env=env | {"PCCL_TOKEN": line_of(tokens, "b")})
    lines = [peer.next(did="leak") for peer in peers]
    assert "PCCL_TOKEN" not in lines[1]["environment"]
    tokens_seen = command(
        *("--status", master.url, "--json"), env={"PCCL_TOKEN": line_of(tokens, "a")}
    )
    assert tokens_seen.returncode == 0, tokens_seen.stderr
    wrong = command("--status", master.url, env={"PCCL_TOKEN": line_of(tokens, "a") + "x"})
    assert wrong.returncode != 0
    (malformed,) = run_peers(
        refused, 1, master.url, first=2, env=env | {"PCCL_TOKEN": line_of(tokens, "b") + ":x"}
    )
    lines.append(malformed.next(raised="ValueError"))
    tell_all_to_end(peers)
    malformed.tell("end")
    malformed.finish()
    master.signal(signal.SIGHUP)
    wait_until(lambda: "was read again" in "".join(master.errors), what=master.log())
    master.signal(signal.SIGTERM)
    master.finish()
    output = {
        "the master's output": "".join(master.errors).encode(),
        "the state file": state.read_bytes(),
        "the status": (tokens_seen.stdout + tokens_seen.stderr).encode(),
        "a wrong status": (wrong.stdout + wrong.stderr).encode(),
        **{f"the output of {p.name}": "".join(p.errors).encode() for p in (*peers, malformed)},
        **{f"what process {at} says": repr(line).encode() for at, line in enumerate(lines)},
        **{
            f"{what} of {p.name}": bytes.fromhex(x[what])
            for p, x in zip(peers, lines[:2], strict=True)
            for what in ("of_the_kernel", "arguments")
        },
    }
    output |= {
        str(path): path.read_bytes()
        for path in tmp_path.iterdir()
        if path.is_file() and path != tokens
    }
    found = [
        (where, number)
        for number, secret in enumerate(secrets_of(tokens))
        for where, text in output.items()
        if secret in text
    ]
    assert not found


def tell_all_to_end(peers: list[Peer]) -> None:
    for peer in peers:
        peer.tell({"do": "end"})
    for peer in peers:
        peer.finish()


def test_a_launcher_hands_the_token_file_to_its_workers(
    start_master: Start, tokens: Path, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, torch.distributed as dist, pccl_backend as pccl\n"
        "dist.init_process_group('pccl')\n"
        "pccl.group().refresh({'step': 0})\n"
        "t = torch.ones(3)\n"
        "dist.all_reduce(t)\n"
        "print('sum', t[0].item(), flush=True)\n"
        "pccl.group().finish()\n"
        "dist.destroy_process_group()\n"
    )
    master: Master = start_master("--token-file", str(tokens), "--min-peers", "2")
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "pccl_backend.launch", "--master", master.url),
            *("--nproc-per-node", "2", str(program)),
        ],
        cwd=ROOT,
        env={**os.environ, **holding(copy_of(tokens, "a")), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("2.0") == 2  # two workers may write at once
