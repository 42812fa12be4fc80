"""Tests of an installation: `python -m pccl_backend.check`, with `--cuda` those of a GPU."""
