"""Readers of recordings of stacks: a module an op, as `evidence.vendor_recordings` describes it."""
