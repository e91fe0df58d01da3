"""Define the state of an emulated kernel: memories, arguments, special registers and counters."""
