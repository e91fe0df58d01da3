"""Tests that kill commands with `kill -9` while they write to a database."""
