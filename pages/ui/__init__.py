"""What the pages share: filters, charts, messages."""
