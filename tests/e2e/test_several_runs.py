"""One master that serves two runs: they know nothing of each other, and both outlive the master."""

import signal
from pathlib import Path

from conftest import wait_until
from elastic_members import Run, Start, answers, end, member, one, tell, together


def test_two_runs_of_one_master_go_on_by_themselves_also_under_the_next_master(
    run_peers: Run, start_master: Start, tmp_path: Path
) -> None:
    arguments = ("--run", "a", "--run", "b:min-peers=1,evict-after=2.5", "--min-peers", "2")
    arguments += ("--state", str(tmp_path / "state"))
    master = start_master(*arguments)
    in_a = run_peers(member, 2, f"{master.url}/a")
    in_b = run_peers(member, 1, f"{master.url}/b")
    assert one(answers(in_a, "join"), "size") == 2
    assert one(answers(in_b, "join"), "size") == 1
    for peers in (in_a, in_b):
        together(peers, "refresh")
        one(together(peers, "train"), "result")
    assert sorted(p.name for p in tmp_path.glob("state-?")) == ["state-a", "state-b"]

    # The loss of a member is seen in its own run only.
    tell(in_a[:1], "issue", step=9, index=0)
    answers(in_a[:1], "issue")
    in_a[1].kill()
    tell(in_a[:1], "wait")
    answers(in_a[:1], "wait")
    together(in_a[:1], "refresh")
    together(in_a[:1], "train")
    assert one(together(in_a[:1], "refresh"), "size") == 1  # numbered at the latest here
    assert one(together(in_b, "look"), "epoch") == "1.2"

    port = master.port
    master.kill()
    again = start_master(*arguments, port=port)
    for peers in (in_a[:1], in_b):
        one(together(peers, "train"), "result")
        one(together(peers, "refresh"), "w")
    wait_until(lambda: 'run "b": ' in "".join(again.errors), what="lines with the name of the run")
    end([*in_a[:1], *in_b])
    again.signal(signal.SIGTERM)
    again.finish()


def test_the_register_of_each_run_has_a_thread_of_its_own(start_master: Start) -> None:
    runs = [word for name in "abcdef" for word in ("--run", name)]
    master = start_master(*runs, "--state", "none")
    threads = Path(f"/proc/{master.process.pid}/task")
    wait_until(lambda: len(list(threads.iterdir())) > 6, what="a thread for the register of each")
