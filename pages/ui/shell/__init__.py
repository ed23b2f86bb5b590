"""The frame of the pages: navigation, data, permissions, warm start."""
