"""PTX as data: the parser, the program it makes, and inlining of calls."""
