"""Watch a GPU while another program runs."""
