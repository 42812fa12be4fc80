"""How long is a training step next to gloo's, and what does it cost that a group is elastic?

The same training on CPUs over a fixed group of gloo, a fixed one of pccl and an elastic one, with
the master on this machine and 80 ms away (over tests/labs/wan: needs root and /dev/net/tun; left
out where they are missing). The members are on one machine in all cases. An elastic operation waits
for its commit, one round trip to the master; operations in flight share it.

  ddp   8 layers of 1 MiB, a bucket for each, averaged by a hook in the elastic group
  hsdp  20 parameter groups of 256 KiB, replicas of one rank
  gpt-ddp    a GPT of 11 million parameters, batches of 64 tokens, DDP's own buckets
  gpt-fsdp2  the same, sharded over all ranks (fully_shard): in fixed groups only

Medians of steps; the kinds take turns, because machines are noisy.

    python benchmarks/elastic_step.py
    python benchmarks/elastic_step.py --programs ddp --rounds 1
    python benchmarks/elastic_step.py --programs gpt-ddp gpt-fsdp2 --world 4 --near
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from option_types import whole

ROOT = Path(__file__).resolve().parents[1]
RTT_MS = 80.0
FAR = "elastic, master 80 ms away"
KINDS = ["gloo", "fixed", "elastic", FAR]
PORT = 48148
WARM_UP = 10
LIMIT_S = 300
PROGRAMS = ["ddp", "hsdp", "gpt-ddp", "gpt-fsdp2"]
TOKENS = 1024  # that the GPT knows
CONTEXT = 64  # tokens of a batch


def arguments() -> argparse.Namespace:
    """Of the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--world", type=whole(1), default=2, help="members (default 2)")
    p.add_argument("--programs", nargs="+", default=PROGRAMS, choices=PROGRAMS)
    p.add_argument("--near", action="store_true", help="without the master 80 ms away")
    p.add_argument("--rounds", type=whole(1), default=3, help="runs of each kind (default 3)")
    p.add_argument("--steps", type=whole(1), default=50, help="of a run (default 50)")
    p.add_argument("--json", help="also write the figures to this file")
    for name in ("kind", "program", "meet", "url"):
        p.add_argument(f"--{name}", default="", help=argparse.SUPPRESS)
    p.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    return p.parse_args()


# ------------------------------------------------------------------------------ a member


def member(a: argparse.Namespace) -> None:
    """Trains; rank 0 prints the seconds of each step."""
    import torch
    import torch.distributed as dist

    import pccl_backend as pccl

    torch.set_num_threads(1)
    torch.manual_seed(0)
    elastic = a.kind not in ("gloo", "fixed")
    model, x = model_and_batch(a.program)
    if elastic and a.program == "hsdp":  # beside the fixed group of the replica, here of one rank
        store = dist.FileStore(f"{a.meet}-{a.rank}", 1)
        dist.init_process_group("pccl", store=store, rank=0, world_size=1)
    if elastic:
        pg = pccl.join(a.url, timeout_s=60.0)
    else:
        backend = "gloo" if a.kind == "gloo" else "pccl"
        store = dist.FileStore(a.meet, a.world)
        dist.init_process_group(backend, store=store, rank=a.rank, world_size=a.world)
        pg = dist.group.WORLD
    wrap = wrap_ddp if a.program.endswith("ddp") else wrap_fsdp
    model = wrap(model, pg, elastic, a)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    state = pccl.SharedState(model=model, optimizer=optimizer, step=0) if elastic else None
    times = []
    for _ in range(WARM_UP + a.steps):
        began = time.perf_counter()
        if state is not None:
            pccl.group(pg).refresh(state)
            state["step"] += 1
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
    if pg.rank() == 0:
        print(json.dumps(times[WARM_UP:]), flush=True)
    dist.destroy_process_group()


def model_and_batch(program: str) -> tuple[Any, Any]:
    """What a program trains, and on what."""
    import torch
    from torch import nn

    if program.startswith("gpt"):
        return small_gpt(), torch.randint(TOKENS, (1, CONTEXT))
    width, layers = (512, 8) if program == "ddp" else (256, 20)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))), torch.randn(8, width)


def small_gpt() -> Any:
    """A decoder of 3 blocks over 512 features, 11 million parameters; takes tokens."""
    import torch
    from torch import nn

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(TOKENS, 512)
            self.places = nn.Embedding(CONTEXT, 512)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(512, 8, 2048, 0.0, batch_first=True, norm_first=True)
                for _ in range(3)
            )
            self.head = nn.Linear(512, TOKENS, bias=False)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

        def forward(self, x: Any) -> Any:
            y = self.tokens(x) + self.places(torch.arange(CONTEXT))
            for block in self.blocks:
                y = block(y, src_mask=self.mask, is_causal=True)
            return self.head(y)

    return Gpt()


