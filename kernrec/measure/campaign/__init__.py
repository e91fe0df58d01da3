"""Campaigns: plan, schedule, journal, database."""
