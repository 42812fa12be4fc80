"""elastic: boundaries for DDP and FSDP2 programs, by hooks on the objects that they have.

A step is over when the last optimizer has stepped, but calls that belong to the step may follow:
the scheduler, the scaler's update, the program's own counters. So the boundary is not in the
optimizer's hook. The first call of the next step passes it: asking the sampler for a batch, or the
forward of the model. Decides nothing about membership, and knows nothing of data but that there may
be a sampler.
"""

from __future__ import annotations

import dataclasses
import gc
import inspect
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch._compile import _disable_dynamo
from torch.nn.parallel import DistributedDataParallel

from ._elastic_checks import (
    check_ddp,
    check_fsdp,
    check_optimizers,
    fsdp_modules,
    unscheduled,
    warn_of_scheduler,
)
from ._errors import GroupClosedError, PcclError
from ._group import Boundary, ElasticGroup
from ._group import group as group_of
from ._sampler import ElasticSampler
from ._session import talk
from ._shared_state import SharedState, Take

if TYPE_CHECKING:
    from ._checkpoints import Checkpoints  # takes a second to import; the program has done that

_log = logging.getLogger("pccl")


def _ddp_kwargs() -> dict[str, Any]:
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    # With find_unused_parameters the buckets are made once, by size. Without it the second forward
    # makes new ones, with two broadcasts, and a newcomer's would be others than those of the rest.
    return {"init_sync": False, buffers: False, "find_unused_parameters": True}


ddp_kwargs = _ddp_kwargs()
"""Arguments for DistributedDataParallel in an elastic group: no collective calls of its own."""


class LeftRun(SystemExit):
    """This peer has left the run, because it asked to, and the program called another forward.

    If the program does not catch this exception, the process ends in good order, with status 0.
    """

    def __init__(self, message: str) -> None:
        """Takes the text of the exception; its exit status is 0 none the less."""
        super().__init__(message)
        self.code = 0


GRADIENTS = "gradients"


class _RunState(SharedState):
    """The state of an ElasticRun: what its sampler has counted follows from the outcomes.

    The plain value "gradients" has the numbers of the parameters with a gradient between two steps,
    if there are any (`zero_grad(set_to_none=False)`). An optimizer decays and moves a parameter
    whose gradient is zero, and leaves one alone that has none: so a newcomer gets zeros there.
    """

    run: ElasticRun | None = None

    def __setitem__(self, name: str, value: Any) -> None:
        if name != GRADIENTS:
            super().__setitem__(name, value)
            return
        there = set(value)
        for number, parameter in enumerate(self._parts["model"].parameters()):
            if number not in there:
                parameter.grad = None
            elif parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def __delitem__(self, name: str) -> None:
        if name == GRADIENTS:
            self[name] = []
        else:
            super().__delitem__(name)

    def _flat(self, take: Take | None = None) -> dict[str, Any]:
        flat = super()._flat(take)
        parameters = enumerate(self._parts["model"].parameters())
        if there := [number for number, parameter in parameters if parameter.grad is not None]:
            flat[GRADIENTS] = there
        return flat

    def settle(self, contributors: tuple[int, ...] | None) -> None:
        if self.run is not None:
            self.run._settle_before_hashing(contributors)


