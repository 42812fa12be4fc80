"""Fits a straight line with processes that are killed and started while it goes on."""

import signal
import time

import torch
import torch.distributed as dist

import pccl_backend as pccl

STEPS, PAUSE_S = 600, 0.5  # a pause after each step gives time to kill something

pccl.leave_on(signal.SIGTERM)  # leave in good order when the machine is taken back
dist.init_process_group("pccl")  # elastic, as PCCL_MASTER=pccl://HOST:PORT is set
group = pccl.group()
weight = torch.zeros(2)
state = {"step": 0, "weight": weight}  # all members share these values, bit for bit
boundary = group.refresh(state)  # a newcomer is admitted here and receives `state`
while not boundary.left and state["step"] < STEPS:
    x = torch.rand(1000)  # other points at each member
    error = weight[0] * x + weight[1] - (2 * x + 1)
    gradient = torch.stack([(error * x).mean(), error.mean()])
    dist.all_reduce(gradient, op=dist.ReduceOp.AVG)  # done again if a member is lost
    weight -= 0.5 * gradient
    state["step"] += 1
    print(f"step {state['step']:2d}  rank {group.rank} of {group.size}  weight {weight.tolist()}")
    time.sleep(PAUSE_S)
    boundary = group.refresh(state)
if not boundary.left:
    group.finish()  # called by all members: nobody can join the finished run
print(f"ended after step {state['step']} with weight {weight.tolist()}")
dist.destroy_process_group()
