"""What a vendor's library takes for a problem on a GPU: a roofline, trees that correct it, and their file."""
