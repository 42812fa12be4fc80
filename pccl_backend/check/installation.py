"""Versions, the build, and the options of the environment."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys

from .rank import CheckFailedError, Rank, demand

COMMAND_S = 30.0


def versions(at: Rank) -> None:
    """What runs here; torch can be imported."""
    import torch

    from .._cores import allowed_cores
    from .._version import __version__

    python = platform.python_version()
    glibc = "-".join(platform.libc_ver())
    at.note(
        f"pccl {__version__}, torch {torch.__version__}, Python {python}",
        pccl=__version__,
        torch=torch.__version__,
        python=python,
        system=f"{platform.system()} {platform.release()} {platform.machine()}, {glibc}",
        cores=allowed_cores(),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        cuda=torch.version.cuda or torch.version.hip or "none",
    )


def build(at: Rank) -> None:
    """Both extensions load, are for this torch, and torch knows the name."""
    import torch
    import torch.distributed as dist

    from .. import _core, _extension

    module = _extension.library()
    demand(
        dist.is_backend_available("pccl"),
        'torch does not know the name "pccl": the package has no metadata here, so it is not '
        "installed (pip install), or TORCH_DEVICE_BACKEND_AUTOLOAD=0 is set",
    )
    try:
        installed = importlib.metadata.version("pccl")
    except importlib.metadata.PackageNotFoundError:
        installed = "not installed by pip"
    at.note(
        f"both extensions, built for torch {module.TORCH_VERSION}",
        built_for=module.TORCH_VERSION,
        running=torch.__version__,
        extension=module.__file__,
        core=_core.__file__,
        metadata=installed,
        pccl_master=_master_command(),
    )


def _master_command() -> str:
    """Which `pccl-master` a shell finds, and its version."""
    path = shutil.which("pccl-master", path=_with_scripts())
    if path is None:
        return f"not in PATH; {sys.executable} -m pccl_backend._cli is the same"
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=COMMAND_S)
    if done.returncode != 0:
        raise CheckFailedError(f"{path} --version fails: {done.stderr.strip()[-300:]}")
    return f"{path}: {done.stdout.strip()}"


def _with_scripts() -> str:
    return os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])


def options(at: Rank) -> None:
    """The PCCL_* variables can be read, and each is one that pccl reads."""
    from .. import _config

    _config.Options.from_environment().to_engine()
    unread = _config.unread_variables()
    demand(not unread, "; ".join(unread))
    given = {name: os.environ[name] for name in os.environ if name.startswith("PCCL_")}
    if _config.TOKEN in given:
        given[_config.TOKEN] = "(a secret)"
    at.note(", ".join(given) if given else "no PCCL_ variable is set", **given)
