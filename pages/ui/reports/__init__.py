"""The parts of the page Reports."""
