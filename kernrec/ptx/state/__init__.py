"""State of a running kernel: lanes, registers, memories, and costs of accesses."""
