"""Many machines: one campaign on all cards of a cluster, whose processes Ray starts and connects."""
