"""The parts of the page Upload."""
