"""Serve kernrec's functions to coding agents as tools of the Model Context Protocol (MCP)."""
