"""The runs that a slice rests on: a question about samples or memory then looks through those alone, not all."""

from __future__ import annotations

from dataclasses import replace

from results.queries import provenance
from results.slices import Filters
from results.store import Store


def to_its_runs(store: Store, filters: Filters) -> Filters | None:
    """The same slice, naming the runs whose latencies it shows; None if it shows none."""
    runs = provenance(store, filters)["run_id"].tolist()
    return replace(filters, run=tuple(sorted(runs))) if runs else None
