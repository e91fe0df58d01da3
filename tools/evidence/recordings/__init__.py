"""Readers of recordings that other people made, with one module per kind of recording."""
