"""Explain why a config costs what it does, and which change would gain most."""
