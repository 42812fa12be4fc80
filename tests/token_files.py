"""Token files of masters and of workers, for tests; and a peer that tokens keep out."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
from pathlib import Path

from conftest import PATIENCE_S, ROOT, hear, say


def command(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pccl_backend._cli", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, **(env or {})},
    )


def new_token(file: Path, name: str) -> None:
    made = command("--token-file", str(file), "--new-token", name)
    assert made.returncode == 0, made.stderr


def line_of(file: Path, name: str) -> str:
    (line,) = (x for x in file.read_text().splitlines() if x.startswith(f"{name}:"))
    return line


def copy_of(file: Path, name: str) -> Path:
    """A worker's file with that token alone."""
    copy = file.parent / f"of-{name}"
    copy.touch(0o600)
    copy.write_text(line_of(file, name) + "\n")
    return copy


def cut(file: Path, name: str) -> None:
    kept = [x for x in file.read_text().splitlines() if not x.startswith(f"{name}:")]
    file.write_text("\n".join(kept) + "\n")


def holding(path: Path) -> dict[str, str]:
    return {"PCCL_TOKEN_FILE": str(path)}


def refused(index: int, url: str) -> None:
    """Joins in vain: says what it raises, and how long that took."""
    import pccl_backend as pccl

    start = time.monotonic()
    try:
        pccl.join(url, timeout_s=120.0)
    except Exception as error:
        say(raised=type(error).__name__, text=str(error), after_s=time.monotonic() - start)
    else:
        say(raised="", text="it has joined", after_s=0.0)
    hear()


def secrets_of(file: Path) -> list[bytes]:
    """What nobody may read: each secret as text, as bytes, in hexadecimal."""
    texts = [x.split(":")[1] for x in file.read_text().splitlines()]
    texts.append(Path(f"{file}.key").read_text().split()[-1])
    raw = [base64.b64decode(text) for text in texts]
    return [
        form
        for text, r in zip(texts, raw, strict=True)
        for form in (text.encode(), r, r.hex().encode())
    ]
