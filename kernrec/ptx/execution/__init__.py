"""Emulate PTX: run the basic blocks of many thread blocks, and stop threads at barriers."""
