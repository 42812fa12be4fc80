"""Programs on the calls below a model: functional collectives, meshes, DTensor, compiled graphs."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as with_gradients
import torch.distributed.tensor as dtensor
from common import Here, close, exact, own
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorConverter


@close
def functional_collectives(here: Here) -> Any:
    mesh = init_device_mesh("cpu", (here.size,))
    x = here.values(4, 6)
    out = [
        funcol.all_reduce(x, op, group)
        for op in ("sum", "avg", "product", "min", "max")
        for group in (here.group, list(range(here.size)), mesh, (mesh, 0))
    ]
    for dim in (0, 1):
        out.append(funcol.all_gather_tensor(x, dim, here.group))
        out += [funcol.reduce_scatter_tensor(x, op, dim, mesh) for op in ("sum", "avg", "max")]
    out.append(funcol.broadcast(x, 1, here.group))
    out.append(funcol.permute_tensor(x.flatten(), [1, 0], here.group))
    splits = [1, 3] if here.rank == 0 else [3, 1]
    out.append(funcol.all_to_all_single(x, splits, splits, here.group))
    out.append(funcol.all_to_all_single(x, None, None, here.group))
    return [own(t.wait() if hasattr(t, "wait") else t) for t in out]


@close
def coalesced_collectives(here: Here) -> Any:
    xs = [here.values(4, 2), here.values(2, 3, salt=1), here.values(6, salt=2)]
    out = funcol.all_reduce_coalesced(xs, "sum", here.group)
    out += funcol.all_gather_into_tensor_coalesced(xs, here.group)
    out += funcol.reduce_scatter_tensor_coalesced(xs, "sum", [0, 0, 0], here.group)
    out = [funcol.wait_tensor(t) for t in out]
    with dist._coalescing_manager(here.group):
        for x in xs:
            dist.all_reduce(x, group=here.group)
    gathered = [torch.empty(2 * x.shape[0], *x.shape[1:]) for x in xs]
    with dist._coalescing_manager(here.group, async_ops=True) as works:
        for to, x in zip(gathered, xs, strict=True):
            dist.all_gather_into_tensor(to, x, group=here.group)
    works.wait()
    scattered = [torch.empty(x.shape[0] // 2, *x.shape[1:]) for x in xs]
    with dist._coalescing_manager(here.group):
        for to, x in zip(scattered, xs, strict=True):
            dist.reduce_scatter_tensor(to, x, group=here.group)
    return out + xs + gathered + scattered


@close
def functional_collectives_have_gradients(here: Here) -> Any:
    group = here.group
    calls: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: funcol.all_gather_tensor_autograd(x, 0, group),
        lambda x: funcol.reduce_scatter_tensor_autograd(x, "sum", 1, group),
        lambda x: funcol.all_to_all_single_autograd(x, [2, 2], [2, 2], group),
        lambda x: funcol.all_reduce(x, "sum", group),
    ]
    out = []
    for call in calls:
        x = here.values(4, 6).requires_grad_()
        y = funcol.wait_tensor(call(x))
        (y * here.values(*y.shape, salt=3)).sum().backward()
        out += [own(y), x.grad]
    return out


@close
def old_functional_collectives_have_gradients(here: Here) -> Any:
    """torch.distributed.nn.functional."""
    here_and_there = range(here.size)

    def parts(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * (r + 1) for r in here_and_there]

    calls: list[Callable[[torch.Tensor], Any]] = [
        lambda x: with_gradients.broadcast(x, 1),
        lambda x: with_gradients.gather(x, 1),
        lambda x: with_gradients.scatter(parts(x), 1),
        lambda x: with_gradients.reduce(x, 1) * here.rank,  # undefined but at its root
        lambda x: with_gradients.reduce_scatter(torch.empty(4, 6), parts(x)),
        with_gradients.all_gather,
        lambda x: with_gradients.all_to_all([torch.empty(4, 6) for _ in parts(x)], parts(x)),
        lambda x: with_gradients.all_to_all_single(torch.empty(4, 6), x),
        lambda x: with_gradients.all_reduce(x, dist.ReduceOp.SUM),
    ]
    out: list[Any] = []
    for call in calls:
        x = here.values(4, 6).requires_grad_()
        ys = call(x)
        ys = list(ys) if isinstance(ys, (list, tuple)) else [ys]
        sum((y * (i + 1)).sum() for i, y in enumerate(ys)).backward()
        out += [ys, x.grad]
    return out


@close
def compiled_collectives(here: Here) -> Any:
    group = here.group

    def graph(x: torch.Tensor) -> torch.Tensor:
        y = funcol.all_reduce(x * 2, "sum", group)
        z = funcol.all_gather_tensor(y + 1, 0, group)
        parts = funcol.reduce_scatter_tensor(z.sin(), "avg", 0, group)
        return funcol.all_to_all_single(parts * 3, None, None, group) + 1

    def in_place(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y, group=group)
        both = torch.empty(2 * y.shape[0], *y.shape[1:])
        dist.all_gather_into_tensor(both, y, group=group)
        return both + 1

    out = []
    for function in (graph, in_place):
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        x = here.values(4, 6)
        out += [compiled(x), function(x)]
    torch._dynamo.reset()
    assert torch.equal(out[0], out[1])
    assert torch.equal(out[2], out[3])
    return out


@exact
def device_mesh(here: Here) -> Any:
    mesh = init_device_mesh("cpu", (here.size,), mesh_dim_names=("all",))
    column = init_device_mesh("cpu", (here.size, 1), mesh_dim_names=("long", "short"))
    given = DeviceMesh.from_group(here.group, "cpu")
    wrong = None
    try:
        init_device_mesh("cpu", (here.size + 1,))
    except Exception as error:
        wrong = type(error).__name__
    seen = []
    for each in (mesh, given, column["long"], column["short"], column._flatten()):
        t = torch.tensor([here.rank + 1])
        dist.all_reduce(t, group=each.get_group())
        seen.append([t, each.size(), each.get_local_rank(), each.get_coordinate()])
        seen.append(dist.get_process_group_ranks(each.get_group()))
    return seen, wrong


PLACEMENTS: list[Placement] = [Replicate(), Shard(0), Shard(1)]


@close
def dtensor_redistribute(here: Here) -> Any:
    mesh = init_device_mesh("cpu", (here.size,))
    out = []
    for shape in ((4, 6), (5, 3), (1, 3)):
        for placement in PLACEMENTS:
            x = distribute_tensor(here.values(*shape, rank=0), mesh, [placement])
            for target in PLACEMENTS:
                there = x.redistribute(mesh, [target])
                out += [there.to_local(), there.full_tensor()]
    for reduction in ("sum", "avg", "max", "min"):
        y = dtensor.DTensor.from_local(here.values(4, 6), mesh, [Partial(reduction)])
        out += [y.redistribute(mesh, [target]).to_local() for target in PLACEMENTS]
        out.append(y.full_tensor())
    return out


@close
def dtensor_operators(here: Here) -> Any:
    """Each operator with each way to shard its arguments, against the same without sharding."""
    mesh = init_device_mesh("cpu", (here.size,))
    a, b = here.values(4, 6, rank=0), here.values(6, 4, rank=0)
    calls: list[tuple[Callable[..., torch.Tensor], tuple[Any, ...]]] = [
        (torch.add, (a, b.t())),
        (torch.mm, (a, b)),
        (torch.sum, (a, 0)),
        (torch.mean, (a,)),
        (torch.softmax, (a, 1)),
        (torch.nn.functional.layer_norm, (a, (6,))),
        (torch.cat, ([a, a * 2], 1)),
        (torch.var, (a,)),
    ]
    out = []
    for call, arguments in calls:
        expected = call(*arguments)
        for sharded, options in DTensorConverter(mesh, arguments, {}):
            got = call(*sharded, **options).full_tensor()
            torch.testing.assert_close(got, expected)
            out.append(got)
    return out


@close
def dtensor_gradients(here: Here) -> Any:
    mesh = init_device_mesh("cpu", (here.size,))
    out = []
    for left, right in itertools.product(PLACEMENTS, PLACEMENTS):
        a = distribute_tensor(here.values(4, 6, rank=0), mesh, [left]).requires_grad_()
        b = distribute_tensor(here.values(6, 4, rank=0), mesh, [right]).requires_grad_()
        loss = torch.mm(a, b).relu().sum()
        loss.backward()
        assert a.grad is not None
        assert b.grad is not None
        out += [loss.full_tensor(), a.grad.full_tensor(), b.grad.full_tensor()]
    return out


@exact
def dtensor_factories(here: Here) -> Any:
    mesh = init_device_mesh("cpu", (here.size,))
    out = [
        make(5, 4, device_mesh=mesh, placements=[placement])
        for make in (dtensor.ones, dtensor.zeros)
        for placement in PLACEMENTS
    ]
    out.append(dtensor.full((3, 5), 2.5, device_mesh=mesh, placements=[Shard(1)]))
    out.append(
        dtensor.DTensor.from_local(
            torch.arange(3 + here.rank), mesh, [Shard(0)], shape=torch.Size([7]), stride=(1,)
        )
    )
    return [[t.to_local(), t.full_tensor()] for t in out]


@exact
def subgroups(here: Here) -> Any:
    """A group of one, of all in another order, and one that not every rank is in."""
    single = dist.new_group([here.rank], use_local_synchronization=True)
    turned = dist.new_group([1, 0])
    last = dist.new_group([1])
    out = []
    for group in (single, turned):
        t = torch.tensor([here.rank + 5])
        dist.all_reduce(t, group=group)
        gathered: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(gathered, {"rank": here.rank}, group=group)
        out.append([t, gathered, dist.get_process_group_ranks(group), dist.get_rank(group)])
    out.append([dist.get_rank(last), dist.get_world_size(last)])
    for group in (single, turned, last):
        if dist.get_rank(group) >= 0:
            dist.destroy_process_group(group)
    return out
