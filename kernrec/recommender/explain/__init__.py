"""Explain the costs of a config, and find the change with the largest gain."""
