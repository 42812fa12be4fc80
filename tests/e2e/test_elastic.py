"""Elastic runs of real processes: members are stopped, leave and join; a master dies."""

import contextlib
import os
import signal
import socket
from pathlib import Path

import torch
import torch.distributed as dist
from conftest import hear, listening_ports, say, wait_until
from elastic_members import (
    COUNT,
    Run,
    Start,
    answers,
    contribution,
    digest,
    end,
    found,
    mean,
    member,
    one,
    tell,
    together,
    train_until,
)


def test_a_newcomer_holds_the_state_bit_for_bit_and_contributes(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "2")
    members = run_peers(member, 2, master.url)
    answers(members, "join")
    together(members, "refresh")
    together(members, "train")
    (newcomer,) = run_peers(member, 1, master.url, first=2)
    welcome = answers([newcomer], "join")[0]
    assert (welcome["rank"], welcome["size"]) == (2, 3)  # provisional
    together([newcomer], "issue", step=0, index=0)
    tell([newcomer], "wait")
    answers([newcomer], "wait", error="NotAdmittedError")
    tell([newcomer], "refresh")
    lines, steps = train_until(members, size=3)
    admitted = answers([newcomer], "refresh")[0]
    together(members, "hear_of", what="joined")
    assert admitted["admitted"]
    assert admitted["bytes_received"] >= 4 * COUNT
    assert admitted["rank"] == 2
    everybody = [*members, newcomer]
    assert one([*lines, admitted], "w")
    assert one([*lines, admitted], "state") == steps + 1
    assert one([*lines, admitted], "step") > 1
    assert sorted(line["rank"] for line in together(everybody, "look")) == [0, 1, 2]
    assert one(together(everybody, "look"), "ranks") == [0, 1, 2]
    one(together(everybody, "train"), "result")
    last = together(everybody, "refresh", verify=True)
    assert one(last, "voted")
    one(last, "w")
    assert [line["bytes_received"] for line in last] == [0, 0, 0]
    end(everybody)


def test_what_a_newcomer_keeps_for_itself_shows_after_its_first_step(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "2")
    members = run_peers(member, 2, master.url)
    answers(members, "join")
    voted = []
    for _ in range(4):
        voted.append(one(together(members, "refresh"), "voted"))
        together(members, "train")
    assert voted == [True, True, False, False], "and after the first step of the run"
    (newcomer,) = run_peers(member, 1, master.url, first=2)
    answers([newcomer], "join")
    tell([newcomer], "refresh")
    train_until(members, size=3)
    answers([newcomer], "refresh")
    everybody = [*members, newcomer]
    tell([newcomer], "train", drift=0.5)
    together(members, "train")
    answers([newcomer], "train")
    compared = together(everybody, "refresh")
    assert one(compared, "voted")
    one(compared, "w")
    assert [line["bytes_received"] >= 4 * COUNT for line in compared] == [False, False, True]
    together(everybody, "train")
    assert not one(together(everybody, "refresh"), "voted")
    end(everybody)
    assert "this member's differed from that with which the run goes on" in newcomer.log()
    assert "and was replaced (w): its program" in newcomer.log()
    assert "differed" not in members[0].log()


def test_who_leaves_costs_nobody_anything(run_peers: Run, start_master: Start) -> None:
    peers = found(run_peers, start_master, 3)
    together([peers[1]], "leave")
    together(peers, "train")
    lines = together(peers, "refresh")
    assert [line["left"] for line in lines] == [False, True, False]
    assert one(lines, "contributors") == [0, 1, 2]
    end([peers[1]])
    members = [peers[0], peers[2]]
    assert one([lines[0], lines[2]], "size") == 2
    assert one(together(members, "train"), "result") == mean([0, 2], 1, 0)
    for line in together(members, "look"):
        assert line["counters"]["ops_replayed"] == 0
        assert line["counters"]["ops_failed"] == 0
    end(members)


def test_a_master_that_is_killed_and_started_again_goes_on_with_the_run(
    run_peers: Run, start_master: Start, tmp_path: Path
) -> None:
    state = ["--state", str(tmp_path / "register")]
    master = start_master("--min-peers", "2", *state)
    peers = run_peers(member, 2, master.url)
    pids = [line["pid"] for line in answers(peers, "join")]
    together(peers, "refresh")
    together(peers, "train")
    master.kill()
    together(peers, "issue", step=7, index=0)  # no commit without a master: it is held
    again = start_master("--min-peers", "2", *state, port=master.port)
    assert again.port == master.port
    assert one(together(peers, "wait"), "result") == mean([0, 1], 7, 0)
    heard = one(together(peers, "hear_of", what="master_back"), "heard")
    assert heard[-2:] == ["master_lost", "master_back"]
    lines = together(peers, "refresh", verify=True)
    assert one(lines, "size") == 2
    one(lines, "w")
    assert one(together(peers, "train"), "result") == mean([0, 1], 1, 0)
    assert [peer.pid for peer in peers] == pids
    end(peers)


