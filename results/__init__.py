"""Records in, tables out: what was measured, where and when, and how it is kept."""
