"""Judge two implementations of a run case by case, in a checkout: `python -m kernels.examples.compare_runs`."""

import sys

from results.compare.compare import Side, compare  # a checkout has it, the package attnbench does not
from results.files import library
from results.render.terminal import comparison_lines

run_id, first, second = sys.argv[1:4] or ("h200-window_gqa", "torch_flex", "gluon_hopper")
run, measurements = library.read(library.find(run_id))
comparison = compare(Side(run, measurements, first), Side(run, measurements, second))
print(*comparison_lines(comparison), sep="\n")
