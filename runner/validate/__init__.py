"""A/A tests of the measuring itself."""
