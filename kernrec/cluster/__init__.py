"""Run one measuring campaign on all GPUs of a cluster. Ray starts the processes and connects them."""
