"""Emulate PTX: schedule the basic blocks of many thread blocks, and hold them at barriers."""
