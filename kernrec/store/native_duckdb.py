"""DuckDB's native module. It has everything that kernrec needs, and the package `duckdb` takes three times as long to
import."""

try:
    import _duckdb as duckdb
except ImportError:  # Older releases have no separate native module.
    import duckdb  # type: ignore[no-redef]

__all__ = ["duckdb"]
