"""The entry point: in fresh interpreters, because what it does is done once a process."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from conftest import ROOT

QUIET = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def run(code: str, **environment: str) -> Any:
    """The value of `answer` after `code`, in a fresh interpreter."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PCCL_")}
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        clean.pop(name, None)
    text = f"import sys, json\n{code}\nprint(json.dumps(answer))"
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        env={**clean, **environment},
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


REGISTERED = """
import torch.distributed as dist
from importlib import import_module
answer = ["pccl" in dist.Backend.backend_list,
          "pccl" in import_module("torch.distributed.rendezvous")._rendezvous_handlers]
"""


def test_import_torch_alone_registers_the_name() -> None:
    assert run(f"import torch\n{REGISTERED}") == [True, True]


@pytest.mark.parametrize("environment", [{}, QUIET], ids=["autoload", "no autoload"])
def test_either_import_order_registers_the_name(environment: dict[str, str]) -> None:
    assert run(f"import torch\nimport pccl_backend\n{REGISTERED}", **environment) == [True, True]
    code = f"import pccl_backend\nimport torch\npccl_backend.PcclError\n{REGISTERED}"
    assert run(code, **environment) == [True, True]


def test_importing_the_package_does_not_import_torch() -> None:
    assert run("import pccl_backend\nanswer = 'torch' in sys.modules") is False


def test_registering_imports_nothing_of_ours_and_starts_no_thread() -> None:
    code = """
import threading
import torch
from pccl_backend._register import register
register()
register()
ours = sorted(name for name in sys.modules if name.startswith("pccl_backend"))
answer = [ours, threading.active_count()]
"""
    assert run(code, **QUIET) == [["pccl_backend", "pccl_backend._register"], 1]


def test_it_is_registered_for_the_devices_of_this_build_of_torch() -> None:
    code = """
import torch, torch.distributed as dist
built = ["cpu", "cuda"] if torch.backends.cuda.is_built() else ["cpu"]
answer = [dist.Backend.backend_capability["pccl"], built]
"""
    registered, built = run(code)
    assert registered == built


def test_default_backends_stay_as_they_were() -> None:
    code = (
        "import torch.distributed as dist\nanswer = dict(dist.Backend.default_device_backend_map)"
    )
    assert run(code) == run(code, **QUIET)


def test_an_exception_becomes_one_log_line() -> None:
    code = """
import logging, torch, torch.distributed as dist
lines = []
class Collect(logging.Handler):
    def emit(self, record): lines.append([record.levelname, record.getMessage()])
logging.getLogger("pccl").addHandler(Collect())
def fail(*arguments, **options): raise OSError("planted")
dist.Backend.register_backend = fail
import pccl_backend
answer = lines
"""
    lines = run(code, **QUIET)
    assert len(lines) == 1
    level, text = lines[0]
    assert level == "WARNING"
    assert "OSError: planted" in text


def test_nothing_in_the_environment_changes_without_pccl_master() -> None:
    code = """
import os
from importlib import import_module
import torch
handler = import_module("torch.distributed.rendezvous")._rendezvous_handlers["env"]
answer = ["RANK" in os.environ, handler.__module__]
"""
    assert run(code) == [False, "torch.distributed.rendezvous"]


def test_pccl_master_changes_nothing_else_in_the_environment() -> None:
    code = """
import os
import torch
answer = [name in os.environ for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")]
"""
    assert run(code, PCCL_MASTER="a:1") == [False] * 4


@pytest.mark.parametrize("backend", ["", "'gloo'"])
def test_pccl_master_makes_no_lonely_group_of_another_backend(backend: str) -> None:
    code = f"""
import torch, torch.distributed as dist
try:
    dist.init_process_group({backend})
    answer = dist.get_world_size()
except ValueError as error:
    answer = str(error)
"""
    text = run(code, PCCL_MASTER="127.0.0.1:1")
    assert "RANK expected, but not set. PCCL_MASTER is set, which the backend 'pccl' alone" in text
    assert "expected init_process_group('pccl')" in text


def test_another_backend_meets_by_the_variables_of_torchrun_where_pccl_master_is_set() -> None:
    code = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
answer = [dist.get_backend(), dist.get_world_size()]
dist.destroy_process_group()
"""
    torchrun = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    assert run(code, PCCL_MASTER="127.0.0.1:1", **torchrun) == ["gloo", 1]


MEET = """
import torch, torch.distributed as dist
from pccl_backend import _rendezvous
asked = []
class Stop(Exception): pass
def join(module, target, timeout_s, devices):
    asked.append([list(target.masters), target.run, timeout_s, list(devices)])
    raise Stop
_rendezvous.join_master = join
_rendezvous.extension = lambda options=None: None
_rendezvous.config = lambda: __import__("pccl_backend._config").Options.from_environment()
def init(*arguments, **options):
    try:
        dist.init_process_group(*arguments, **options)
    except Stop:
        pass
    except (ValueError, RuntimeError) as error:
        asked.append([type(error).__name__, str(error)])
"""


def test_a_url_is_read_by_us_whatever_rank_and_world_size_say() -> None:
    code = f"""{MEET}
init("pccl", init_method="pccl://a:1,b:2/r")
init("PCCL", init_method="pccl://a:1,b:2/r", rank=0, world_size=3)
init("cpu:pccl", init_method="pccl://a:1", world_size=3)
answer = asked
"""
    assert run(code) == [
        [["a:1", "b:2"], "r", 1800.0, ["cpu", "cuda"]],
        [["a:1", "b:2"], "r", 1800.0, ["cpu", "cuda"]],
        [["a:1"], "", 1800.0, ["cpu"]],
    ]


def test_pccl_master_makes_env_meet_at_that_master() -> None:
    code = f"""{MEET}
init("pccl")
init("pccl", init_method="env://", rank=5, world_size=8)
answer = asked
"""
    wanted = [["a:1"], "r", 1800.0, ["cpu", "cuda"]]
    assert run(code, PCCL_MASTER="pccl://a:1/r") == [wanted, wanted]


def test_a_mixed_device_map_is_an_error_that_names_it() -> None:
    code = f'{MEET}\ninit("cpu:pccl,cuda:nccl", init_method="pccl://a:1")\nanswer = asked'
    ((kind, text),) = run(code)
    assert kind == "ValueError"
    assert "'cpu:pccl,cuda:nccl'" in text


def test_a_wrong_url_is_an_error_that_names_it() -> None:
    code = f'{MEET}\ninit("pccl", init_method="pccl://nowhere")\nanswer = asked'
    ((kind, text),) = run(code)
    assert kind == "ValueError"
    assert "pccl://nowhere" in text
