"""The pages of the app: their sections in the sidebar, titles, questions and filters."""

from __future__ import annotations

from dataclasses import dataclass

_QUESTIONS = {
    "overview": "Which attention kernel is fastest on your GPU, by how much, and does it fit in memory?",
    "speedup": "How much faster than the baseline, and where does it fail?",
    "scaling": "How fast is it as sequences grow, and how close to the peak of the GPU?",
    "memory": "How much memory does it take, and from which sequence length does it not fit?",
    "accuracy": "How far from float64 is it, and what does speed cost in accuracy?",
    "shapes": "Which kernel is fastest in the shapes of real models?",
    "sustained": "Does it stay as fast once the GPU is hot?",
    "decode": "Which decode kernel is fastest at my context and batch, and what share of the bandwidth does it reach?",
    "batches": "How fast are prompts over a cache and mixed batches, and what do pages and one call for all cost?",
    "layers": "How fast is a whole attention layer by the attention inside, and how much of its time is attention?",
    "models": "I train and serve a model: which attention, how fast, how much memory, does it fit?",
    "compare": "What changed, and is it significant?",
    "reports": "What did others publish, what do we measure in the same tables, and are the numbers plausible?",
    "findings": "Which numbers are implausible, and why?",
    "run_sweep": "Measure on this machine or a Ray cluster. One sweep per device at a time.",
    "runs": "All runs and uploads, with status, machine and downloads",
    "upload": "Import results from other machines. You see a preview before anything is saved.",
    "units": "What do the words and numbers on these pages mean?",
}


@dataclass(frozen=True)
class PageEntry:
    """A page of the app."""

    file: str  # name of its file in pages/, and its address
    title: str
    icon: str
    level: str | None = None  # level of the shared filters above the page; None: the page has none
    unused: tuple[str, ...] = ()  # shared filters that have no effect on the page

    @property
    def question(self) -> str:
        """Return the question that the page answers."""
        return _QUESTIONS[self.file]


@dataclass(frozen=True)
class SidebarSection:
    """An entry of the sidebar: one page, or several pages of which the entry shows one."""

    title: str
    icon: str
    pages: tuple[PageEntry, ...]


def _of_one(entry: PageEntry) -> SidebarSection:
    return SidebarSection(entry.title, entry.icon, (entry,))


SECTIONS = (
    _of_one(PageEntry("overview", "Start", "leaderboard", "op")),
    SidebarSection(
        "Explore",
        "query_stats",
        (
            PageEntry("speedup", "Speedup", "bolt", "op"),
            PageEntry("scaling", "Scaling", "trending_up", "op"),
            PageEntry("memory", "Memory", "memory", "op", unused=("timing",)),
            PageEntry("accuracy", "Accuracy", "target", "op", unused=("mode",)),
            PageEntry("shapes", "Model shapes", "deployed_code"),
            PageEntry("sustained", "Power", "thermostat"),
        ),
    ),
    SidebarSection(
        "Decode",
        "text_rotation_none",
        (
            PageEntry("decode", "Decode", "text_rotation_none", "decode"),
            PageEntry("batches", "Prefill and mixed batches", "stacks"),
        ),
    ),
    _of_one(PageEntry("layers", "Layers", "layers", "layer")),
    _of_one(PageEntry("models", "Models", "model_training")),
    _of_one(PageEntry("compare", "Compare", "compare_arrows")),
    SidebarSection(
        "Reports",
        "article",
        (PageEntry("reports", "Reports", "article"), PageEntry("findings", "Findings", "fact_check")),
    ),
    SidebarSection(
        "Measure",
        "play_circle",
        (
            PageEntry("run_sweep", "Run sweep", "play_circle"),
            PageEntry("runs", "Runs", "history"),
            PageEntry("upload", "Upload", "upload"),
        ),
    ),
)
HELP = PageEntry("units", "Units and terms", "help")


def entry_of(file: str) -> PageEntry:
    """Return the entry of a page by the name of its file."""
    return {entry.file: entry for section in SECTIONS for entry in section.pages}.get(file, HELP)
