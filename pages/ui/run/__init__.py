"""What the page Run sweep is made of: the plan's form and the progress of a sweep."""
