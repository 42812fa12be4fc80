"""transformers' Trainer: trains a small GPT-2, evaluates, saves, and resumes from what it saved.

On CPUs the Trainer gives its ddp_backend to accelerate, which takes only "gloo". It keeps a group
that is there: so the script makes it first, and says nothing about backends to the Trainer.
"""

import torch
import torch.distributed as dist
from common import VOCABULARY, digest, finish, parser, report, texts
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

STEPS = 8


def rows(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    return [{"input_ids": row, "labels": row} for row in texts(count, seed)]


def make(folder: str) -> Trainer:
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=STEPS // 2,
        save_steps=STEPS // 2,
        report_to="none",
        disable_tqdm=True,
        seed=0,
    )
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return Trainer(
        model_init=lambda: GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=rows(64, 0),
        eval_dataset=rows(13, 1),  # not divisible by the ranks
    )


def outcome(trainer: Trainer) -> dict[str, list[float]]:
    kinds = {"losses": "loss", "norms": "grad_norm", "eval_losses": "eval_loss"}
    history = trainer.state.log_history
    return {name: [line[key] for line in history if key in line] for name, key in kinds.items()}


def main() -> None:
    arguments = parser().parse_args()
    dist.init_process_group(arguments.backend)
    folder = arguments.folder / "trainer"

    trainer = make(str(folder))
    trainer.train()
    digests = [digest(trainer.accelerator.unwrap_model(trainer.model).state_dict())]
    resumed = make(str(folder))
    resumed.train(resume_from_checkpoint=str(folder / f"checkpoint-{STEPS // 2}"))
    digests.append(digest(resumed.accelerator.unwrap_model(resumed.model).state_dict()))
    predictions = resumed.predict(resumed.eval_dataset).predictions
    assert predictions.shape[0] == len(resumed.eval_dataset)
    report(**outcome(trainer), digests=digests, predictions=digest(torch.from_numpy(predictions)))
    finish()


if __name__ == "__main__":
    main()
