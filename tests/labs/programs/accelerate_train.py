"""Hugging Face accelerate: accumulated gradients, metrics, saved and loaded state.

On CPUs accelerate names its backend itself ("gloo"), and refuses another one in
InitProcessGroupKwargs. It keeps a group that is there: so the script makes it first.
"""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object, set_seed
from common import VOCABULARY, digest, finish, mean, parser, report, texts
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

ROWS, EPOCHS = 62, 2  # 62: the last batch is smaller


def main() -> None:
    arguments = parser().parse_args()
    dist.init_process_group(arguments.backend)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)

    set_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    loader = DataLoader(texts(ROWS), batch_size=8, shuffle=True)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)

    losses = []
    for _ in range(EPOCHS):
        for tokens in loader:
            with accelerator.accumulate(model):
                loss = model(input_ids=tokens, labels=tokens).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(mean(loss))

    folder = str(arguments.folder / "state")
    accelerator.save_state(folder)
    accelerator.wait_for_everyone()  # rank 0 writes the file that all ranks load
    saved = digest(accelerator.get_state_dict(model))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    accelerator.load_state(folder)
    right = []
    for tokens in loader:
        guesses = model(input_ids=tokens).logits[:, :-1].argmax(-1)
        hits = (guesses == tokens[:, 1:]).float().mean(1)
        right.append(accelerator.gather_for_metrics(hits))
    rows = torch.cat(right)
    assert len(rows) == ROWS  # those that were repeated to fill the last batch are dropped
    words = gather_object([f"rank {accelerator.process_index}"])
    words += broadcast_object_list([accelerator.process_index])
    report(
        losses=losses,
        accuracy=rows.mean().item(),
        words=words,
        digests=[saved, digest(accelerator.unwrap_model(model).state_dict())],
    )
    finish()


if __name__ == "__main__":
    main()
