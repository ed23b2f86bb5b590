"""The record of checked features: an entry a device, with the environment it was checked in."""

import json

from runner.machine.kernel_hash import kernel_hash
from runner.validate import features


def test_a_device_replaces_its_own_entry_and_keeps_those_of_others(tmp_path, monkeypatch) -> None:
    path = tmp_path / "features.json"
    path.write_text(json.dumps({"A GPU": {"environment": {}, "implementations": {}}}))
    arguments = ["--device", "cpu", "--record", str(path), "gluon_hopper"]
    assert features.main(arguments) == 0
    record = json.loads(path.read_text())
    (device,) = set(record) - {"A GPU"}
    assert record[device]["environment"]["kernel_hash"] == kernel_hash()
    assert record[device]["environment"]["triton"]
    assert record[device]["implementations"]["gluon_hopper"]["dropout"] == "gluon_hopper does not support dropout."
    monkeypatch.setattr(
        features.check_features, "chosen_report", lambda options: {"mine": {"softcap": {"errors": {"float16": 2.0}}}}
    )
    assert features.main(arguments) == 1, "an error beyond what is allowed"
    found = json.loads(path.read_text())[device]["implementations"]
    assert set(found) == {"gluon_hopper", "mine"}, "of the same kernels"
    monkeypatch.setattr(features, "facts", lambda device: record[device.name]["environment"] | {"kernel_hash": "other"})
    assert features.main(arguments) == 1
    assert set(json.loads(path.read_text())[device]["implementations"]) == {"mine"}
