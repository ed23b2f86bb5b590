"""Shared parts of the pages: filters, charts, messages."""
