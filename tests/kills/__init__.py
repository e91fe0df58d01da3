"""`kill -9` of commands that write to a database."""
