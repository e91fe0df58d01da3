"""Provide helpers that do not depend on kernels: cache, atomic file writes, arrays in files, text for people."""
