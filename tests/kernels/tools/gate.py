"""The compile gate: the kernels of `kernels.tools.cases` must fit their chips and hardly spill.

`python -m tests.kernels.tools.gate [PACKAGE ...]` checks it, in a process in which Triton compiles; the tests' own
processes interpret the kernels. Compiling everything takes about ten minutes of a core, so compiled.json records the
results by fingerprint (kernels.tools.compile.fingerprint) and by Triton's version. A kernel without an entry is
compiled. A fingerprint takes a tenth of a second, so compiled_sources.json records the fingerprints of the sources.
`--record` writes the entries of this version of Triton.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cache
from pathlib import Path

import triton

from kernels.tools import check
from kernels.tools.cases import Case, compiled_cases
from kernels.tools.check import Variant
from kernels.tools.compile import Resources, fingerprint, fits, source_key

RECORD = Path(__file__).with_name("compiled.json")
SOURCES = Path(__file__).with_name("compiled_sources.json")
_TABLES = json.loads(Path(__file__).with_name("gate.json").read_text())
# Package, chips, dtypes, head_dims, masks. Of each kernel, the largest tile is compiled (kernels.tools.check.largest).
ROWS = _TABLES["rows"]
PACKAGES = tuple(dict.fromkeys(row[0] for row in ROWS))
# Feature cases that use most of a kernel's registers and memory, by head_dim; the others are parts of these.
FEATURES = _TABLES["features"]


@cache
def wanted(package: str) -> list[Variant]:
    """Return the variants of a package that the gate compiles."""
    rows = [row for row in ROWS if row[0] == package]
    found = [
        v for row in rows for v in check.variants(row[1], [case for case in compiled_cases() if _is_of(case, row)])
    ]
    if package == "gluon_hopper":  # of full masks the forwards, whose forms depend on the lengths
        found = [v for v in found if v.case.mask == "causal" or v.kernel == "forward"]
    return check.largest(found)


def _is_of(case: Case, row: tuple) -> bool:
    package, _, dtypes, head_dims, masks = row
    named = case.package == package and case.dtype in dtypes and case.head_dim in head_dims and case.mask in masks
    if package != "features":
        return named
    few = case.dtype == "bfloat16" or case.head_dim == 128
    return named and few and case.feature in FEATURES[str(case.head_dim)]


def most_spilled(v: Variant) -> int:
    """Return the bytes that a thread of a variant may spill."""
    if v.case.package == "flash_attn_1":  # a reference: the operands of its IEEE products are not tuned for
        return 256 if v.case.dtype == "bfloat16" else 960
    if v.case.package == "decode":
        return 1664  # latent attention over 64 rows, mostly outside its loop; the others spill far less
    if v.case.package == "features":
        return 1088  # several features of a packed call at once; most calls spill far less
    if v.case.package == "gluon_fp8":
        return 128  # three consumers with a masked last block; the others spill at most 48
    if v.case.package == "gluon_hopper":  # the forward of full masks at head_dim 64 keeps few registers for loading
        return 896 if v.kernel == "forward" and v.case.mask == "full" else 320
    if v.precision == "bf16x6":
        return 896  # mostly addresses, kept over a loop of 5,000 to 10,000 cycles
    if v.case.mask == "window":
        return 784  # the 16-bit backward at head_dim 64 on sm_90
    return 512  # head_dim 64 and 128 tiles on an H200 are faster with a few spilled values than the next smaller tile


@cache
def recorded() -> dict[str, dict]:
    """Return the results of compiling with this version of Triton, by fingerprint."""
    return json.loads(RECORD.read_text()).get(triton.__version__, {}) if RECORD.exists() else {}


@cache
def recorded_sources() -> dict[str, str]:
    """Return the fingerprints of sources with this version of Triton, by `source_key`."""
    return json.loads(SOURCES.read_text()).get(triton.__version__, {}) if SOURCES.exists() else {}


def resources(v: Variant) -> tuple[str, Resources]:
    """Return a variant's fingerprint and resources, from the record or else by compiling it."""
    print_ = recorded_sources().get(source_key(v.chip, v.launch)) or fingerprint(v.chip, v.launch)
    if found := recorded().get(print_):
        needs = {**found, "warnings": tuple(found["warnings"])}
        return print_, Resources(**{name: value for name, value in needs.items() if name != "variant"})
    return print_, v.resources()


def gate(variants: list[Variant]) -> Iterator[tuple[Variant, str, Resources]]:
    """Yield each variant with its fingerprint and resources."""
    with ThreadPoolExecutor(2) as pool:
        for v, (print_, needs) in zip(variants, pool.map(resources, variants), strict=True):
            yield v, print_, needs


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each variant; return 1 if any does not fit its chip, is serialized or spills too much."""
    parser = argparse.ArgumentParser(prog="python -m tests.kernels.tools.gate")
    parser.add_argument("packages", nargs="*", default=list(PACKAGES), help="all by default")
    parser.add_argument("--record", action="store_true", help="write the results to compiled.json")
    chosen = parser.parse_args(arguments)
    entries: dict[str, dict] = {}
    sources: dict[str, str] = {}
    bad = {}
    try:
        for package in chosen.packages:
            variants = wanted(package)
            bad[package] = sum(_is_bad(*found, entries, sources) for found in gate(variants))
            print(f"{package}: {len(variants)} variants, {bad[package]} too large, serialized or spilling too much")
    finally:
        if chosen.record:
            complete = chosen.packages == list(PACKAGES) == list(bad)
            _record(RECORD, {} if complete else recorded(), entries)
            _record(SOURCES, {} if complete else recorded_sources(), sources)
    return int(any(bad.values()))


def _is_bad(v: Variant, print_: str, needs: Resources, entries: dict[str, dict], sources: dict[str, str]) -> bool:
    """Print a line for a variant, note its entries, and return whether it violates a limit."""
    is_bad = not fits(v.chip, needs) or bool(needs.warnings) or needs.spilled_bytes > most_spilled(v)
    marks = ("" if print_ in recorded() else "(compiled)", "BAD" if is_bad else "")
    print(check.line(v, needs), *marks, flush=True)
    sources[source_key(v.chip, v.launch)] = print_
    entries[print_] = {"variant": v.name, **asdict(needs)}
    return is_bad


def _record(path: Path, kept: dict, entries: dict) -> None:
    """Write the entries of this version of Triton and those kept, one per line, sorted so that a diff is short."""
    known = json.loads(path.read_text()) if path.exists() else {}
    known[triton.__version__] = {**kept, **entries}
    versions = []
    for version, each in sorted(known.items()):
        ordered = sorted(each.items(), key=lambda entry: (str(entry[1]), entry[0]))
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in ordered)
        versions.append(f"{json.dumps(version)}: {{\n{lines}\n}}")
    path.write_text("{\n" + ",\n".join(versions) + "\n}\n")


if __name__ == "__main__":
    sys.exit(main())
