"""Measuring the cells of a case, within a worker process: torch."""
