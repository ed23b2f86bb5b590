"""The compile gate: what must fit its chip and hardly spill, and what compiling it gave.

`python -m tests.kernels.tools.gate [PACKAGE ...]` checks it, in a process of its own, since the tests' processes
interpret the kernels. Compiling all of it takes about ten minutes of a core, so compiled.json keeps what compiling
gave, by a fingerprint of all that decides the code (kernels.tools.compile.fingerprint) and by Triton's version. What
has no entry there is compiled. A fingerprint takes a tenth of a second, so compiled_sources.json keeps those of the
sources as they were recorded. `--record` writes the entries of this version of Triton.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import cache
from pathlib import Path

import triton

from kernels.tools import offline, offline_decode, offline_features, offline_generation
from kernels.tools.compile import Compilable, Resources
from kernels.tools.offline import KernelVariant

RECORD = Path(__file__).with_name("compiled.json")
SOURCES = Path(__file__).with_name("compiled_sources.json")
PACKAGES = (*offline.PACKAGES, "decode", "features", "generation")
COMMON_DIMS = (64, 128)
ALL_DIMS = (16, 32, 64, 128, 256)
# triton_fa2: precision, chips, head_dims, masks
ROWS = (
    ("ieee", (90,), (16, 32, *COMMON_DIMS), ("causal",)),
    ("ieee", (86,), COMMON_DIMS, ("causal",)),
    ("bf16x6", (90,), (32, *COMMON_DIMS), ("causal",)),
    ("half", (86, 90), ALL_DIMS, ("causal",)),
    ("half", (80, 100, 120), COMMON_DIMS, ("causal",)),
    ("half", (90,), COMMON_DIMS, ("window", "full")),
    ("tf32", (80, 86, 90, 100, 120), COMMON_DIMS, ("causal",)),
)

_OF_THEIR_OWN = {
    "decode": offline_decode.gated,
    "features": offline_features.gated,
    "generation": offline_generation.gated,
}


def wanted(package: str) -> list[Compilable]:
    """Return the variants of a package that the gate compiles."""
    if package in _OF_THEIR_OWN:
        return _OF_THEIR_OWN[package]()
    every = list(offline.variants([package]))
    if package != "triton_fa2":
        return [v for v in every if v.mask == "causal" or _is_forward_of_full_mask(v)]
    chosen = [v for row in ROWS for v in every if _is_of(v, *row)]
    whole, split = ([v for v in chosen if (v.tile.programs > 0) == is_split] for is_split in (False, True))
    return offline.largest(split) + offline.largest(whole)


def _is_forward_of_full_mask(v: KernelVariant) -> bool:
    """Return whether it is a forward of gluon_hopper, whose forms of full masks depend on the lengths."""
    return v.package == "gluon_hopper" and v.mask == "full" and v.kernel in offline.HOPPER_FORWARDS


def _is_of(v: KernelVariant, precision: str, chips: tuple[int, ...], dims: tuple[int, ...], masks: tuple) -> bool:
    return v.precision == precision and v.chip in chips and v.head_dim in dims and v.mask in masks


def most_spilled(v: Compilable) -> int:
    """Return the bytes that a thread of a variant may spill."""
    if v.package == "flash_attn_1":  # a reference: operands of four IEEE products, transposed, are not tuned for
        return {"half": 256, "ieee": 960}[v.precision]
    if v.package == "decode":
        return 1664  # of latent attention over 64 rows, most of them outside its loop; the others stay far below
    if v.package == "features":
        if v.precision == "ieee":
            return 576
        if v.chip == 90:  # all features at once; each alone hardly spills in the tiles that were timed there
            return 512 if v.head_dim == 256 else 288
        return 128
    if v.package == "gluon_hopper" and v.kernel == "packed":
        return 320  # of full masks at head_dim 64, by ptxas of Triton 3.9; 12 by that of 3.6, which was timed
    if v.package != "triton_fa2":
        return {"gluon_fp8": 64}.get(v.package, 256)
    if v.precision == "bf16x6":
        return 896  # addresses for the most part, kept over a loop of 5 to 10 thousand cycles
    if v.mask == "window":
        return 784  # the 16-bit backward at head_dim 64: 784 (both) and 608 (dkdv) on sm_90, not yet mended
    return 512  # head_dim 64 and 128 tiles on an H200 are faster with a few spilled values than the next smaller tile


@cache
def recorded() -> dict[str, dict]:
    """Return what compiling gave under this version of Triton, by fingerprint."""
    return json.loads(RECORD.read_text()).get(triton.__version__, {}) if RECORD.exists() else {}


@cache
def recorded_sources() -> dict[str, str]:
    """Return the fingerprints that sources had under this version of Triton, by `source_key`."""
    return json.loads(SOURCES.read_text()).get(triton.__version__, {}) if SOURCES.exists() else {}


def resources(v: Compilable) -> tuple[str, Resources]:
    """Return a variant's fingerprint and what it needs, from the record or else by compiling it."""
    print_ = recorded_sources().get(v.source_key()) or v.fingerprint()
    if found := recorded().get(print_):
        needs = {**found, "warnings": tuple(found["warnings"])}
        return print_, Resources(**{name: value for name, value in needs.items() if name != "variant"})
    return print_, v.resources()


