"""Parse PTX and represent it as data."""
