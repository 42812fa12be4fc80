"""FSDP2 as tutorials have it: weights from rank 0, bfloat16, clipped gradients, the full state."""

import torch
import torch.distributed as dist
from common import LENGTH, VOCABULARY, digest, finish, mean, parser, report, texts
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

WIDTH, LAYERS, STEPS, ROWS = 32, 2, 8, 8


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.tokens(tokens) + self.places(torch.arange(length))
        for layer in self.layers:
            x = layer(x, src_mask=mask.to(x.dtype), is_causal=True)
        return self.head(x)


def shard(model: LanguageModel) -> LanguageModel:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model


def main() -> None:
    arguments = parser().parse_args()
    dist.init_process_group(arguments.backend)
    rank = dist.get_rank()

    torch.manual_seed(rank)  # only rank 0 has the weights to start with
    full = LanguageModel().state_dict() if rank == 0 else {}
    with torch.device("meta"):
        model = LanguageModel()
    shard(model).to_empty(device="cpu")
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, full, options=options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    losses, norms = [], []
    for step in range(STEPS):
        tokens = texts(ROWS, seed=step * dist.get_world_size() + rank)
        logits = model(tokens[:, :-1]).float()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        norms.append(norm.full_tensor().item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean(loss))

    state = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    report(losses=losses, norms=norms, digests=[digest(state)])
    finish()


if __name__ == "__main__":
    main()
