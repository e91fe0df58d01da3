"""Reading what real devices do."""
