"""Run one campaign on all GPUs of a cluster; Ray starts and connects the processes."""
