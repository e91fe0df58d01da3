"""Emulate PTX on the CPU."""
