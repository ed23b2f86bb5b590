"""The memory calculator: whether a model fits a card, and up to what context, by the formulas of level model."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from results import levels
from results.gpus import GPUS, bounds_of, title
from results.levels import model_memory
from results.levels.memory import MemoryLaw
from results.levels.model import TRAINING, config_of
from results.levels.model_memory import ModelMemory
from results.records import Case, case_to_json

RUNTIME_MB = 500.0  # CUDA's context and libraries, outside torch's allocator; 0.4 to 0.6 GiB on GPUs of 2026


@dataclass(frozen=True)
class CardSize:
    """A memory size of cards."""

    memory_mb: float  # total MiB by nvidia-smi
    example: str

    @property
    def usable_mb(self) -> float:
        """Return the memory that torch can use."""
        return self.memory_mb - RUNTIME_MB


_EXAMPLES = (
    "rtx 4060", "rtx 4070", "rtx 4080", "rtx 4090", "rtx 5090", "a100 sxm4 40gb", "l40s", "h100 sxm", "rtx pro 6000",
    "h200 sxm", "b200", "b300",
)  # fmt: skip
# If the total of nvidia-smi is not recorded, a GB counts as 10^9 bytes, which is less than any recorded total.
CARDS = {
    f"{chip.memory_gb} GB": CardSize(chip.total_mb or chip.memory_gb * 1e9 / 2**20, title(name))
    for name, chip in ((name, GPUS[name]) for name in _EXAMPLES)
}


@dataclass(frozen=True)
class CardFit:
    """Whether a case fits a card."""

    card: str
    example: str
    usable_mb: float
    needs_mb: float
    longest: int  # longest context that fits, in tokens; 0 if none does

    @property
    def fits(self) -> bool:
        """Return whether the case fits."""
        return self.needs_mb <= self.usable_mb


def card_of(gpu: str) -> str | None:
    """Return the largest card size that is not above the memory of a GPU, a row of the table or a device."""
    chip = GPUS.get(gpu) or bounds_of(gpu)
    sizes = [name for name in CARDS if int(name.split()[0]) <= chip.memory_gb]
    return sizes[-1] if chip.known and sizes else None


def on_cards(case: Case, law: MemoryLaw, mode: str) -> list[CardFit]:
    """Return whether a case fits each of CARDS; nothing if its model or a size is not known."""
    needs = levels.memory_mb(case, law, mode)
    if needs is None:
        return []
    longest = {name: levels.largest_seqlen(case, law, mode, card.usable_mb) or 0 for name, card in CARDS.items()}
    return [CardFit(name, card.example, card.usable_mb, needs, longest[name]) for name, card in CARDS.items()]


def moments(case: Case, law: MemoryLaw, mode: str) -> list[ModelMemory]:
    """Return the parts of a case's memory at each moment that can be its peak."""
    fields, config = case_to_json(case), config_of(case_to_json(case))
    of_pass = levels.level_of(case).memory_pass(mode)
    work = law.confirmed(of_pass)
    if config is None or work is None:
        return []
    if mode in TRAINING:
        return list(model_memory.training_moments(fields, config, work))
    found = model_memory.inference(fields, config, work)
    return [found] if found else []


def parts(moment: ModelMemory) -> Iterator[tuple[str, float]]:
    """Yield the parts of a moment by name, in MiB."""
    yield from ((name, value) for name, value in asdict(moment).items() if name != "moment")
