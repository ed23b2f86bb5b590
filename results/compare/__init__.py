"""Verdicts between two sides, and their statistics."""
