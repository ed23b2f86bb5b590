"""The parts of the page Models: the memory calculator and the measurements."""
