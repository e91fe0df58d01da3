"""Watching a GPU while another program runs."""
