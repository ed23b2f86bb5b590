"""The table of implementations in kernels/README.md says what the registry says."""

import re
from pathlib import Path

from kernels import registry

README = Path(__file__).parents[2] / "kernels" / "README.md"


def declared(name: str) -> list[str]:
    """Return the columns of an implementation after its description."""
    entry = registry.get(name)
    least, most = entry.min_compute_capability, entry.max_compute_capability
    chips = "any" if least is None else ".".join(map(str, least)) + (" and up" if most != least else "")
    chips += ", CPU" * ("cpu" in entry.devices)
    return [", ".join(entry.dtypes), chips, *("yes" if x else "no" for x in (entry.window, entry.backward))]


def test_the_table_of_implementations_says_what_the_registry_says() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^\n]+) \|$", README.read_text(), re.MULTILINE)
    found = {name: columns.split(" | ") for name, columns in rows if name in registry.implementations()}
    assert found == {name: declared(name) for name in registry.implementations()}
