"""The torch layers of this installation, and the one for the running torch.

csrc/torch is compiled once for each minor version of torch, over one engine: a wheel holds a layer
for several of them, a build from source that of its torch. `_C` is the layer that fits.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any


def layers(folder: Path) -> dict[str, str]:
    """Minor version of torch -> name of the module in `folder` that is built for it."""
    found = (re.match(r"(_torch_(\d+)_(\d+))\.", path.name) for path in folder.glob("*.so"))
    versions = {(int(match[2]), int(match[3])): match[1] for match in found if match}
    return {f"{major}.{minor}": versions[major, minor] for major, minor in sorted(versions)}


def layer_for(torch_version: str, there: dict[str, str]) -> str:
    """The name of the module for this torch.

    Raises:
        ImportError: None of the layers is built for its minor version.
    """
    minor = ".".join(str(torch_version).split(".")[:2])
    if minor in there:
        return there[minor]
    raise ImportError(
        f"this pccl serves torch {', '.join(there) or '(no version: it is not built)'}, and this "
        f"is torch {torch_version}: install a torch that it serves, or build pccl for this one "
        "from its sources (pip install --no-build-isolation)"
    )


def load() -> Any:
    """The layer for the running torch.

    Raises:
        ImportError: There is none, or it cannot be loaded.
    """
    import torch

    name = layer_for(torch.__version__, layers(Path(__file__).parent))
    try:
        return importlib.import_module(f".{name}", __package__)
    except ImportError as error:
        raise ImportError(
            f"pccl's layer for torch {torch.__version__} cannot be loaded ({error}): build pccl "
            "again for this torch (pip install --no-build-isolation)"
        ) from error
