"""Charts, maps, tables, texts and messages that several pages draw."""
