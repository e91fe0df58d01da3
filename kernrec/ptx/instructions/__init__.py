"""Semantics of the instructions, each registered with the decoder."""
