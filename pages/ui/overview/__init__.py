"""The parts of the page Start: the ranking and the rule."""
