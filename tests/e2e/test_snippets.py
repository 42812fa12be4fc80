"""The fragments of Python and the commands of how-to pages run, with what they take for granted put
before them; test_docs.py runs what is a whole program or a tutorial."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from test_docs import PORT, Desk, block, desk

__all__ = ["desk"]  # a fixture
pytestmark = pytest.mark.long

IMPORTS = """
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import pccl_backend as pccl
"""
LOOP = """
weight, momentum, steps = torch.zeros(2), torch.zeros(2), 3

def work(state):
    return torch.ones(2)

def apply(gradient, state):
    state["weight"] -= gradient
"""
BY_HAND = """
dist.init_process_group("pccl")
group = pccl.group()
model, steps, loss = nn.Linear(2, 1), 100, 0.5
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)

def train(state):
    optimizer.zero_grad()
    model(torch.ones(2)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    optimizer.step()
    scheduler.step()
    state["step"] += 1
"""
ELASTIC = """
pg = pccl.join()
model = DDP(nn.Linear(2, 1), process_group=pg, **pccl.ddp_kwargs)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.rand(64, 2))
sampler = pccl.ElasticSampler(data, batch=4, global_batch=8)
loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
"""
PASSES = """
for (x,) in sampler.batches(loader, passes=2):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
HOOK = """
dist.init_process_group("pccl")
ddp_model = DDP(nn.Linear(2, 1))
"""
AVERAGED = """
ddp_model(torch.full((2,), 1.0 + dist.get_rank())).sum().backward()
print("gradient", ddp_model.module.weight.grad.tolist())
"""
# In one write: lines of two ranks that print their ends apart may be mixed.
END = "\nprint('ended\\n', end='')\ndist.destroy_process_group()\n"


def program(desk: Desk, name: str, *parts: str) -> str:
    """Writes a program of these parts, with the ports and folders of the test; returns its name."""
    text = "\n".join([IMPORTS, *parts, END]).replace(PORT, desk.port)
    (desk.folder / name).write_text(text.replace("/shared", str(desk.folder)))
    return name


def test_a_loop_by_hand(desk: Desk) -> None:
    own_loop = "docs/how-to/own-loop.md"
    desk.type(f"pccl-master --listen 127.0.0.1:{PORT} --min-peers 1").sees("Join it with")
    loop = program(desk, "loop.py", LOOP, block(own_loop, "loop"), "print(weight.tolist())")
    run = desk.type(f"python {loop}")
    run.ends()
    assert "[-3.0, -3.0]" in run.text()


def test_checkpoints_by_hand(desk: Desk) -> None:
    own_loop = "docs/how-to/own-loop.md"
    parts = [
        block(own_loop, "state"),
        block(own_loop, "writer"),
        block("docs/how-to/hang.md", "ask"),
    ]
    by_hand = block("docs/how-to/checkpoints.md", "by-hand")
    run = desk.type(
        "pccl-run --standalone --nproc-per-node=2 "
        + program(desk, "by_hand.py", BY_HAND, *parts, by_hand)
    )
    run.ends()
    assert run.text().count("ended\n") == 2
    assert run.text().count("0 0.5 2\n") == 1, "one member logs"
    assert (desk.folder / "checkpoints" / "step-100").is_dir()


def test_checkpoints_of_an_elastic_loop_and_the_final_model(desk: Desk) -> None:
    page = "docs/how-to/checkpoints.md"
    parts = [ELASTIC, block(page, "elastic"), PASSES, block(page, "final"), "checkpoints.close()"]
    run = desk.type(
        f"pccl-run --standalone --nproc-per-node=2 {program(desk, 'elastic.py', *parts)}"
    )
    run.ends()
    assert (desk.folder / "final.pt").is_file()
    assert (desk.folder / "checkpoints" / "step-16").is_dir()


def test_a_hook_that_averages(desk: Desk) -> None:
    name = program(desk, "hook.py", HOOK, block("docs/explanation/losses.md", "hook"), AVERAGED)
    run = desk.type(f"torchrun --standalone --nproc-per-node=2 {name}")
    run.ends()
    assert run.text().count("[[1.5, 1.5]]") == 2  # lines of two ranks may be mixed


def test_elastic_ddp(desk: Desk) -> None:
    page = "docs/how-to/elastic-ddp.md"
    desk.type(block(page, "master")).sees("Join it with")
    workers = desk.type(block(page, "workers"))
    workers.sees(r"step +\d+  loss")
    status = desk.type(
        block("docs/how-to/hang.md", "status").replace("HOST:PORT", f"127.0.0.1:{PORT}")
    )
    status.ends()
    assert re.search(r"running, epoch .*, 2 members in 2 replicas", status.text())
    workers.ends()
    assert len(set(re.findall(r"^ended after .*$", workers.text(), re.M))) == 1


def test_diloco(desk: Desk) -> None:
    page = "docs/how-to/diloco.md"
    desk.type(block(page, "master")).sees("Join it with")
    short = block(page, "member").rstrip() + " --steps 2 --every 2"
    members = [desk.type(short) for _ in range(3)]
    for member in members:
        member.ends()


def test_a_master_of_several_runs(desk: Desk) -> None:
    master = desk.type(block("docs/reference/pccl-master.md", "runs"))
    master.sees("serves 2 runs")
    for run, wanted in (("vision", "founding"), ("speech", "founding"), ("video", "")):
        status = desk.type(f"pccl-master --status pccl://127.0.0.1:{PORT}/{run}")
        status.ends(0 if wanted else 1)
        assert wanted in status.text()


def test_a_loop_that_is_tested_without_processes(desk: Desk) -> None:
    example = Path("examples/testing/test_loop.py")
    fragment = block("docs/how-to/test-a-loop.md", "test")
    sys_path = f"import sys\nsys.path.insert(0, {str(ROOT / example.parent)!r})\n"
    (desk.folder / "test_fragment.py").write_text(
        f"{sys_path}from test_loop import train\n{fragment}"
    )
    for tests in (example.parent, "test_fragment.py"):
        run = desk.type(f"{sys.executable} -m pytest -q -p no:cacheprovider {tests}")
        run.ends()
        assert " passed" in run.text()
