"""Where the repository's folders are. Standard library only."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PUBLISHED = REPOSITORY / "results" / "published"  # run folders and reports that ship with the repository
