"""Search: decide which config to measure next."""
