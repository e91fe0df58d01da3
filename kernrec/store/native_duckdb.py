"""Import DuckDB's native module, which has all that kernrec needs.

The package `duckdb` takes three times as long to import.
"""

try:
    import _duckdb as duckdb
except ImportError:  # Older releases of DuckDB have no separate native module.
    import duckdb  # type: ignore[no-redef]

__all__ = ["duckdb"]
