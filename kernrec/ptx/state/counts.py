"""Counters of a launch."""


class Counts(dict[str, float]):
    """Totals by metric name; a metric that never occurred reads as 0."""

    def __missing__(self, key: str) -> float:
        return 0

    def bump(self, key: str, by: float) -> None:
        """Add `by` to a metric."""
        self[key] = self.get(key, 0) + by
