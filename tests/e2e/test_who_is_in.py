"""Who is in the run: `pccl-master --status`, and the names in log lines and errors."""

import os
import signal
from typing import Any

import pytest
from conftest import wait_until
from elastic_members import Run, Start, answers, ask, end, member, status, tell, together


@pytest.mark.long
def test_a_stopped_member_and_a_newcomer_are_seen(run_peers: Run, start_master: Start) -> None:
    master = start_master("--min-peers", "3")
    [named] = run_peers(member, 1, master.url, env={"PCCL_NAME": "the first"})
    peers = [named, *run_peers(member, 2, master.url)]
    pids = [line["pid"] for line in answers(peers, "join")]
    together(peers, "refresh")
    together(peers, "train")
    together(peers, "refresh")  # votes, as the step was the first of the run
    seen = status(master)
    assert (seen["state"], seen["member_count"], seen["door"]) == ("running", 3, [])
    assert {m["process"] for m in seen["members"]} == set(pids)
    assert all(m["host"] == os.uname().nodename for m in seen["members"])
    assert {m["rank"] for m in seen["members"]} == {0, 1, 2}
    names = {m["process"]: m["name"] for m in seen["members"]}
    assert names[pids[0]] == "the first"
    assert names[pids[2]] == f"{os.uname().nodename}/{pids[2]}"

    # Two wait in an operation for one that is stopped.
    peers[2].signal(signal.SIGSTOP)
    tell(peers[:2], "issue", step=1, index=0)
    answers(peers[:2], "issue")

    def stopped() -> dict[str, Any]:
        found = next(m for m in status(master)["members"] if m["process"] == pids[2])
        return found if found["late_s"] >= 3 and found["silent_s"] >= 3 else {}

    late = wait_until(stopped, what="the stopped member to be late")
    others = [m for m in status(master)["members"] if m["process"] != pids[2]]
    assert [m["late_s"] for m in others] == [0, 0]
    assert late["silent_s"] < 10
    assert "silent for" in ask(master)
    peers[2].signal(signal.SIGCONT)
    together(peers[2:], "issue", step=1, index=0)
    together(peers, "wait")

    # One more waits at the door.
    [newcomer] = run_peers(member, 1, master.url, env={"PCCL_NAME": "late comer"})
    answers([newcomer], "join")
    tell([newcomer], "refresh")
    seen = wait_until(
        lambda: [s for s in [status(master)] if s["door"] and s["door"][0]["doing"] == "door"],
        what="a newcomer at the door",
    )[0]
    assert [m["name"] for m in seen["door"]] == ["late comer"]
    assert "late comer" in ask(master)
    together(peers, "refresh")  # it came too late for this one
    together(peers, "issue", step=2, index=0)
    together(peers, "wait")
    tell(peers, "refresh")
    answers([*peers, newcomer], "refresh")
    seen = status(master)
    assert seen["member_count"] == 4
    assert any("(late comer) joined" in event["text"] for event in seen["events"])

    # The others know who is lost by its name, and say it once.
    newcomer.kill()
    together(peers, "issue", step=3, index=0)
    together(peers, "wait")
    wait_until(lambda: "(late comer) lost: " in "".join(peers[1].errors), what="the line")
    lines = [line for line in peers[1].errors if "late comer" in line and "lost" in line]
    assert len(lines) == 1
    end(peers)
