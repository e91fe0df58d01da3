"""Many machines: one campaign on all GPUs of a cluster, whose processes Ray starts and connects."""
