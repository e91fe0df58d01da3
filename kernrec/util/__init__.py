"""Helpers that know nothing of kernels: cache, atomic file writes, arrays in files, text for people."""
