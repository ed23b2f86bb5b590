"""What implementations declare of themselves: colour in charts and family, as the runs that hold them recorded it."""

from __future__ import annotations

import json
import re

from results.store.database import Store

# Of runs from before runs recorded it. Okabe and Ito's palette, which people with a colour vision deficiency can tell
# apart, and further tones of it.
_BEFORE = {
    "torch_naive": "#7f7f7f",
    "torch_sdpa_auto": "#56b4e9",
    "torch_sdpa_flash": "#0072b2",
    "torch_sdpa_cudnn": "#009e73",
    "torch_sdpa_efficient": "#cc79a7",
    "torch_sdpa_math": "#a6761d",
    "triton_fa2": "#e69f00",
    "triton_fa2_tf32": "#d55e00",
    "gluon_hopper": "#6a3d9a",
    "gluon_fp8": "#c1121f",
    "flash_attn_4": "#c51b8a",
    "torch_flex": "#66a61e",
}


def colours(store: Store) -> dict[str, str]:
    """Return the colour of each implementation that declares one, as #rrggbb; of several runs the newest counts."""
    found = dict(_BEFORE)
    recorded = "SELECT implementations FROM runs WHERE implementations IS NOT NULL ORDER BY created NULLS FIRST"
    for (text,) in store.rows(recorded):
        found |= {name: colour for name, facts in json.loads(text).items() if _is_colour(colour := facts.get("colour"))}
    return found


def _is_colour(text: object) -> bool:
    """Return whether it is #rrggbb: runs come from elsewhere too, and a colour is written into a page's style."""
    return isinstance(text, str) and re.fullmatch("#[0-9a-f]{6}", text) is not None
