"""A call captured as a CUDA graph: what remains is the device's work, however many launches the host would need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_WARM_UPS = 2  # what a first call sets up, compiles or allocates must not be captured


class CapturedCall:
    """A call whose launches are replayed; its result lies where the capture left it.

    The tensors that the call reads must stay where they are. All captures of a pool may reuse each other's memory, so
    that only the result of the latest replay counts.
    """

    def __init__(self, call: Callable[[], Any], pool: Any = None) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._result = call()

    def __call__(self) -> Any:
        """Replay the launches and return the result."""
        self._graph.replay()
        return self._result
