"""The demo: `python -m pccl_backend.demo` trains while members are killed and join."""