def test_a_stopped_member_is_evicted_and_says_so_when_it_wakes_up(
    run_peers: Run, start_master: Start
) -> None:
    peers = found(run_peers, start_master, 3, "--heartbeat", "0.2", "--evict-after", "1")
    sleeper, survivors = peers[2], peers[:2]
    ranks = [line["rank"] for line in together(survivors, "look")]
    sleeper.signal(signal.SIGSTOP)
    together(survivors, "issue", step=1, index=0)
    assert one(together(survivors, "wait"), "result") == mean([0, 1], 1, 0)
    lines = together(survivors, "refresh")
    assert one(lines, "size") == 2
    assert one(lines, "contributors") == sorted(ranks)
    sleeper.signal(signal.SIGCONT)
    tell([sleeper], "refresh")
    answers([sleeper], "refresh", error="EvictedError")
    together([sleeper], "hear_of", what="evicted")
    assert one(together(survivors, "train"), "result") == mean([0, 1], 0, 0)
    end(survivors)
    end([sleeper])


def test_what_the_store_does_not_take_raises_at_the_caller_and_nothing_is_lost(
    run_peers: Run, start_master: Start
) -> None:
    peers = found(run_peers, start_master, 2)
    for key_bytes, value_bytes in ((5000, 1), (10, 65 << 20)):
        tell(peers, "put", key_bytes=key_bytes, value_bytes=value_bytes)
        answers(peers, "put", error="ValueError")
    assert one(together(peers, "put", key_bytes=4000, value_bytes=1 << 20), "bytes") == 1 << 20
    one(together(peers, "train"), "result")
    end(peers)


def test_who_was_evicted_may_make_a_group_without_a_master(
    run_peers: Run, start_master: Start
) -> None:
    peers = found(run_peers, start_master, 2, "--heartbeat", "0.2", "--evict-after", "1")
    sleeper, survivor = peers
    sleeper.signal(signal.SIGSTOP)
    together([survivor], "train")
    sleeper.signal(signal.SIGCONT)
    tell([sleeper], "refresh")
    answers([sleeper], "refresh", error="EvictedError")
    assert together([sleeper], "alone")[0]["sum"] == 1.0
    end(peers)


def test_who_was_evicted_may_come_back_as_a_newcomer(run_peers: Run, start_master: Start) -> None:
    master = start_master("--min-peers", "2", "--heartbeat", "0.2", "--evict-after", "1")
    peers = run_peers(member, 2, master.url)
    answers(peers, "join")
    together(peers, "refresh")
    sleeper, survivor = peers
    sleeper.signal(signal.SIGSTOP)
    together([survivor], "train")
    assert together([survivor], "refresh")[0]["size"] == 1
    sleeper.signal(signal.SIGCONT)
    tell([sleeper], "refresh")
    answers([sleeper], "refresh", error="EvictedError")
    assert together([sleeper], "rejoin", url=master.url)[0]["size"] == 2
    tell([sleeper], "refresh")
    lines, _ = train_until([survivor], size=2)
    lines += answers([sleeper], "refresh")
    assert lines[1]["admitted"]
    one(lines, "w")
    one(together(peers, "train"), "result")
    end(peers)


def test_with_too_few_members_a_run_holds_whatever_knocks_until_another_one_joins(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "2", "--hold-below", "2")
    peers = run_peers(member, 2, master.url)
    answers(peers, "join")
    together(peers, "refresh")
    survivor = peers[0]
    peers[1].kill()
    together([survivor], "train")  # what is in flight finishes first
    tell([survivor], "refresh")
    words = "the run holds at its boundary: 1 of the 2 replicas that it needs"
    wait_until(lambda: words in "".join(master.errors), what="the master holds")
    said = f"waits; the master says: {words}"
    wait_until(lambda: said in "".join(survivor.errors), what=survivor.log())
    (newcomer,) = run_peers(member, 1, master.url, first=2)
    answers([newcomer], "join")
    idle = []
    for peer in (survivor, newcomer):
        ports = listening_ports(peer.pid)
        assert ports
        for port in ports:
            for garbage in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), bytes(100), b"\xff" * 8):
                client = socket.create_connection(("127.0.0.1", port))
                idle.append(client)  # half a handshake, and then nothing
                with contextlib.suppress(ConnectionError):
                    client.sendall(garbage)
    tell([newcomer], "refresh")
    lines = answers([survivor, newcomer], "refresh")
    assert one(lines, "size") == 2
    one(lines, "w")
    assert one(together([survivor, newcomer], "train"), "result") == mean(
        [0, 2], lines[0]["state"], 0
    )
    for peer in (survivor, newcomer):
        assert "refused a connection from 127.0.0.1" in "".join(peer.errors)
    for client in idle:
        client.close()
    end([survivor, newcomer])


