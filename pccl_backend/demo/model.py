"""What the demo trains: a small GPT over bytes, on the sources of Python's standard library.

Nothing here knows of other processes. Names of tensors carry their shape: B sequences, T bytes of
each, D width of the model, H heads, K width of a head, V = 256 values of a byte.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BYTES = 256
TEXT_BYTES_MAX = 6 << 20
PART_BYTES = 4096
JUDGED_ONE_IN = 16


class Block(nn.Module):
    """One layer: causal attention, then a two-layer perceptron, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        """`width` is a multiple of `heads`."""
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.norm_mlp = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Returns the next layer's input, `(B, T, D)`."""
        B, T, D = x_BTD.shape
        qkv_BT3D = self.qkv(self.norm_attention(x_BTD))
        q_BHTK, k_BHTK, v_BHTK = (
            part_BTD.view(B, T, self.heads, D // self.heads).transpose(1, 2)
            for part_BTD in qkv_BT3D.split(D, dim=2)
        )
        mixed_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        x_BTD = x_BTD + self.out(mixed_BHTK.transpose(1, 2).reshape(B, T, D))
        hidden = self.down(F.gelu(self.up(self.norm_mlp(x_BTD))))
        y_BTD: Tensor = x_BTD + hidden
        return y_BTD


class ByteGPT(nn.Module):
    """A GPT that predicts the next byte; the embedding is also the output layer."""

    def __init__(
        self, *, width: int = 128, layers: int = 2, heads: int = 4, length: int = 64
    ) -> None:
        """`length` is the largest T."""
        super().__init__()
        self.embed = nn.Embedding(BYTES, width)
        self.place = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Returns the logits of the byte after each, `(B, T, V)`."""
        x_BTD = self.embed(ids_BT) + self.place.weight[: ids_BT.shape[1]]
        for block in self.blocks:
            x_BTD = block(x_BTD)
        logits_BTV: Tensor = self.norm(x_BTD) @ self.embed.weight.t()
        return logits_BTV


def loss_of(model: nn.Module, batch_BT: Tensor) -> Tensor:
    """Mean cross entropy of the next byte, a scalar, in nats."""
    logits_BTV = model(batch_BT[:, :-1])
    loss: Tensor = F.cross_entropy(logits_BTV.flatten(0, 1), batch_BT[:, 1:].flatten())
    return loss


def standard_library_text(limit_bytes: int = TEXT_BYTES_MAX) -> Tensor:
    """The first `limit_bytes` of the standard library's sources on this machine, one uint8 each."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = bytearray()
    for path in sorted(folder.glob("*.py")) + sorted(folder.glob("*/*.py")):
        if {"site-packages", "dist-packages", "test"} & set(path.parts):
            continue
        text += path.read_bytes()
        if len(text) >= limit_bytes:
            break
    if not text:
        raise RuntimeError(f"no Python sources in {folder}: the demo trains on them")
    return torch.frombuffer(text[:limit_bytes], dtype=torch.uint8)


def split(text: Tensor) -> tuple[Tensor, Tensor]:
    """The text to train on, and every sixteenth part of the whole, by which models are judged."""
    parts = text[: len(text) // PART_BYTES * PART_BYTES].view(-1, PART_BYTES)
    kept = torch.arange(len(parts)) % JUDGED_ONE_IN == 0
    return parts[~kept].flatten(), parts[kept].flatten()


class Batches:
    """An endless stream of batches, another one for each seed."""

    def __init__(self, text: Tensor, seed: int, *, sequences: int = 8, length: int = 64) -> None:
        """Batches of `sequences` (B) times `length` + 1 (T + 1) bytes."""
        self._text = text
        self._random = torch.Generator().manual_seed(seed)
        self._offsets_T = torch.arange(length + 1)
        self._sequences = sequences

    def next(self) -> Tensor:
        """Returns ids, int64 `(B, T + 1)`."""
        last = len(self._text) - len(self._offsets_T)
        starts_B = torch.randint(last, (self._sequences,), generator=self._random)
        return self._text[starts_B[:, None] + self._offsets_T].long()
