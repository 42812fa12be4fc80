"""Machines that are suspended for longer than every deadline, and wake up again."""

import signal
import time

import pytest
from conftest import Master, Peer, wait_until
from elastic_members import Run, Start, answers, end, member, one, tell, together

SHORT = ("--heartbeat", "0.2", "--evict-after", "1", "--refound-after", "1")


def suspend(seconds: float, *processes: Peer | Master) -> None:
    for process in processes:
        process.signal(signal.SIGSTOP)
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > seconds, what="time")
    for process in processes:
        process.signal(signal.SIGCONT)


@pytest.mark.long
def test_a_run_goes_on_with_all_its_members_when_the_machine_of_its_master_wakes_up(
    run_peers: Run, start_master: Start
) -> None:
    master = start_master("--min-peers", "3", *SHORT)
    peers = run_peers(
        member, 3, master.url, env={"PCCL_STALL_TIMEOUT_S": "1.5", "PCCL_LOG_LEVEL": "info"}
    )
    answers(peers, "join")
    together(peers, "refresh")

    # One machine: the master and a member; the others are in the middle of an operation.
    tell(peers[1:], "issue", step=7, index=0)
    answers(peers[1:], "issue")
    suspend(7.5, master, peers[0])  # also longer than a master's patience, and than a re-dial
    together(peers[:1], "issue", step=7, index=0)
    one(together(peers, "wait"), "result")
    lines = together(peers, "refresh")
    assert one(lines, "size") == 3
    assert "this master was stopped for" in "".join(master.errors)
    assert "the master was silent for" in "".join(peers[1].errors)

    # All of them: nobody has seen anything, and nobody is at fault.
    tell(peers[1:], "issue", step=8, index=0)
    answers(peers[1:], "issue")
    suspend(3.0, master, *peers)
    together(peers[:1], "issue", step=8, index=0)
    one(together(peers, "wait"), "result")
    lines = together(peers, "refresh")
    assert one(lines, "size") == 3
    one(lines, "w")
    end(peers)