def test_groups_made_from_the_elastic_one_are_made_anew_after_a_change(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "3")
    peers = run_peers(member, 3, master.url)
    ranks = {line["rank"]: peer for peer, line in zip(peers, answers(peers, "join"), strict=True)}
    together(peers, "refresh")
    inside = [ranks[0], ranks[2]]
    numbers = [peers.index(peer) for peer in inside]
    lines = together(peers, "subgroup", ranks=[0, 2], step=3)
    results = [line for line, peer in zip(lines, peers, strict=True) if peer in inside]
    assert one(results, "result") == mean(sorted(numbers), 3, 0)
    ranks[0].kill()
    survivors = [peer for peer in peers if peer is not ranks[0]]
    together(survivors, "train")
    together(survivors, "refresh")
    (newcomer,) = run_peers(member, 1, master.url, first=3)
    answers([newcomer], "join")
    tell([newcomer], "refresh")
    train_until(survivors, size=3)
    answers([newcomer], "refresh")
    everybody = [*survivors, newcomer]
    lines = together(everybody, "subgroup", ranks=[0, 1, 2], step=4)
    one(lines, "result")
    assert [line["members"] for line in lines] == [[0, 1, 2]] * 3
    assert sorted(line["inside"] for line in lines) == [0, 1, 2]
    end(everybody)


def test_a_newcomer_with_another_on_loss_is_refused_by_name(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "2")
    peers = run_peers(member, 2, master.url)
    answers(peers, "join")
    together(peers, "refresh")
    (other,) = run_peers(member, 1, master.url, first=2, env={"PCCL_ON_LOSS": "raise"})
    other.finish(status=1)
    assert (
        'RefusedError: this peer has on_loss="raise", the others of this run on_loss="retry"'
        in (other.log())
    )
    one(together(peers, "train"), "result")
    end(peers)


# ------------------------------------------------------------------------------ no changed line


def plain_program(index: int) -> None:
    """Knows nothing of pccl but the name; no boundary."""
    dist.init_process_group("pccl", rank=index, world_size=3)
    say(did="join", rank=dist.get_rank(), size=dist.get_world_size())
    while True:
        word = hear()
        if word["do"] == "end":
            break
        try:
            tensor = contribution(index, word["step"], 0)
            if word["do"] == "reduce":
                dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
            elif word["do"] == "gather":
                parts = [torch.empty(COUNT) for _ in range(dist.get_world_size())]
                dist.all_gather(parts, tensor)
            elif word["do"] == "resume":
                import pccl_backend as pccl

                pccl.group().resume()
        except RuntimeError as error:
            say(did=word["do"], error=type(error).__name__, text=str(error))
            continue
        ranks = dist.get_process_group_ranks(dist.group.WORLD)
        size = dist.get_world_size()
        say(did=word["do"], error="", result=digest(tensor), size=size, ranks=ranks)
    dist.destroy_process_group()


def test_pccl_master_alone_makes_an_unchanged_program_elastic(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "3")
    peers = run_peers(plain_program, 3, env={"PCCL_MASTER": master.url})
    ranks = [line["rank"] for line in answers(peers, "join")]
    assert sorted(ranks) == [0, 1, 2]
    one(together(peers, "reduce", step=1), "result")
    peers[1].kill()
    survivors = [peers[0], peers[2]]
    lines = together(survivors, "reduce", step=2)
    assert one(lines, "result") == mean([0, 2], 2, 0)
    assert one(lines, "size") == 2  # where there is no boundary: at the return
    assert one(lines, "ranks") == [0, 1]
    assert len(one(together(survivors, "gather", step=3), "ranks")) == 2
    end(survivors)


def test_resume_is_the_place_to_go_on_for_a_program_without_boundaries(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "3")
    peers = run_peers(plain_program, 3, env={"PCCL_MASTER": master.url})
    answers(peers, "join")
    one(together(peers, "gather", step=1), "size")
    peers[0].kill()
    survivors = peers[1:]
    tell(survivors, "gather", step=2)
    answers(survivors, "gather", error="PeerLostError")
    assert one(together(survivors, "resume", step=0), "size") == 2
    assert one(together(survivors, "reduce", step=4), "result") == mean([1, 2], 4, 0)
    end(survivors)


# ------------------------------------------------------------------------------ clear errors


def refused(index: int, url: str) -> None:
    import pccl_backend as pccl

    try:
        pccl.join(url, timeout_s=20.0, options=pccl.Options(connect_timeout_s=1.0))
    except (RuntimeError, ValueError) as error:
        say(did="join", error=type(error).__name__, text=str(error))


def test_the_wrong_run_and_a_dead_address_are_clear_errors(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "1", "--run", "right")
    (wrong,) = run_peers(refused, 1, f"{master.url}/wrong")
    line = wrong.next(did="join")
    assert line["error"] == "RefusedError", line
    assert "wrong" in line["text"]
    wrong.finish()
    port = master.port
    master.kill()
    (nobody,) = run_peers(refused, 1, f"pccl://127.0.0.1:{port}")
    line = nobody.next(did="join")
    assert line["error"] == "UnreachableError", line
    assert str(port) in line["text"]
    nobody.finish()
