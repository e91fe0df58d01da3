"""Emulate PTX on the CPU.

The emulator runs the basic blocks of many thread blocks at the same time, and stops threads at barriers.
"""
