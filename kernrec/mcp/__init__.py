"""Serve kernrec to coding agents as tools of the Model Context Protocol."""
