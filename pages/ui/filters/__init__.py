"""The filters that pages share, and their presets."""
