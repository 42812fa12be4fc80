"""The extension `_C`: loaded once, with the options of this process, when the first group is made.

Knows nothing of groups.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from . import _dumps, _patches
from ._config import NAME, Options, launches_block, token, unread_variables
from ._errors import BY_CODE
from .launch.environment import FINISHED, NOTE

FAILURE_CHARACTERS_MAX = 500
RUN_ENDED = "run_ended"  # the code of the error that says so

_log = logging.getLogger(NAME)

_lock = threading.Lock()
_module: Any = None
_options: Options | None = None


def extension(options: Options | None = None) -> Any:
    """The extension `_C`, loaded and configured at the first call.

    Raises:
        ImportError: It cannot be loaded, or none is built for the running torch.
        ValueError: `options` differ from those with which this process runs already, or a PCCL_*
            variable is wrong.
    """
    global _module, _options
    with _lock:
        if _module is None:
            config = (options or Options()).with_environment()
            module = _load()
            _apply_log_level(config, module)
            for text in unread_variables():
                _log.warning("%s", text)
            if not config.core_dumps:  # before a secret is in the memory of this process
                _dumps.forbid()
            with token() as line:
                module.configure_engine(config.to_engine() | {"token": line})
            module.set_stream_wait(config.stream_wait, launches_block())
            _say_goodbye_at_exit(module)
            _patches.apply(objects=config.objects)
            _module, _options = module, config
        elif options is not None and not _fit(options.with_environment()):
            raise ValueError(
                f"options={options!r}: this process runs with {_options!r} since its first group; "
                "expected the same, there is one engine a process"
            )
        return _module


def _fit(options: Options) -> bool:
    """Are they those of this process, but for the one that each group has for itself?"""
    assert _options is not None
    return dataclasses.replace(options, quantise=_options.quantise) == _options


def library() -> Any:
    """The extension as it is: without options, before the first use of `extension`.

    Raises:
        ImportError: It cannot be loaded, or none is built for the running torch.
    """
    return _load() if _module is None else _module


def loaded() -> Any:
    """The extension, None before its first use. Takes no lock: for handlers of signals."""
    return _module


def config() -> Options:
    """The options with which this process runs."""
    extension()
    assert _options is not None
    return _options


def _load() -> Any:
    from . import _C

    return _C


class _Lines(logging.StreamHandler):  # type: ignore[type-arg]
    """Lines as the engine writes them, for a program that has set up no logging of its own."""

    def __init__(self) -> None:
        super().__init__()
        form = "%(asctime)s.%(msecs)03d pccl[%(process)d] %(levelname)s %(message)s"
        self.setFormatter(logging.Formatter(form, datefmt="%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        """Leaves the record to handlers of the program, also to those that were set up later."""
        if not logging.getLogger().handlers:
            super().emit(record)


def _apply_log_level(config: Options, module: Any) -> None:
    if not _log.hasHandlers():
        _log.addHandler(_Lines())
    if config.log_level is None:
        return
    module.set_log_level(config.log_level)
    level = {"warning": logging.WARNING, "off": logging.CRITICAL + 10}.get(config.log_level)
    _log.setLevel(config.log_level.upper() if level is None else level)


def failure_of_program() -> str:
    """The error that ends this program, as its traceback names it, in one line; empty: none.

    Python notes an error that nobody caught before it runs what was registered for the exit. A
    session that a person types into goes on after an error, and ends in good order.
    """
    error = getattr(sys, "last_value", None)
    if error is None or hasattr(sys, "ps1"):
        return ""
    try:
        lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
        text = lines[-1 if isinstance(error, SyntaxError) else 0]  # that one begins with the place
    except Exception:  # code of the program makes the text
        text = type(error).__name__
    return text[:FAILURE_CHARACTERS_MAX].encode(errors="backslashreplace").decode()


def leave_run() -> None:
    """Takes this process out of its run now that its program has ended; other groups stay."""
    if _module is not None:
        _module.leave_run(failure_of_program())


def note_end_of_run() -> None:
    """Tells the `pccl-run` that has started this process to start it no more, if that is so."""
    if isinstance(getattr(sys, "last_value", None), BY_CODE.get(RUN_ENDED, ())):
        _tell_launcher(NOTE)


def note_finished() -> None:
    """Tells the `pccl-run` that has started this process that it has finished its run."""
    _tell_launcher(FINISHED)


def _tell_launcher(variable: str) -> None:
    """Makes the file that the variable names, if there is a launcher, which sets it."""
    note = os.environ.get(variable)
    if note is None:
        return
    try:
        Path(note).touch()
    except OSError as error:
        _log.warning("pccl-run is not told that the run has ended: %s", error)


def _say_goodbye_at_exit(module: Any) -> None:
    owner = os.getpid()

    def goodbye() -> None:
        if os.getpid() == owner:  # not in a forked child: the engine is its parent's
            note_end_of_run()
            module.end(failure_of_program())

    atexit.register(goodbye)
