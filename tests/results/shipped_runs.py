"""Runs of published reports as they are shipped."""

import json
from pathlib import Path

from results import reports
from results.records import Measurement, Run, measurement_from_json, run_from_json

PUBLISHED = Path(reports.__file__).parents[1] / "published"
COUNTS = {  # measurements of each run
    "published-attention_layers_a100": 184,
    "published-fa2_rtx4060": 509,
    "published-flashtile_a100": 77,
    "published-performance_guide": 76,
    "published-performance_guide-a100": 48,
    "published-performance_guide-a100-80gb": 29,
    "published-performance_guide-a10g-24gb": 12,
    "published-performance_guide-h100": 19,
    "published-performance_guide-h100-80gb": 27,
    "published-torch_vs_triton": 144,
}


def shipped(run_id: str) -> tuple[Run, list[Measurement]]:
    """A run and its measurements, from its folder."""
    folder = PUBLISHED / run_id
    lines = (folder / "measurements.jsonl").read_text(encoding="utf-8").splitlines()
    run = run_from_json(json.loads((folder / "run.json").read_text(encoding="utf-8")))
    return run, [measurement_from_json(json.loads(line)) for line in lines]