def gate(variants: list[Compilable]) -> Iterator[tuple[Compilable, str, Resources]]:
    """Yield each variant with its fingerprint and what it needs."""
    with ProcessPoolExecutor(2) as pool:
        for v, (print_, needs) in zip(variants, pool.map(resources, variants), strict=True):
            yield v, print_, needs


def main(arguments: list[str] | None = None) -> int:
    """Print a line a variant; 1 if anything does not fit its chip, is serialised or spills too much."""
    parser = argparse.ArgumentParser(prog="python -m tests.kernels.tools.gate")
    parser.add_argument("packages", nargs="*", default=list(PACKAGES), help="all if none is named")
    parser.add_argument("--record", action="store_true", help="write what the variants need to compiled.json")
    chosen = parser.parse_args(arguments)
    entries: dict[str, dict] = {}
    sources: dict[str, str] = {}
    bad = {}
    try:
        for package in chosen.packages:
            variants = wanted(package)
            bad[package] = sum(_is_bad(*found, entries, sources) for found in gate(variants))
            print(f"{package}: {len(variants)} variants, {bad[package]} too large, serialised or spilling too much")
    finally:
        if chosen.record:
            _record(entries, sources, all_of_them=chosen.packages == list(PACKAGES) == list(bad))
    return int(any(bad.values()))


def _is_bad(v: Compilable, print_: str, needs: Resources, entries: dict[str, dict], sources: dict[str, str]) -> bool:
    """Print a line on a variant, note its entry and its source, and return whether it must not be."""
    is_bad = not v.fits(needs) or bool(needs.warnings) or needs.spilled_bytes > most_spilled(v)
    marks = ("" if print_ in recorded() else "(compiled)", "BAD" if is_bad else "")
    print(offline.line(v, needs), *marks, flush=True)
    sources[v.source_key()] = print_
    entries[print_] = {"variant": " ".join(str(v).split()), **asdict(needs)}
    return is_bad


def _record(entries: dict[str, dict], sources: dict[str, str], *, all_of_them: bool) -> None:
    """Write entries of this version of Triton: in place of those there are, or beside them if some are missing."""
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    kept = {} if all_of_them else known.get(triton.__version__, {})
    _write({**known, triton.__version__: {**kept, **entries}})
    known = json.loads(SOURCES.read_text()) if SOURCES.exists() else {}
    kept = {} if all_of_them else recorded_sources()
    known[triton.__version__] = dict(sorted({**kept, **sources}.items()))
    SOURCES.write_text(json.dumps(known, indent=0) + "\n")


def _write(record: dict[str, dict[str, dict]]) -> None:
    """Write a line an entry, sorted by variant, so that a change shows as one."""
    versions = []
    for version, entries in sorted(record.items()):
        ordered = sorted(entries.items(), key=lambda entry: (entry[1]["variant"], entry[0]))
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in ordered)
        versions.append(f"{json.dumps(version)}: {{\n{lines}\n}}")
    RECORD.write_text("{\n" + ",\n".join(versions) + "\n}\n")


if __name__ == "__main__":
    sys.exit(main())
