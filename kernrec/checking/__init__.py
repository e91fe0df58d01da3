"""Check and analyze kernel sources in a separate process, because a source may be wrong, never end, or be hostile."""
