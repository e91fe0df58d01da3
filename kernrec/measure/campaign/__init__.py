"""What is measured and in which order: plan, schedule, journal, database."""
