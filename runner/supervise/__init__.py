"""Worker processes and what happens when they fail: no torch."""
