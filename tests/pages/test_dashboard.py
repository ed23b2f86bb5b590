"""The frame: sections and addresses."""

from pages.ui.shell import terms
from pages.ui.shell.sections import HELP, SECTIONS
from tests.pages.conftest import ROOT

ADDRESSES = (  # that links in issues and messages may hold
    *("overview", "speedup", "memory", "scaling", "accuracy", "decode", "layers", "models", "compare", "sustained"),
    *("findings", "reports", "run_sweep", "runs", "upload", "shapes", "programs"),
)


def test_the_sidebar_has_at_most_eight_entries_and_every_address_ever_given_is_a_page():
    assert len(SECTIONS) <= 8
    files = [entry.file for section in SECTIONS for entry in section.pages]
    assert set(ADDRESSES) <= set(files)
    assert all((ROOT / "pages" / f"{name}.py").is_file() for name in [*files, HELP.file])
    assert terms.link("timing") == '[?](units#timing "Device time and eager time")'