def wrap_ddp(model: Any, pg: Any, elastic: bool, a: argparse.Namespace) -> Any:
    """A bucket for each layer; of the GPT those of DDP."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    bucket_mb = 1 if a.program == "ddp" else 25  # 25: the default of DDP
    ddp = DistributedDataParallel(model, process_group=pg, bucket_cap_mb=bucket_mb)
    if elastic:

        def average(_, bucket):  # noqa: ANN001, ANN202  # DDP takes no other annotations
            work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.AVG, group=pg, async_op=True)
            return work.get_future().then(lambda future: future.value()[0])

        ddp.register_comm_hook(None, average)
    return ddp


def wrap_fsdp(model: Any, pg: Any, elastic: bool, a: argparse.Namespace) -> Any:
    """A parameter group for each layer; the GPT is sharded, the other model replicated."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import pccl_backend as pccl

    if a.program == "gpt-fsdp2":
        mesh = init_device_mesh("cpu", (a.world,))
    elif elastic:
        mesh = pccl.hsdp_mesh(pg, device_type="cpu")
    else:
        mesh = init_device_mesh("cpu", (a.world, 1), mesh_dim_names=("replicate", "shard"))
    for layer in model.blocks if a.program == "gpt-fsdp2" else model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


# ------------------------------------------------------------------------------ the driver


def network() -> Any:
    """Two hosts, 80 ms apart; None where none can be made."""
    sys.path.insert(0, str(ROOT / "tests" / "labs"))
    from wan.wan import Wan, WanError

    wan = Wan(2, rtt_ms=RTT_MS)
    try:
        wan.up()
    except (WanError, OSError, subprocess.CalledProcessError) as error:
        print(f"left out: {FAR} ({error})", file=sys.stderr)
        return None
    return wan


def run(a: argparse.Namespace, program: str, kind: str, wan: Any, folder: Path) -> list[float]:
    """The seconds of the steps of one run."""
    far = kind == FAR
    host = wan.address(1) if far else "127.0.0.1"
    master = None
    meet = folder / f"meet-{time.monotonic_ns()}"
    url = f"pccl://{host}:{PORT}"
    on_master = wan.command(1, []) if far else []
    on_members = wan.command(2, []) if far else []
    if kind not in ("gloo", "fixed"):
        port_file = folder / f"port-{time.monotonic_ns()}"
        command = [sys.executable, "-m", "pccl_backend._cli", "--insecure", "--state", "none"]
        command += ["--listen", f"{host}:{PORT if far else 0}", "--min-peers", str(a.world)]
        command += ["--port-file", str(port_file), "--log-level", "warning"]
        master = subprocess.Popen([*on_master, *command], stdout=subprocess.DEVNULL)
        end = time.monotonic() + LIMIT_S
        while not (port_file.exists() and port_file.read_text().strip()):
            if master.poll() is not None or time.monotonic() > end:
                raise SystemExit("the master did not start")
            time.sleep(0.05)
        url = f"pccl://{host}:{port_file.read_text().strip()}"
    command = [sys.executable, __file__, "--kind", kind, "--program", program, "--url", url]
    command += ["--meet", str(meet), "--world", str(a.world), "--steps", str(a.steps)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PCCL_LOG_LEVEL": "warning"}
    env |= {} if far else {"GLOO_SOCKET_IFNAME": "lo"}
    members = [
        subprocess.Popen(
            [*on_members, *command, "--rank", str(rank)], stdout=subprocess.PIPE, env=env, text=True
        )
        for rank in range(a.world)
    ]
    try:
        outs = [m.communicate(timeout=LIMIT_S)[0] for m in members]
    finally:
        for process in [*members, *([master] if master else [])]:
            process.kill()
            process.wait()
    # gloo may end a process by abort() when all is done.
    times_are_there = kind == "gloo" and any(outs)
    if any(m.returncode for m in members) and not times_are_there:
        raise SystemExit(f"{program}, {kind}: a member failed")
    (times,) = (json.loads(out.splitlines()[-1]) for out in outs if out.strip())
    return [float(t) for t in times]


def main() -> None:
    """Measures and prints the table."""
    a = arguments()
    if a.rank is not None:
        member(a)
        return
    figures: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        wan = None if a.near else network()
        kinds = KINDS if wan else KINDS[:-1]
        if wan:
            stack.callback(wan.down)
        for i in range(a.rounds):
            for program in a.programs:
                for kind in kinds if program != "gpt-fsdp2" else KINDS[:2]:
                    times = run(a, program, kind, wan, folder)
                    figures.setdefault(f"{program} | {kind}", []).extend(times)
                    text = f"round {i + 1}: {program}, {kind}: {1e3 * statistics.median(times):.1f}"
                    print(f"{text} ms", file=sys.stderr, flush=True)
    print("| program | group | step, ms | next to gloo |\n| --- | --- | --- | --- |")
    for name, values in figures.items():
        median = statistics.median(values)
        gloo = statistics.median(figures[f"{name.split(' | ')[0]} | gloo"])
        print(f"| {name} | {1e3 * median:.1f} | {median / gloo:.2f} |")
    if a.json:
        Path(a.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
