"""What the first page is made of: the ranking and the rule."""
