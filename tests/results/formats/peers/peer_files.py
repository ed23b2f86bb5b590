"""Excerpts of other tools' files, as the importers read them; SOURCES.md says where each is from."""

from pathlib import Path

from results.formats import Understanding, understand
from results.records import Measurement

EXCERPTS = Path(__file__).parent / "excerpts"


def excerpt(name: str) -> bytes:
    return (EXCERPTS / name).read_bytes()


def understood(name: str, data: bytes | None = None) -> Understanding:
    """The excerpt under a name that says nothing, so that only its content can tell what it is."""
    return understand("file.txt", excerpt(name) if data is None else data)


def numbers(found: Understanding, metric: str) -> list[Measurement]:
    return [measurement for measurement in found.measurements if measurement.metric == metric]
