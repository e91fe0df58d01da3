"""State of a running kernel: memories, arguments, special registers and counters."""
