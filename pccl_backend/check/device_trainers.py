"""PyTorch's trainers over pccl, against a loop by hand whose gradients are averaged by gloo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .device_group import start
from .rank import CheckFailedError, Rank

STEPS = 5
WIDTH = 256
LR = 0.1
LOOSE = 0.05  # for gradients in 16 bits


def _model(where: str) -> Any:
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 8)).to(where)


def _data(step: int, rank: int, where: str) -> Any:
    import torch

    random = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(16, WIDTH, generator=random).to(where)


def _train(model: Any, at: Rank, where: str, reduce: Callable[[Any], None] | None = None) -> None:
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for step in range(STEPS):
        loss = model(_data(step, at.rank, where)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if reduce is not None:
            reduce(model)
        optimizer.step()


def _weights(model: Any) -> Any:
    import torch
    from torch.distributed.tensor import DTensor

    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return torch.cat([p.detach().cpu().flatten() for p in whole])


def _by_hand(at: Rank, dist: Any, where: str) -> Any:
    gloo = dist.new_group(backend="gloo")

    def reduce(model: Any) -> None:
        for p in model.parameters():
            host = p.grad.cpu()
            dist.all_reduce(host, group=gloo)
            p.grad.copy_((host / 2).to(where))

    model = _model(where)
    _train(model, at, where, reduce)
    return _weights(model)


def _compare(name: str, got: Any, expected: Any, loose: float) -> None:
    import torch

    try:
        torch.testing.assert_close(got, expected, rtol=loose or 1e-4, atol=loose or 1e-5)
    except AssertionError as error:
        text = " ".join(str(error).split())
        raise CheckFailedError(f"{name} trains other weights than gloo: {text}") from error


def trainers(at: Rank) -> None:
    """DDP, FSDP2, HSDP and a functional collective that is compiled."""
    import torch
    from torch.distributed._functional_collectives import all_reduce
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    device, dist = start(at)
    where = device.trains_on
    expected = _by_hand(at, dist, where)
    compared = []

    def ddp(**options: Any) -> Any:
        return DistributedDataParallel(_model(where), **options)

    def with_hook() -> Any:
        model = ddp()
        model.register_comm_hook(None, fp16_compress_hook)
        return model

    def fsdp(shape: tuple[int, ...] = (2,), factor: float = 0, **options: Any) -> Any:
        names = ("replica", "shard")[-len(shape) :]
        model = _model(where)
        mesh = init_device_mesh(where, shape, mesh_dim_names=names)
        for layer in [*model, model]:
            fully_shard(layer, mesh=mesh, **options)
            if factor:
                layer.set_gradient_divide_factor(factor)
        return model

    half = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
    makers: dict[str, tuple[Callable[[], Any], float]] = {
        "DDP": (ddp, 0),
        "DDP with bucket views": (lambda: ddp(gradient_as_bucket_view=True), 0),
        "DDP with a static graph": (lambda: ddp(static_graph=True), 0),
        "DDP with an fp16 hook": (with_hook, LOOSE),
        "FSDP2": (fsdp, 0),
        "FSDP2 with a divide factor": (lambda: fsdp(factor=2.0), 0),
        "FSDP2 with bf16 gradients": (lambda: fsdp(mp_policy=half), LOOSE),
        "HSDP": (lambda: fsdp((2, 1)), 0),
    }
    for name, (make, loose) in makers.items():
        model = make()
        _train(model, at, where)
        _compare(name, _weights(model), expected, loose)
        compared.append(name)

    def function(t: Any) -> Any:
        return all_reduce(t * 2, "sum", dist.group.WORLD) + 1

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    got = compiled(torch.full((1000,), 1.0 + at.rank, device=where))
    _compare("a compiled all_reduce", got.cpu(), torch.full((1000,), 7.0), 0)
    at.note(f"{len(compared)} trainers give gloo's weights", trainers=", ".join(compared))
    dist.destroy_process_group()
