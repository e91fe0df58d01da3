"""Readers of recordings that other people made: a module for each kind of recording."""
