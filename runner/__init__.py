"""Plans sweeps, measures them in worker processes and writes each number to a run folder."""

import importlib.util
import sys
from pathlib import Path

_REPOSITORY = Path(__file__).parents[1]
_spec = importlib.util.find_spec("kernels")
if _spec is None or _spec.origin is None or Path(_spec.origin).parents[1] != _REPOSITORY:
    # Hugging Face's package of the same name comes first on the path. The one here serves its names too.
    sys.path.insert(0, str(_REPOSITORY))
    sys.modules.pop("kernels", None)