class ElasticRun:
    """The place of this program in the run; `elastic` returns it.

    Attributes:
        group: The ElasticGroup.
        boundary: The last boundary that was passed.
        state: The shared state: `model`, `optimizer` (several: `optimizer0`, `optimizer1`, ...),
            what was given as `state`, and `step`, the number of steps of the run. A step counts
            when its optimizers have stepped: from then on `step`, `samples` and `samples_total`
            include that step.
        left: This peer has left the run: end the program.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        group: ElasticGroup,
        state: Mapping[str, Any],
        checkpoints: Checkpoints | None = None,
        hook: Callable[[Any, Any], torch.futures.Future[Any]] | None = None,
    ) -> None:
        """Takes objects that `elastic`, which programs call, has checked."""
        self.group = group
        # Weak: the reducer of a DDP, in C++, holds the hook, which holds this.
        self._model = weakref.ref(model)
        self._checkpoints = checkpoints
        self._hook = hook or _averaged
        self.boundary: Boundary
        self._is_member = False
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        several = len(optimizers) > 1
        named = {f"optimizer{i if several else ''}": o for i, o in enumerate(optimizers)}
        self.state = _RunState(model=inner, **named, **{"step": 0, **state})
        self._optimizers = tuple(optimizers)
        self._unscheduled = unscheduled(optimizers, state)
        self._stepped: set[int] = set()  # numbers of optimizers, since the last boundary
        self._step_counted = False
        self._closures = 0  # that run now
        self._warned = False
        self._in_backward = False
        self._passed: Boundary | None = None  # a boundary whose step has not been ended here yet
        self._error: Exception | None = None  # of a reduction in this backward
        self._sharded = fsdp_modules(inner)
        self._sampler = next((p for p in state.values() if isinstance(p, ElasticSampler)), None)
        self._undo: list[Callable[[], Any]] = []
        self.state.run = self
        if checkpoints is not None:
            checkpoints.load(self.state)
        if self._sampler is not None:
            self._sampler.bind(self, ranks=talk.replica_size)
            self._sampler.settle(None)  # of a checkpoint, which was written after its step
        self._install(model, state)
        try:
            self.boundary = self.group.refresh(self.state)
        except BaseException:
            self.close()
            raise
        self._settle(())  # a newcomer's, if it was given that of the members from before theirs
        self._count_samples()
        self._is_member = True

    def __repr__(self) -> str:
        """Steps done, and where the group stands."""
        return f"ElasticRun(step={self.state['step']}, left={self.left}, group={self.group!r})"

    @property
    def left(self) -> bool:
        """This peer has left the run."""
        return self.boundary.left

    @property
    def failed(self) -> bool:
        """Whether a backward of this step failed (`on_loss="raise"`); a boundary resets it."""
        return self._in_backward  # it has not come to its end

    @property
    def samples(self) -> int:
        """Samples that counted in the last step; 0 without an ElasticSampler."""
        if self._sampler is None:
            return 0
        return self._sampler.counted_last if not self._is_unsettled() else self._samples_so_far()

    @property
    def samples_total(self) -> int:
        """Samples that have counted in the whole run; 0 without an ElasticSampler."""
        if self._sampler is None:
            return 0
        return self._sampler.counted + (self._samples_so_far() if self._is_unsettled() else 0)

    def meet(self, *, timeout_s: float | None = None) -> Boundary:
        """Passes a boundary now: at the end of the data, or if no forward follows the step.

        Counts a step if an optimizer has stepped since the last boundary. If a backward has failed
        since then (`on_loss="raise"`), the step does not count, and the gradients are cleared. If
        that boundary had `left` set, `meet` only returns it.

        Raises:
            ValueError: The program has taken some of the sampler's batches of this step and not
                all. No boundary was passed.
            PcclError: What `refresh` raises.
        """
        if self.left:
            return self.boundary
        if self._sampler is not None and self._sampler.missing and not self.failed:
            raise ValueError(
                f"the step ends with {self._sampler.missing} batches of the sampler not taken; "
                "expected optimizer.step() after the batch for which sampler.is_last"
            )
        if self._stepped:  # an optimizer that was not to step in this one counts for no less
            self._count_step()
        for module in self._sharded:  # an evaluation may have left parameters gathered
            module.reshard()
        if self._passed is None:  # else Ctrl-C has ended the call that has passed it
            try:
                self._passed = self.group.refresh(self.state, timeout_s=timeout_s)
            except PcclError as error:
                self._passed = error.boundary
                raise
        self.boundary = self._passed
        model = self._model()
        if self.failed and model is not None:
            model.zero_grad()  # also of micro-batches before: the samples of all of them go back
        self._settle(() if self.failed else _contributors(self.boundary))
        self._count_samples()
        saves = self._step_counted
        self._stepped.clear()
        self._step_counted = self._in_backward = False
        self._passed = None
        if saves and self._checkpoints is not None:
            self._checkpoints.save_when_due(self.state, self.boundary)
        return self.boundary

    def finish(self, *, timeout_s: float | None = None) -> Boundary:
        """Ends the run: saves its final state, and tells the master that the run is finished.

        Collective, after the last step of the program. Passes the boundary of that step, if an
        optimizer has stepped since the last boundary. If there are checkpoints, the writer's
        replica saves the end and waits until it is written, while the others wait. Then
        `ElasticGroup.finish` tells the master, and no process joins this run any more. If this peer
        has left the run before, `finish` only returns the boundary at which it left.

        Args:
            timeout_s: Seconds until members that did not come are evicted (None: `step_timeout_s`);
                more than writing a checkpoint takes.

        Returns:
            A boundary with `finished`. Its `writer` is true at one replica: for work that is done
            once, such as saving the model alone.

        Raises:
            RuntimeError: The run is finished, and its end could not be saved.
            PcclError: What `refresh` and `ElasticGroup.finish` raise.
        """
        if self._stepped:
            self.meet(timeout_s=timeout_s)
        if self.left or self.boundary.finished:
            return self.boundary
        if self._checkpoints is not None:
            self._checkpoints.save_end(self.state, self.boundary, may_fail=True)
        samples = self.boundary.samples
        self.boundary = self.group.finish(timeout_s=timeout_s)
        self.boundary = dataclasses.replace(self.boundary, samples=samples)
        if self._checkpoints is not None and self.boundary.finished:
            self._checkpoints.save_end(self.state, self.boundary)  # if the writer was lost
        return self.boundary

    def pass_between_batches(self) -> None:
        """Passes the boundary before the first batch of a step; the sampler calls it.

        Raises:
            ValueError: The program asks for the next step's batch and no optimizer has stepped. A
                newcomer would be given the state of the middle of a step.
        """
        if not self._stepped and not self.failed:
            raise ValueError(
                "the batches of a step are taken and no optimizer has stepped; expected "
                "optimizer.step() before the next batch is asked for, or run.meet() in a step that "
                "is left out"
            )
        self.meet()

    def close(self) -> None:
        """Removes the hooks of model, optimizers and scaler; DDP's AVG hook stays."""
        while self._undo:
            self._undo.pop()()

    # -------------------------------------------------------------------------- hooks

    def _install(self, model: nn.Module, state: Mapping[str, Any]) -> None:
        def hook(_: Any, bucket: Any) -> Any:
            return self._average(bucket)

        hook.__annotations__.clear()  # DDP wants types here or nothing, and these are texts
        if isinstance(model, DistributedDataParallel):
            model.register_comm_hook(None, hook)

        # This hook runs before FSDP's own, which gathers the parameters, and is never compiled.
        @_disable_dynamo
        def before(module: nn.Module, inputs: Any) -> None:
            self._before_forward(module, inputs)

        handle = model.register_forward_pre_hook(before, prepend=True)
        self._undo.append(handle.remove)
        for optimizer in self._optimizers:
            self._undo.append(optimizer.register_step_pre_hook(self._before_step).remove)
            self._undo.append(optimizer.register_step_post_hook(self._after_step).remove)
        for part in state.values():
            if isinstance(part, torch.amp.GradScaler):
                self._wrap(part)

    def _average(self, bucket: Any) -> torch.futures.Future[Any]:
        """Reduces by AVG, which divides by the contributors; DDP with a hook does not divide.

        If an error left this hook, torch would turn it into a RuntimeError, and DDP would stay in
        the middle of a backward. So DDP gets the gradients unchanged, and a callback after DDP's
        own raises the error with its own class.
        """
        if bucket.index() == 0:
            self._in_backward, self._error = True, None
            # The callback that DDP queues with its last bucket is in front of one queued then.
            _at_end_of_backward(lambda: _at_end_of_backward(self._end_backward))
        buffer: torch.Tensor = bucket.buffer()
        done: torch.futures.Future[Any] = torch.futures.Future()
        try:
            done = self._hook(self.group.process_group, bucket)
        except (PcclError, ValueError) as error:
            self._error = error
            done.set_result(buffer)
            return done

        def reduced(future: torch.futures.Future[Any]) -> torch.Tensor:
            try:
                return _tensor_in(future.value(), buffer)
            except Exception as error:
                # A hook that chains futures names its failure, whose class torch does not keep.
                self._error = getattr(self._hook, "failure", None) or error
                return buffer

        done = done.then(reduced)
        return done

    def _end_backward(self) -> None:
        if isinstance(self._error, GroupClosedError) and self.group.left:
            # This peer has left in the middle of the step: the gradients of this backward are lost.
            text = "this peer has left the run at once, as it wished"
            _log.info("%s", text)
            raise LeftRun(text) from self._error
        if self._error is not None:
            raise self._error
        self._in_backward = False

    def _before_forward(self, module: nn.Module, _: Any) -> None:
        if not module.training or not torch.is_grad_enabled() or self._closures > 0:
            return
        if self.failed and self._sampler is not None and self._sampler.in_step:
            raise ValueError(
                "a reduction of this step failed, and its samples go back; expected the next batch "
                "of the sampler before the next forward"
            )
        if not self.left and self._is_over():
            self.meet()
        if self.left:
            text = f"this peer has left the run, before step {self.boundary.step}, as it wished"
            _log.info("%s", text)
            raise LeftRun(text)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Passes the boundary of the last step, if a closure follows: its forwards pass none."""
        place = 1 if len(args) > 1 else "closure"
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._warn_without_boundary()
            return None
        if self._is_over() and not self.left:
            self.meet()  # the forwards of this step are in the closure

        def shielded() -> Any:
            self._closures += 1
            try:
                return closure()
            finally:
                self._closures -= 1

        if place == 1:
            return (args[0], shielded, *args[2:]), kwargs
        return args, {**kwargs, "closure": shielded}

    def _warn_without_boundary(self) -> None:
        if self._is_over() and not (self.failed or self.left or self._warned):
            self._warned = True
            _log.warning(
                "the optimizers step again, and no boundary was passed since they stepped: until "
                "one is, no newcomer is admitted, no step is counted and no checkpoint saved. A "
                "forward passes one in training mode alone (not after model.eval()), with "
                "gradients; expected run.meet() after optimizer.step() in another loop"
            )

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._stepped |= {i for i, o in enumerate(self._optimizers) if o is optimizer}
        # Not before: the program may make its schedulers after the run.
        if optimizer in self._unscheduled:
            self._unscheduled.remove(optimizer)
            warn_of_scheduler(optimizer)
        if len(self._stepped) == len(self._optimizers) and not self.failed:
            self._count_step()  # what the program reads from here on is of this step

    def _count_step(self) -> None:
        """Counts a step once, also if Ctrl-C ends its boundary and another call passes it."""
        if not self._step_counted and not self.left:
            self.state["step"] += 1
            self._step_counted = True

    def _wrap(self, scaler: Any) -> None:
        """Makes a step count that the scaler skips, for a gradient that is not finite."""
        inner = scaler.step

        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            result = inner(optimizer, *args, **kwargs)
            self._after_step(optimizer, args, kwargs)
            return result

        scaler.step = step
        self._undo.append(lambda: setattr(scaler, "step", inner))

    def _is_over(self) -> bool:
        return self.failed or len(self._stepped) == len(self._optimizers)

    def _settle(self, contributors: tuple[int, ...] | None) -> None:
        """Ends the sampler's step, if a boundary that voted has not done so before hashing."""
        if self._sampler is not None and self._sampler.in_step:
            self._sampler.settle(contributors)

    def _is_unsettled(self) -> bool:
        """Is the step over, and its boundary, which settles what has counted, still to come?"""
        sampler = self._sampler
        return self._step_counted and sampler is not None and sampler.in_step

    def _samples_so_far(self) -> int:
        """Samples of the step that is over, by the ranks that have contributed until now."""
        assert self._sampler is not None
        ranks = self.group._contributors() or range(self._sampler.members)
        return self._sampler.samples * len(ranks) // self._sampler.members

    def _count_samples(self) -> None:
        if self._sampler is not None:
            self.boundary = dataclasses.replace(self.boundary, samples=self.samples_total)

    def _settle_before_hashing(self, contributors: tuple[int, ...] | None) -> None:
        if self._sampler is None or not self._is_member:
            return
        if self.failed or contributors is not None:
            self._sampler.settle(() if self.failed else contributors)


