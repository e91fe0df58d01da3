"""Time and power of backends' kernels for a problem on a GPU: a roofline, trees that correct it, and their file."""
