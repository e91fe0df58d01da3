"""PTX text as data: parser, program, declarations, inlined calls."""
