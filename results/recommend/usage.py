"""How to use an implementation: two lines of Python, what must be installed, and its source."""

from dataclasses import dataclass
from pathlib import Path

from results.paths import toml_of
from results.recommend.rule import BACKENDS

ROOT = Path(__file__).parents[2]
_FOLDERS = {"op": "kernels/attention", "decode": "kernels/decode"}
_CHECKOUT = "`pip install .` in this checkout, which installs `attnbench` with PyTorch and Triton"
_TORCH = "PyTorch"
# By the beginning of a name: what else to install, and the project.
_PROJECTS: dict[str, tuple[str, str]] = toml_of(__file__)
_OWN_DECODE = ("triton_decode", "triton_split_kv")


@dataclass(frozen=True)
class Usage:
    """What a reader needs in order to call an implementation."""

    code: str
    needs: str
    file: Path | None = None  # in this checkout
    project: str | None = None  # address of another project


def usage_of_program() -> Usage:
    """Return how a whole program uses the attention of this project, and the rules that are installed."""
    code = "import attnbench\nwith attnbench.sdpa_replacement(): main()  # whatever your program does"
    return Usage(code, _CHECKOUT)


def usage_of(name: str, level: str, *, causal: bool = True, window_size: int = 0) -> Usage | None:
    """Return how to use an implementation of a level; None for one that this checkout does not have."""
    file = _source(name, level)
    install, project = project_of(name)
    if level == "op" and (backend := BACKENDS.get(name)) and not window_size:
        code = (
            "from torch.nn.attention import SDPBackend, sdpa_kernel\n"
            f"with sdpa_kernel(SDPBackend.{backend}): "
            f"out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal={causal}, enable_gqa=True)"
        )
        return Usage(code, _TORCH, file, project)
    if file is None:
        return None
    needs = " and ".join(filter(None, (_CHECKOUT, install)))
    if level == "decode":
        code = "import attnbench\nout = attnbench.decode(q, k_cache, v_cache, cache_seqlens=lengths)"
        return Usage(code, needs, file, project) if name in _OWN_DECODE else Usage("", needs, file, project)
    call = f'registry.get("{name}").attention(q, k, v, causal={causal}, window_size={window_size}, softmax_scale=None)'
    return Usage(f"from attnbench import registry\nout = {call}", needs, file, project)


def project_of(name: str) -> tuple[str, str | None]:
    """Return what an implementation needs in addition to PyTorch and Triton, and the address of its project."""
    return next(((found[0], found[1]) for start, found in _PROJECTS.items() if name.startswith(start)), ("", None))


def _source(name: str, level: str) -> Path | None:
    """Return the file of this checkout that declares an implementation of a level, or None."""
    folder = ROOT / _FOLDERS.get(level, "")
    if level not in _FOLDERS or not folder.is_dir():
        return None
    files = sorted([*folder.glob("*.py"), *folder.glob("*/__init__.py")])
    stems = {(path.parent.name if path.name == "__init__.py" else path.stem): path for path in files}
    starts = [stem for stem in stems if name.startswith(stem)]
    return stems[max(starts, key=len)] if starts else None
