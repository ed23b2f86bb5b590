"""What implementations declare that a reader chooses by, and the record of what was checked."""

import json

from kernels import registry
from results import capabilities
from results.capabilities import CAPABILITIES, checked, declares, declaring, dtypes_checked, record
from results.paths import PUBLISHED


def test_every_capability_that_runs_record_has_words_and_none_is_declared_by_accident() -> None:
    facts = registry.get("triton_fa2").facts
    assert set(registry.FEATURES) < set(CAPABILITIES) <= set(registry.CAPABILITIES)
    assert all(declares(facts, name) == registry.get("triton_fa2").declares(name) for name in CAPABILITIES)
    said = {"a": {"window": True, "features": ["softcap"]}, "b": {"window": "yes", "features": "softcap"}, "c": {}}
    assert declaring(said, ["window", "softcap"]) == ["a"]
    assert declaring(said, []) == ["a", "b", "c"]


def test_checked_are_those_whose_errors_were_within_what_is_allowed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(capabilities.paths, "PUBLISHED", tmp_path)
    assert record() == {}
    errors = {"a": [0.9, None], "b": [0.5, 1.1], "c": [None, None]}
    results = {name: {"softcap": {"errors": dict(enumerate(each))}} for name, each in errors.items()}
    entry = {"environment": {}, "implementations": results | {"d": {"softcap": "d does not support softcaps."}}}
    (tmp_path / capabilities.RECORD).write_text(json.dumps({"A GPU": entry}))
    assert checked(record()["A GPU"]) == {"softcap": ["a"]}
    assert dtypes_checked(entry) == [0, 1]


def test_what_ships_says_where_it_was_checked() -> None:
    for gpu, entry in record().items():
        assert gpu.startswith("NVIDIA")
        assert {"created", "torch", "triton", "kernel_hash"} <= set(entry["environment"])
        later = {"two_windows", "block_mask", "mask_gradient"}  # declared after the records were made
        found = set(registry.FEATURES) - set(checked(entry))
        assert found <= later, f"every feature is right somewhere: {PUBLISHED}"
