"""Which checks there are, in the order in which they run."""

from __future__ import annotations

from typing import Any

from .cases import HOLD, Case, Check

SOAK = "CHECK_SOAK_S"  # how long, for device_speed.py
SOAK_LIMIT_S = 60.0  # beside that
SPEED_LIMIT_S = 180.0

PLAIN = (
    Check("versions", (Case(".installation:versions", ranks=1),), needed=True),
    Check("build", (Case(".installation:build", ranks=1),), needed=True),
    Check("options", (Case(".installation:options", ranks=1),)),
    Check("ports", (Case(".ports:ports", ranks=1),)),
    Check("fixed group", (Case(".fixed:results", ranks=3),)),
    Check("loss of a rank", (Case(".fixed:loss", ranks=3, dies=2),)),
    Check("elastic group", (Case(".elastic:survives", ranks=3, dies=2, master=True),)),
)


def _both(function: str, name: str = "") -> tuple[Case, Case]:
    """Cases with a wait() that holds the CPU, and with one that holds the stream."""
    cpu = f"{name}, CPU waits" if name else "CPU waits"
    return Case(function, cpu, environment={HOLD: "0"}), _held(function, name)


def _held(function: str, name: str = "", **more: Any) -> Case:
    environment = {HOLD: "1", **more.pop("environment", {})}
    held = f"{name}, stream waits" if name else "stream waits"
    return Case(function, held, environment=environment, **more)


def of_device(soak_s: float) -> tuple[Check, ...]:
    """Those of a GPU; the last one takes so long."""
    ends, holds, order = ".device_ends", ".device_holds", ".device_order"
    connections = ("1", "32")
    soaked = {SOAK: str(soak_s)}
    return (
        Check("GPU", (Case(f"{order}:environment", ranks=1),), needed=True),
        Check(
            "GPU results",
            (*_both(".device_results:results"), *_both(".device_results:one_device", "one GPU")),
        ),
        Check("order", _both(f"{order}:order")),
        Check("queue full", (_held(f"{holds}:launches"),)),
        Check(
            "held calls",
            (
                _held(f"{holds}:calls"),
                _held(f"{order}:order", "blocking", environment={"CUDA_LAUNCH_BLOCKING": "1"}),
            ),
        ),
        Check("first use", (_held(f"{order}:first_use"),)),
        Check(
            "copies",
            (
                _held(f"{holds}:copies"),
                *(
                    _held(f"{holds}:copies", n, environment={"CUDA_DEVICE_MAX_CONNECTIONS": n})
                    for n in connections
                ),
            ),
        ),
        Check("streams", (_held(f"{holds}:streams"),)),
        Check("graphs", _both(f"{ends}:captured")),
        Check(
            "ends",
            (
                Case(f"{ends}:killed", "killed, CPU waits", dies=1, environment={HOLD: "0"}),
                _held(f"{ends}:killed", "killed", dies=1),
                _held(f"{ends}:timed_out", "time-out"),
                _held(f"{ends}:aborted", "abort"),
                _held(f"{ends}:destroyed", "destroy"),
                _held(f"{ends}:exits", "exit"),
            ),
        ),
        Check("memory", _both(".device_memory:bounded")),
        Check(
            "torch calls",
            (
                *_both(".device_torch:device_id", "device_id"),
                Case(".device_torch:device_alone", "GPU alone"),
                Case(".device_torch:beside_gloo", "gloo for the CPU"),
            ),
        ),
        Check("trainers", _both(".device_trainers:trainers")),
        Check(
            "speed",
            (
                Case(
                    ".device_speed:speed",
                    "CPU waits",
                    environment={HOLD: "0"},
                    limit_s=SPEED_LIMIT_S,
                ),
                _held(".device_speed:speed", limit_s=SPEED_LIMIT_S),
            ),
        ),
        Check(
            "soak",
            (_held(".device_speed:soak", environment=soaked, limit_s=soak_s + SOAK_LIMIT_S),),
        ),
    )
