"""Write the folder that Hugging Face's package `kernels` loads: `python -m kernels.tools.hub FOLDER`.

The folder holds one "universal" build: Python and Triton, compiled on the user's machine. It can be loaded with
`get_local_kernel(FOLDER)` or uploaded to a kernel repository unchanged. The layout follows the package's documentation
(huggingface.co/docs/kernels, "Kernel requirements").
"""

import argparse
import json
import shutil
from pathlib import Path

from .. import VERSION

NAME = "attnbench"
KERNEL_VERSION = 1  # raised when the interface changes; the hub offers it as branch v1
_SOURCE = Path(__file__).parents[1]
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.md", "examples", "tools")


def write(folder: Path) -> Path:
    """Write the kernel's build into a new or empty folder and return the build's place.

    Raises FileExistsError if the folder already holds a build.
    """
    build = folder / "build" / "torch-universal"
    if build.exists():
        raise FileExistsError(f"{build} exists already. Give a new folder, or remove that one first.")
    shutil.copytree(_SOURCE, build, ignore=_LEFT_OUT)
    (build / "metadata.json").write_text(json.dumps(metadata(), indent=1) + "\n")
    return build


def metadata() -> dict[str, object]:
    """Return what the loader reads of a build: its name, a unique module name, and the needs beyond torch."""
    return {
        "name": NAME,
        "id": f"{NAME}_{VERSION.replace('.', '_')}_universal",
        "version": KERNEL_VERSION,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cuda"},
    }


def main() -> None:
    """Write the folder that is named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m kernels.tools.hub", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    try:
        print(write(parser.parse_args().folder))
    except OSError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
