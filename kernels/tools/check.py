"""Check every kernel on small shapes: compile it, run it under NVIDIA's checker, or compare its features.

    python -m kernels.tools.check compile [WORD ...]     registers, spills, shared memory of each variant; no GPU needed
    python -m kernels.tools.check sanitize [WORD ...]    for compute-sanitizer, see kernels.tools.sanitize
    python -m kernels.tools.check features [NAME ...]    features against the float64 oracle, on a GPU

All three use the list of `kernels.tools.cases`. Words select the cases or variants whose names contain all of them;
`--list` prints the names.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from ..tables import shared_memory
from . import cases
from .cases import CHIPS, Case
from .compile import RecordedLaunch, Resources, fits, resources_of

_TILE = ("block_m", "block_n", "block_dv", "rows", "page")  # constants that a line shows, where a kernel has them


class Variant(NamedTuple):
    """A kernel as one case launches it on a chip."""

    chip: int  # 90 for compute capability 9.0
    case: Case
    launch: RecordedLaunch

    @property
    def kernel(self) -> str:
        """Return the kernel's name."""
        return self.launch.kernel.__name__.removesuffix("_kernel")

    @property
    def precision(self) -> str:
        """Return the dtype, or for products of float32 how they are computed: ieee, bf16x6 or tf32."""
        named = self.launch.constants().get("precision")
        return named if named and self.case.dtype == "float32" else self.case.dtype

    @property
    def name(self) -> str:
        """Return package, kernel, chip, precision, head_dim, mask, and the tile."""
        constants, options = self.launch.constants(), self.launch.options
        tile = [f"{name} {constants[name]}" for name in _TILE if constants.get(name)]
        tile += ["split"] * bool(constants.get("split"))
        tile += [f"warps {options.get('num_warps', 4)}", f"stages {options.get('num_stages', 1)}"]
        case = self.case
        words = (case.package, self.kernel, f"sm_{self.chip}", self.precision, str(case.head_dim), case.mask)
        return " ".join((*words, *tile))

    def resources(self) -> Resources:
        """Compile the kernel and return the resources of a block."""
        return resources_of(self.chip, self.launch)


def variants(chips: Iterable[int] = CHIPS, wanted: Iterable[Case] | None = None) -> Iterator[Variant]:
    """Yield each variant that the cases, all by default, launch on the chips."""
    from .capture import launches_on

    wanted = list(cases.compiled_cases() if wanted is None else wanted)
    for chip in chips:
        known = set()
        for case in wanted:
            if not case.runs_on(chip):
                continue
            with launches_on(chip) as launches:
                case.compute(*case.inputs("cuda"))
            for launch in launches:
                if launch.identity() not in known:
                    known.add(launch.identity())
                    yield Variant(chip, case, launch)


def largest(found: Iterable[Variant]) -> list[Variant]:
    """Return, of the variants of a Triton kernel that differ only in the tile, the one with the largest tile.

    If it fits, the others do. Gluon kernels and those with features differ in more than the tile, so all of them stay.
    """
    chosen: dict[Any, Variant] = {}
    for v in found:
        split = bool(v.launch.constants().get("split"))
        key: Any = (v.chip, v.kernel, v.case.package, v.precision, v.case.head_dim, v.case.mask, split)
        if v.launch.kernel.is_gluon() or v.case.package == "features":
            key = (v.chip, v.launch.identity())
        if key not in chosen or _tile_size(v.launch) > _tile_size(chosen[key].launch):
            chosen[key] = v
    return list(chosen.values())


def _tile_size(launch: RecordedLaunch) -> tuple[int, int]:
    """Return the rows in shared memory, streamed ones once a stage, and the scores of a warp."""
    constants, options = launch.constants(), launch.options
    rows = constants.get("block_m") or 1, constants.get("block_n") or 1
    in_memory = max(rows) + min(rows) * options.get("num_stages", 1)
    return in_memory, rows[0] * rows[1] // options.get("num_warps", 4)


def compiled(wanted: Sequence[Variant], threads: int = 2) -> Iterator[tuple[Variant, Resources]]:
    """Yield each variant with the resources of a block, in order."""
    with ThreadPoolExecutor(threads) as pool:
        yield from zip(wanted, pool.map(Variant.resources, wanted), strict=True)


def line(variant: Variant, resources: Resources) -> str:
    """Return a line of the printed table."""
    shared, limit = resources.shared_bytes / 1024, shared_memory()[variant.chip] / 1024
    needs = f"shared {shared:.1f} of {limit:.0f} KB, {resources.registers} registers, {resources.spilled_bytes} spilled"
    problems = [] if fits(variant.chip, resources) else ["DOES NOT FIT"]
    return "  ".join((f"{variant.name:90} {needs}", *problems, *resources.warnings))


def _compile(options: argparse.Namespace) -> int:
    """Print a line for each variant; return 1 if any does not fit or is serialized."""
    found = [v for v in variants(options.chips) if set(options.words) <= set(v.name.split())]
    found = largest(found) if options.largest else found
    if options.list:
        print("\n".join(v.name for v in found))
        return int(not found)
    failed = 0
    for v, needs in compiled(found, options.threads):
        print(line(v, needs), flush=True)
        failed += not fits(v.chip, needs) or bool(needs.warnings)
    print(f"{len(found)} variants, {failed} too large or serialized", file=sys.stderr)
    return int(failed > 0 or not found)


def main(arguments: list[str] | None = None) -> int:
    """Run one of the checks; return 1 if it finds a problem."""
    from . import sanitize
    from .check_features import add_choices, chosen_report, is_right

    parser = argparse.ArgumentParser(prog="python -m kernels.tools.check", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="compile | sanitize | features")
    compile_ = commands.add_parser("compile", help="registers, spills and shared memory of each variant; no GPU needed")
    sanitizing = commands.add_parser("sanitize", help="run each small case, for compute-sanitizer")
    features = commands.add_parser("features", help="compare each feature with the float64 oracle on a GPU")
    for each in (compile_, sanitizing):
        each.add_argument(
            "words", nargs="*", metavar="WORD", help="words that the name contains; all if there are none"
        )
        each.add_argument("--list", action="store_true", help="print the names only")
    compile_.add_argument("--chips", type=int, nargs="+", default=CHIPS, choices=CHIPS)
    compile_.add_argument("--largest", action="store_true", help="only the largest tile of each kernel")
    compile_.add_argument("--threads", type=int, default=2)
    add_choices(features)
    compile_.set_defaults(command=_compile)
    sanitizing.set_defaults(command=lambda chosen: sanitize.main(chosen.words, list_only=chosen.list))
    features.set_defaults(command=lambda chosen: int(not is_right(chosen_report(chosen))))
    options = parser.parse_args(arguments)
    return options.command(options)


if __name__ == "__main__":
    sys.exit(main())