def elastic(
    model: nn.Module,
    optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    group: dist.ProcessGroup | ElasticGroup | None = None,
    *,
    state: Mapping[str, Any] | None = None,
    checkpoints: Checkpoints | None = None,
    hook: Callable[[Any, Any], torch.futures.Future[Any]] | None = None,
) -> ElasticRun:
    """Makes a training loop elastic: boundaries between its steps, and shared state.

    Collective: `elastic` passes this peer's first boundary, and returns when this peer is a member
    and model, optimizers and `state` hold the state of the run. After that one boundary is passed
    for each step. A step is over when all optimizers have stepped (an optimizer that steps every
    fifth time makes a boundary every fifth time); a step that GradScaler skips counts too. The
    boundary is passed at the first of these after the step: the loop asks the sampler for a batch,
    `model` runs a forward in training mode with gradients, the program calls `run.meet()`. So what
    follows the optimizers in the loop (scheduler, scaler, zero_grad) belongs to the step; all
    forwards of an accumulation (`no_sync`) share one boundary; and inside an optimizer's step (in
    closures) there is none.

    A DDP gets a communication hook that reduces with AVG, which divides by the number of members
    that contributed.

    Args:
        model: `DistributedDataParallel(module, process_group=pg, **ddp_kwargs)`, or a module after
            `fully_shard(module, mesh=hsdp_mesh(pg))`.
        optimizers: The optimizers of the model's parameters.
        group: The elastic group; None: that of this process.
        state: Further things to share, by name, as SharedState takes them: schedulers, a
            torch.amp.GradScaler, an ElasticSampler, an average of the weights, plain values. A
            newcomer whose scheduler or scaler is not in it trains another model than the others.
            The plain value "step" is the number from which steps are counted (0).
        checkpoints: `Checkpoints(folder, every=STEPS)`. All of the state is loaded from the newest
            checkpoint before the first boundary. At the boundary after each `every` steps the
            writer's replica saves the state, while the training goes on; `ElasticRun.finish` saves
            the end. A write that fails is logged. Call `checkpoints.close()` before
            `destroy_process_group`. None: nothing is loaded or saved.
        hook: For a DDP: the communication hook that averages a bucket in place of the one above, as
            `quantised_hook("int8", error_feedback=True)` makes one. It is called with the elastic
            process group and the bucket; the value of its future is the averaged bucket.

    Returns:
        The run: `boundary`, `state`, `left`, `samples`, `meet()`, `finish()`.

    Raises:
        ValueError: An argument is wrong, another model of this group has a run that is not closed,
            or the checkpoint is of other things; the text says what to do. No boundary was passed.
        RuntimeError: The newest checkpoint cannot be read. No boundary was passed.
        LeftRun: (a SystemExit with status 0) Raised by a forward after this peer has left the run,
            in a loop without sampler. A sampler's batches end instead.
        EvictedError: Raised by this call or by a forward: the run goes on without this peer.
    """
    several = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
    elastic_group = group_of(group)
    if _has_open_run(model):
        raise ValueError(
            "elastic was called for this model before; expected one call (after close() a DDP is "
            "wrapped anew)"
        )
    if _has_open_run(elastic_group.process_group):
        gc.collect()  # a model that the program has dropped is no second one
    if _has_open_run(elastic_group.process_group):
        raise ValueError(
            "elastic was called for another model of this group, and each of the two would pass "
            "boundaries that a newcomer does not; expected one nn.Module that holds both models, "
            "with an optimizer for each, or close() of the other ElasticRun before"
        )
    check_optimizers(model, several)
    if hook is not None and not isinstance(model, DistributedDataParallel):
        raise ValueError(
            f"hook is given, and the model is a {type(model).__name__}; expected a "
            "DistributedDataParallel, or a group with Options(quantise=...)"
        )
    if isinstance(model, DistributedDataParallel):
        check_ddp(model, elastic_group)
    elif any(module is model for module in fsdp_modules(model)):
        check_fsdp(fsdp_modules(model), elastic_group)
    else:
        raise ValueError(
            f"model is a {type(model).__name__}; expected a DistributedDataParallel, or a module "
            "after fully_shard"
        )
    extra = dict(state or {})
    taken = {
        "model",
        GRADIENTS,
        *(f"optimizer{i}" for i in ("", *range(len(several)))),
    } & extra.keys()
    if taken:
        raise ValueError(f"state has the name {min(taken)!r}; expected names of further things")
    samplers = [part for part in extra.values() if isinstance(part, ElasticSampler)]
    if len(samplers) > 1:
        raise ValueError(f"state has {len(samplers)} samplers; expected one at most")
    if checkpoints is not None and checkpoints.every is None:
        raise ValueError("checkpoints has no `every`; expected Checkpoints(folder, every=STEPS)")
    run = ElasticRun(model, several, elastic_group, extra, checkpoints, hook)
    _runs[model] = _runs[elastic_group.process_group] = weakref.ref(run)
    return run


