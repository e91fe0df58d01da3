"""Time and power of a vendor's library for a problem on a GPU: a roofline, trees that correct it, and their file."""
