"""Lightning's ModelParallelStrategy, which is FSDP2; its FSDPStrategy wants a GPU in any case."""

import lightning
import torch
from common import VOCABULARY, digest, finish, parser, report, texts
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader


class LanguageModel(lightning.LightningModule):
    """Guesses the next token from the one before; sharded layer by layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Embedding(VOCABULARY, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, VOCABULARY)
        )
        self.losses: list[torch.Tensor] = []

    def configure_model(self) -> None:
        for layer in self.layers:
            fully_shard(layer, mesh=self.device_mesh["data_parallel"])
        fully_shard(self, mesh=self.device_mesh["data_parallel"])

    def training_step(self, tokens: torch.Tensor, index: int) -> torch.Tensor:
        logits = self.layers(tokens[:, :-1]).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
        self.log("loss", loss, sync_dist=True)
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    arguments = parser().parse_args()
    lightning.seed_everything(0)
    model = LanguageModel()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=ModelParallelStrategy(process_group_backend=arguments.backend),
        max_epochs=2,
        default_root_dir=arguments.folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(texts(64, 0), batch_size=8, shuffle=True))
    losses = trainer.strategy.all_gather(torch.stack(model.losses)).mean(0).tolist()
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    report(losses=losses, digests=[digest(get_model_state_dict(model, options=options))])
    finish()


if __name__ == "__main__":
    main()
