"""`pccl-run`: starts the workers of a host, and starts the one that ends by an error again.

`supervisor` decides, `executor` has the processes, `output` their streams, `spot` asks the cloud
whether this machine is taken back. Like `pccl-master` it loads without torch.
"""
