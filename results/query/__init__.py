"""Questions that pages and commands ask of the store."""
