"""Run flash-attention's own test file on our functions: `python -m tests.peers.flash_attn CHECKOUT [-k WORDS]`.

See README.md in this folder.
"""

import argparse
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
THEIRS = ("bert_padding.py", "layers/rotary.py", "ops/triton/rotary.py")
STAND_IN = {
    "__init__.py": "from kernels.flash_attn import *\n",
    "flash_attn_interface.py": "USE_TRITON_ROCM = False\n_get_block_size_n = None\n",
    **{f"{folder}/__init__.py": "" for folder in ("layers", "ops", "ops/triton")},
}
RESULTS = ("collected", "passed", "refused", "failed", "skipped")


class Results:
    """A plugin of pytest that draws a sample and counts what became of each test function."""

    def __init__(self, sample: int | None) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self.reasons: Counter[str] = Counter()
        self._sample = sample

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep a sample of the tests that were selected, in their order."""
        if self._sample is not None and self._sample < len(items):
            kept = set(random.Random(0).sample(range(len(items)), self._sample))
            items[:] = [item for i, item in enumerate(items) if i in kept]
        for item in items:
            self._count(item.nodeid, "collected")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
        """Count a test when it was called, or skipped or failed before."""
        report = (yield).get_result()
        if report.when == "call" or report.outcome != "passed":
            refused = call.excinfo is not None and call.excinfo.typename == "UnsupportedCase"
            self._count(item.nodeid, "refused" if refused else report.outcome)
            if refused:
                self.reasons[str(call.excinfo.value)[:150]] += 1

    def _count(self, nodeid: str, result: str) -> None:
        function = nodeid.split("::")[-1].split("[")[0]
        self.counts.setdefault(function, Counter())[result] += 1

    def table(self) -> str:
        """Return the counts as a Markdown table, and the reasons of refusals."""
        lines = ["| test | " + " | ".join(RESULTS) + " |", "|---|" + "---:|" * len(RESULTS)]
        total: Counter[str] = sum(self.counts.values(), Counter())
        for name, counts in [*self.counts.items(), ("all", total)]:
            lines.append(f"| {name} | " + " | ".join(str(counts[result]) for result in RESULTS) + " |")
        lines += [f"- refused {count}: {reason}" for reason, count in self.reasons.most_common()]
        return "\n".join(lines)


def make_stand_in(checkout: Path, folder: Path) -> None:
    """Write a package flash_attn that imports our functions, and the files that their tests also import."""
    package = folder / "flash_attn"
    for name in THEIRS:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text((checkout / "flash_attn" / name).read_text())
    for name, text in STAND_IN.items():
        (package / name).write_text(text)


def main(arguments: list[str]) -> int:
    """Run the tests and print the table; 0 if none failed."""
    parser = argparse.ArgumentParser(description="Run flash-attention's own test file on our functions.")
    parser.add_argument("checkout", type=Path, help="a clone of flash-attention")
    parser.add_argument("-k", default="", metavar="WORDS", help="select tests, as pytest does")
    parser.add_argument("--sample", type=int, help="how many of the selected tests run")
    given = parser.parse_args(arguments)
    tests = given.checkout / "tests" / "test_flash_attn.py"
    if not tests.is_file():
        parser.error(f"{given.checkout} has no tests/test_flash_attn.py")
    os.environ["ATTNBENCH_CHECK"] = "1"
    results = Results(given.sample)
    with tempfile.TemporaryDirectory() as folder:
        make_stand_in(given.checkout, Path(folder))
        sys.path[:0] = [folder, str(ROOT)]
        options = ["-q", "-k", given.k, "--rootdir", folder, "-p", "no:cacheprovider", "--import-mode=importlib"]
        status = pytest.main([*options, "-c", os.devnull, str(tests)], plugins=[results])
    print(results.table())
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
