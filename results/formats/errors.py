"""Why an upload is refused, and the context manager around every reader of uploads."""

from collections.abc import Iterator
from contextlib import contextmanager

_SHOWN = 200  # characters of what broke


class UploadError(ValueError):
    """A file that cannot be read or imported; the message says what was given, what is possible and what to do."""


class ReaderFault(UploadError):
    """A file that a reader broke on. It is refused like any other; the fuzz test counts it as a defect."""


class AlreadyHere(UploadError):
    """Another import brought the same file at the same moment."""


class CellError(ValueError):
    """A cell that breaks a rule; the message is the reason, the caller knows line, column and value."""


class CellFault(CellError):
    """A refused cell with its column and text."""

    def __init__(self, column: str, text: str, reason: str) -> None:
        super().__init__(reason)
        self.column, self.text = column, text


@contextmanager
def wall(where: str, doing: str = "read") -> Iterator[None]:
    """Turn any other exception into an UploadError that names the place; CellError already names a cell."""
    try:
        yield
    except (UploadError, CellError):
        raise
    except MemoryError as error:
        raise UploadError(f"{where} cannot be {doing}: it needs more memory than there is. Split it.") from error
    except Exception as error:  # a hostile file can raise anything: RecursionError, struct.error
        raise ReaderFault(f"{where} cannot be {doing} ({words_of(error)}). Nothing of the file is taken.") from error


def words_of(error: Exception) -> str:
    """Return the kind of an exception and the beginning of its message, which may quote a hostile file."""
    said = "".join(character if character.isprintable() else " " for character in str(error)[:_SHOWN])
    return f"{type(error).__name__}{said and f': {said}'}"
