"""Run flash-attention's own test file on our functions: `python -m tests.peers.flash_attn CHECKOUT [-k WORDS]`.

See README.md in this folder.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
THEIRS = ("bert_padding.py", "layers/rotary.py", "ops/triton/rotary.py", "cute/testing.py")
STAND_IN = {
    "__init__.py": "from kernels.flash_attn import *\n",
    "flash_attn_interface.py": "from tests.peers.cute import refused as _flash_attn_varlen_forward\n"
    "USE_TRITON_ROCM = False\n_get_block_size_n = None\n",
    "cute/__init__.py": "from tests.peers.cute import *\n",
    "cute/interface.py": "from tests.peers import cute\nglobals().update(vars(cute))\n",
    "cute/cache_utils.py": "JITCache = dict\n",
    **{f"{folder}/__init__.py": "" for folder in ("layers", "ops", "ops/triton")},
}
SAMPLE = "ATTNBENCH_PEERS_SAMPLE"
RESULTS = ("collected", "passed", "refused", "failed", "skipped")


class Results:
    """A plugin of pytest that counts what became of each test function."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self.reasons: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count a test when it begins, and when it was called, or skipped or failed before."""
        counts = self.counts.setdefault(report.nodeid.split("::")[-1].split("[")[0], Counter())
        counts["collected"] += report.when == "setup"
        if report.when == "call" or report.outcome != "passed":
            said = str(getattr(getattr(report.longrepr, "reprcrash", None), "message", ""))
            refused = said.startswith("kernels.registry.UnsupportedCase")
            counts["refused" if refused else report.outcome] += 1
            if refused:
                self.reasons[said.partition(": ")[2][:150]] += 1

    def table(self) -> str:
        """Return the counts as a Markdown table, and the reasons of refusals."""
        lines = ["| test | " + " | ".join(RESULTS) + " |", "|---|" + "---:|" * len(RESULTS)]
        total: Counter[str] = sum(self.counts.values(), Counter())
        for name, counts in [*self.counts.items(), ("all", total)]:
            lines.append(f"| {name} | " + " | ".join(str(counts[result]) for result in RESULTS) + " |")
        lines += [f"- refused {count}: {reason}" for reason, count in self.reasons.most_common()]
        return "\n".join(lines)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: Any) -> None:
    """Keep a sample of a function's parameters, the same in each process, before pytest makes tests of them.

    It is drawn again after each parameter, as all values of all parameters together take minutes to list.
    """
    sample, chance, parametrize = int(os.environ.get(SAMPLE, 0)), random.Random(0), metafunc.parametrize

    def parametrize_and_draw(*arguments: Any, **named: Any) -> None:
        before = len(metafunc._calls)
        parametrize(*arguments, **named)
        calls = metafunc._calls
        if sample and before >= sample:  # each call so far gets one of the new values
            values = len(calls) // before
            metafunc._calls = [chance.choice(calls[i : i + values]) for i in range(0, len(calls), values)]
        elif sample and len(calls) > sample:
            metafunc._calls = [calls[i] for i in sorted(chance.sample(range(len(calls)), sample))]

    metafunc.parametrize = parametrize_and_draw


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Take the functions in turns, the same in each process: not all tests may be reached."""
    random.Random(0).shuffle(items)
    functions: dict[str, list[Any]] = {}
    for item in items:
        functions.setdefault(item.originalname, []).append(item)
    items[:] = [item for turn in zip_longest(*functions.values()) for item in turn if item is not None]


def make_stand_in(checkout: Path, folder: Path) -> None:
    """Write a package flash_attn that imports our functions, and the files that their tests also import."""
    theirs = {name: checkout / "flash_attn" / name for name in THEIRS}  # version 2 has no folder cute
    for name, text in (STAND_IN | {name: x.read_text() for name, x in theirs.items() if x.is_file()}).items():
        path = folder / "flash_attn" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def main(arguments: list[str]) -> int:
    """Run the tests and print the table; 0 if none failed."""
    parser = argparse.ArgumentParser(description="Run flash-attention's own test file on our functions.")
    parser.add_argument("checkout", type=Path, help="a clone of flash-attention")
    parser.add_argument("-k", default="", metavar="WORDS", help="select tests, as pytest does")
    parser.add_argument("--sample", type=int, default=0, help="how many tests of a function -k selects from")
    parser.add_argument("--seconds", type=int, default=0, help="stop after so many seconds")
    parser.add_argument("-n", default="0", metavar="PROCESSES", help="run in this many processes, by pytest-xdist")
    parser.add_argument("--file", default="test_flash_attn.py", help="of tests/, such as cute/test_flash_attn.py")
    given = parser.parse_args(arguments)
    tests = given.checkout / "tests" / given.file
    if not tests.is_file():
        parser.error(f"{given.checkout} has no tests/{given.file}")
    os.environ |= {"ATTNBENCH_CHECK": "1", SAMPLE: str(given.sample)}
    results = Results()
    for stop in (signal.SIGALRM, signal.SIGTERM):  # a command that is stopped prints the table, too
        signal.signal(stop, signal.default_int_handler)
    signal.alarm(given.seconds)
    with tempfile.TemporaryDirectory() as folder:
        make_stand_in(given.checkout, Path(folder))
        sys.path[:0] = [folder, str(ROOT)]
        os.environ["PYTHONPATH"] = os.pathsep.join((folder, str(ROOT), os.environ.get("PYTHONPATH", "")))
        options = ["-q", "-k", given.k, "-n", given.n, "--rootdir", folder, "--import-mode=importlib"]
        plugins = ["--maxschedchunk=1", "-p", "no:cacheprovider", "-p", "tests.peers.flash_attn"]
        status = pytest.main([*options, *plugins, "-c", os.devnull, str(tests)], plugins=[results])
    print(results.table())
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
