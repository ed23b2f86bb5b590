"""A layer: projections around an attention. Only published reports have results of it so far.

Operations, bytes and memory are those of the attention inside, so they bound the layer's from below.
"""

from __future__ import annotations

from dataclasses import replace

from results.levels import op

LEVEL = replace(op.LEVEL, name="layer", subjects=("mha_fused", "mha", "gqa", "mqa", "mla"))
