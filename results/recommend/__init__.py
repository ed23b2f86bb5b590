"""Recommendations from stored results: the winner of each shape, the rule, and advice by use case."""
