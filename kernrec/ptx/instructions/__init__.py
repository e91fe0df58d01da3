"""Semantics of instructions, and the decoder that they register with."""
