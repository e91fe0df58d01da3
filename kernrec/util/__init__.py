"""Provide helpers that do not depend on kernels: a cache, atomic file writes, arrays in files, and text for people."""
