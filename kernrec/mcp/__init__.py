"""kernrec as tools of the Model Context Protocol, for coding agents.

server.py   the tools, their schemas, and the server over standard input and output
folder.py   files of the one folder that tools may read
"""
