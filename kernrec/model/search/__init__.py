"""Which config to measure next."""
