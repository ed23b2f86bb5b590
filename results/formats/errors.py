"""Why an upload cannot be taken."""

from __future__ import annotations


class UploadError(ValueError):
    """A file that cannot be read or imported; the message says what was given, what is possible and what to do."""


class CellError(ValueError):
    """A cell that breaks a rule; the message is the reason, the caller knows line, column and value."""
