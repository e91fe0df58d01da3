"""Run campaigns: plan, schedule, journal, database."""
