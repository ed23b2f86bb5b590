"""DuckDB, derived from the run folders."""
