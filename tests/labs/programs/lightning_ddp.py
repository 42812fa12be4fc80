"""Lightning's DDP: fits, validates with torchmetrics, saves the best and loads it again."""

import lightning
import torch
from common import VOCABULARY, digest, finish, parser, report, texts
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy


class LanguageModel(lightning.LightningModule):
    """Guesses the next token from the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Embedding(VOCABULARY, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, VOCABULARY)
        )
        self.accuracy = MulticlassAccuracy(VOCABULARY)
        self.losses: list[torch.Tensor] = []

    def step(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.layers(tokens[:, :-1]).flatten(0, 1)
        return nn.functional.cross_entropy(logits, tokens[:, 1:].flatten()), logits

    def training_step(self, tokens: torch.Tensor, index: int) -> torch.Tensor:
        loss, _ = self.step(tokens)
        self.log("loss", loss, sync_dist=True)
        self.losses.append(loss.detach())
        return loss

    def validation_step(self, tokens: torch.Tensor, index: int) -> None:
        loss, logits = self.step(tokens)
        self.accuracy(logits, tokens[:, 1:].flatten())
        self.log("val_loss", loss, sync_dist=True)
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    arguments = parser().parse_args()
    lightning.seed_everything(0)
    model = LanguageModel()
    best = ModelCheckpoint(arguments.folder / "lightning", monitor="val_loss")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend=arguments.backend),
        max_epochs=2,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=[best],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train = DataLoader(texts(64, 0), batch_size=8, shuffle=True)
    check = DataLoader(texts(20, 1), batch_size=8)
    trainer.fit(model, train, check)
    losses = trainer.strategy.all_gather(torch.stack(model.losses)).mean(0).tolist()
    digests = [digest(model.state_dict())]
    (validated,) = trainer.validate(model, check, ckpt_path="best", verbose=False)
    report(losses=losses, validated=validated, digests=digests)
    finish()


if __name__ == "__main__":
    main()
