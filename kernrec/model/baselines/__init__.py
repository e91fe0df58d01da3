"""Predict time and power of backends' kernels for a problem on a GPU, by trees that correct a roofline."""
