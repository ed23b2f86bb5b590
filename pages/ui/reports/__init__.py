"""What the page Reports is made of."""
