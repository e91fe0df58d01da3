"""Serve kernrec to coding agents as tools of the Model Context Protocol.

server.py   the tools, their schemas, and the server over standard input and output
folder.py   files of the only folder that tools may read
"""
