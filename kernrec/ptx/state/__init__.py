"""State of a running kernel: lanes, registers, memories, and what accesses to them cost."""
