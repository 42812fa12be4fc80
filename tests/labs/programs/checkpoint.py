"""torch.distributed.checkpoint of a sharded model and its optimizer.

It trains and saves, once while it waits and once in the background. Then it loads both into a model
with other weights and trains on from them; with --load it does only that, on any number of ranks.
"""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from common import digest, finish, mean, parser, report
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard

WIDTH, STEPS = 33, 4  # 33: the last shard is smaller


class Training(Stateful):
    """A model with its optimizer, in the form that DCP saves and loads."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(2)]
        self.model = nn.Sequential(*layers, nn.Linear(WIDTH, 1))
        for layer in layers:
            fully_shard(layer)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def state_dict(self) -> dict[str, object]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, dict[str, object]]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )

    def train(self, steps: int) -> list[float]:
        random = torch.Generator().manual_seed(dist.get_rank())
        losses = []
        for _ in range(steps):
            x = torch.randn(16, WIDTH, generator=random)
            loss = (self.model(x) - x.norm(dim=1, keepdim=True)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(mean(loss))
        return losses

    def digest(self) -> str:
        """Of what all ranks hold together; the same whatever their number."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return digest(get_state_dict(self.model, self.optimizer, options=options))


def save(now: str, later: str) -> tuple[list[float], list[str]]:
    training = Training(seed=0)
    losses = training.train(STEPS)
    digests = [training.digest()]
    dcp.save({"training": training}, checkpoint_id=now)
    losses += training.train(STEPS)
    digests.append(training.digest())
    # Another thread saves: it needs a group of its own, so that calls keep their order.
    saving = dcp.async_save(
        {"training": training}, checkpoint_id=later, process_group=dist.new_group()
    )
    losses += training.train(STEPS)
    saving.result()
    return losses, digests


def load(*folders: str) -> tuple[list[float], list[str]]:
    training = Training(seed=1)
    losses, digests = [], []
    for folder in folders:
        dcp.load({"training": training}, checkpoint_id=folder)
        digests.append(training.digest())
        losses += training.train(1)
    return losses, digests


def main() -> None:
    program = parser()
    program.add_argument("--load", action="store_true")
    arguments = program.parse_args()
    dist.init_process_group(arguments.backend)
    folders = str(arguments.folder / "now"), str(arguments.folder / "later")
    saved = None if arguments.load else save(*folders)
    losses, digests = load(*folders)
    if saved:
        losses = saved[0] + losses
        assert digests == saved[1]
    report(losses=losses, digests=digests)
    finish()


if __name__ == "__main__":
    main()
