"""Sweeps of level model: whole language models in generation, prefill and training."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from results.levels.model_table import UnknownModel, model_case, models
from results.records import OPTIMIZERS, Case
from runner.sweeps.grid import Sweep, SweepError, SweepFile

INFERENCE, TRAINING = ("prefill", "decode"), ("fwd", "bwd", "step", "train")
_FILE = SweepFile(__file__)
_FULL = ("triton_fa2", "gluon_hopper")  # our kernels for whole sequences
_CACHED = ("triton_split_kv", "triton_step")  # our kernels for a cache
_TORCH = ("torch_naive", "torch_sdpa_auto")
_STATES = tuple(name for name in OPTIMIZERS if name != "none")
_MODES = (*INFERENCE, *TRAINING)


@dataclass(frozen=True, kw_only=True)
class ModelSweep(Sweep):
    """Two grids of cases for each model: inference by context and batch, training by seqlen and train_batch."""

    LEVEL = "model"
    AXES = _FILE.axes(subject=tuple(models()), optimizer=_STATES, modes=_MODES)
    FOLDED = "Dtype, optimizer, checkpointing, compiling, depths, modes and timings"
    FOLDED_OF_A_CELL = "Lengths, batches, optimizer, checkpointing and compiling"

    subject: tuple[str, ...]
    context: tuple[int, ...] = ()
    batch: tuple[int, ...] = (1,)
    seqlen: tuple[int, ...] = ()
    train_batch: tuple[int, ...] = ()
    dtype: tuple[str, ...] = ("bfloat16",)
    optimizer: tuple[str, ...] = ("adamw_bf16",)
    checkpointing: tuple[bool, ...] = (False,)
    compiled: tuple[bool, ...] = (False,)
    depths: tuple[int, ...] = ()  # two numbers of layers for extrapolation; empty: no extrapolation
    modes: tuple[str, ...] = _MODES
    implementations: tuple[str, ...] = _TORCH + _FULL + _CACHED

    @property
    def extrapolates(self) -> bool:
        """Return whether `depths` are given."""
        return bool(self.depths)

    def takes_part(self, case: Case, implementation: str, mode: str) -> bool:
        """Return whether the mode fits the case, and our kernels are used for their purpose (a cache or sequences)."""
        decoding = case.seqlen_q < case.seqlen_k
        if mode in TRAINING or case.optimizer != "none":
            return mode in TRAINING and case.optimizer != "none" and implementation not in _CACHED
        return decoding == (mode == "decode") and implementation not in (_FULL if decoding else _CACHED)

    def _cases(self) -> Iterator[Case]:
        if self.depths and not (len(self.depths) == 2 and 0 < self.depths[0] < self.depths[1]):
            raise SweepError(
                f"depths {','.join(map(str, self.depths))} are not two growing numbers of layers, such as 4,8."
            )
        try:
            for subject, compiled, dtype in product(self.subject, self.compiled, self.dtype):
                said = {"subject": subject, "compiled": compiled, "dtype": dtype}
                yield from (*self._inference(said), *self._training(said))
        except UnknownModel as error:
            raise SweepError(str(error)) from error

    def _inference(self, said: dict[str, Any]) -> Iterator[Case]:
        for mode, context, batch in product(INFERENCE, self.context, self.batch):
            if mode in self.modes:
                yield model_case(**said, batch=batch, seqlen=context, query_tokens=1 if mode == "decode" else None)

    def _training(self, said: dict[str, Any]) -> Iterator[Case]:
        if not set(TRAINING) & set(self.modes):
            return
        settings = product(self.seqlen, self.train_batch, self.optimizer, self.checkpointing)
        for seqlen, batch, optimizer, checkpointing in settings:
            yield model_case(**said, batch=batch, seqlen=seqlen, optimizer=optimizer, checkpointing=checkpointing)


SWEEP = ModelSweep
SWEEPS = _FILE.sweeps(ModelSweep)
