"""The parts of the page Run sweep: the form of a plan and the progress of a sweep."""