# The newest of each model, and of each process group.
_runs: weakref.WeakKeyDictionary[Any, Callable[[], ElasticRun | None]]
_runs = weakref.WeakKeyDictionary()


def _has_open_run(owner: nn.Module | dist.ProcessGroup) -> bool:
    """Is there a run of this model, or of this process group, that is not closed?"""
    run = _runs.get(owner, lambda: None)()
    return run is not None and bool(run._undo)


def _contributors(boundary: Boundary) -> tuple[int, ...] | None:
    """Ranks whose contributions counted in the step that has ended; None: all."""
    return boundary.contributors or None


def _averaged(group: dist.ProcessGroup, bucket: Any) -> torch.futures.Future[Any]:
    work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.AVG, group=group, async_op=True)
    assert work is not None
    done: torch.futures.Future[Any] = work.get_future()
    return done


def _tensor_in(value: Any, buffer: torch.Tensor) -> torch.Tensor:
    """The reduced bucket that a hook's future holds: a tensor of its own, or the bucket's buffer.

    Raises:
        ValueError: It holds none.
    """
    one = value[0] if isinstance(value, list) and value else value  # as a Work's future has it
    if not isinstance(one, torch.Tensor) or one.numel() != buffer.numel():
        raise ValueError(
            f"the future of hook has the value {type(one).__name__}; expected a tensor of "
            f"{buffer.numel()} elements, the reduced bucket"
        )
    return one


def _at_end_of_backward(function: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(function)
