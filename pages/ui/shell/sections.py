"""The pages of the app, as sections.toml declares them: sidebar, titles, questions and filters."""

from dataclasses import dataclass

from results.paths import toml_of


@dataclass(frozen=True)
class PageEntry:
    """A page of the app."""

    file: str  # name of its file in pages/, and its address
    title: str
    icon: str
    question: str  # that the page answers
    level: str | None = None  # level of the shared filters above the page; None: the page has none
    unused: tuple[str, ...] = ()  # shared filters that have no effect on the page


@dataclass(frozen=True)
class SidebarSection:
    """An entry of the sidebar: one page, or several pages of which the entry shows one."""

    title: str
    icon: str
    pages: tuple[PageEntry, ...]


def _entry(said: dict) -> PageEntry:
    return PageEntry(**said | {"unused": tuple(said.get("unused", ()))})


_FOUND = toml_of(__file__)
SECTIONS = tuple(
    SidebarSection(each["title"], each["icon"], tuple(map(_entry, each["pages"]))) for each in _FOUND["sections"]
)
HELP = _entry(_FOUND["help"])


def entry_of(file: str) -> PageEntry:
    """Return the entry of a page by the name of its file."""
    return {entry.file: entry for section in SECTIONS for entry in section.pages}.get(file, HELP)
