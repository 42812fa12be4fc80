"""Is this thread a simulated member (testing.py)? A leaf: join, group and leave_on ask here."""

from __future__ import annotations

import threading
from typing import Any


class _Here(threading.local):
    group: Any = None


_here = _Here()


def enter(group: Any) -> None:
    """This thread is the member that holds `group`, an ElasticGroup."""
    _here.group = group


def group_here() -> Any:
    """The ElasticGroup of the simulated member whose program this thread runs; None elsewhere."""
    return _here.group
