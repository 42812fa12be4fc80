"""Functions for programs about operations on device tensors."""

from __future__ import annotations

from . import _extension
from ._errors import OperationTimeoutError


def wait_for_devices(*, timeout_s: float | None = None) -> None:
    """Waits for the outcomes of all operations on device tensors that this process has in flight.

    With `PCCL_STREAM_WAIT=1` an operation may fail after its `wait()` has returned. The stream then
    goes on with the old contents of the tensors, which for outputs of all_gather and reduce_scatter
    are often undefined. Call this function before `optimizer.step()`, so that no step is made with
    such tensors. The CPU waits for the network, not for the device.

    Args:
        timeout_s: Seconds; None: as long as the operations take.

    Raises:
        PcclError: An operation has failed, now or since the last failure that was raised; its
            tensors are unchanged.
        OperationTimeoutError: `timeout_s` passed; the operations go on.
        ValueError: `timeout_s` is not above 0.
    """
    if timeout_s is not None and not timeout_s > 0:
        raise ValueError(f"timeout_s is {timeout_s!r}; expected seconds above 0, or None")
    module = _extension.loaded()
    if module is not None and not module.wait_for_devices(timeout_s):
        raise OperationTimeoutError(
            f"wait_for_devices() has timed out after {timeout_s} s; the operations go on"
        )
