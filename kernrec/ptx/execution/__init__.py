"""Emulate PTX on the CPU: run the basic blocks of many thread blocks at once, and stop threads at barriers."""
