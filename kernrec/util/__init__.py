"""Helpers without knowledge of kernels: cache, atomic file writes, arrays in files, text for people."""
