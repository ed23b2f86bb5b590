"""Memory laws, which predict the peak memory of a call by arithmetic. Standard library only.

The peak of a call is the sum of its inputs, results and workspace. The workspace has three parts: score matrices
(batch x heads x seqlen_q x seqlen_k), float32 numbers per query (logsumexp, row sums), and tensors of the size of q
(copies, float32 sums). The counts of each part follow from the algorithm of an implementation; they are its memory law.
The counts of our laws agree with torch's allocator on an H200 to within a tenth, which a test checks for the shipped
measurements. Two effects are not counted: partial results of SDPA's FlashAttention for few queries and many keys (300
queries, 32768 keys: 1.3 times the law), and the float32 padding of `torch_sdpa_auto` at head_dim 32 (1.1 times).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from results.levels.tensors import DTYPE_BYTES, MIB, Fields, TensorBytes, known, tensor_bytes
from results.paths import frozen, toml_of


@dataclass(frozen=True)
class WorkspaceLaw:
    """The workspace of a pass. Runs record these names, so that old names must remain readable.

    A field counts tensors if it has no other unit. "q-sized" means the size of q in the dtype of the case.
    """

    # Always needed.
    matrices: float = 0.0  # score matrices in the dtype
    float32_matrices: bool = False  # whether `matrices` are in float32
    numbers: int = 0  # float32 numbers per query of each head
    scaled: float = 0.0  # q-sized tensors
    queries_float32: float = 0.0  # q-sized tensors in float32: sums of dq over blocks of keys
    sum_head_dim: int = 0  # head_dim of these sums is padded to a multiple of it
    sum_rows: tuple[int, ...] = ()  # seqlen_q of these sums is padded to a multiple: at head_dim up to 64, and above
    ring_bytes: int = 0  # limit on the bytes of these sums, which are not needed at head_dim above 128; 0: no limit
    ring_seqlen: int = 0  # the limit holds up to this seqlen_q, half of it if causal at head_dim above 64; no window
    # Needed for some shapes.
    copies: float = 0.0  # q-sized tensors, if there are several heads
    padded: int = 0  # q, k, v and out are copied with head_dim padded to a multiple of it; 0: no copies
    padded_copies: float = 0.0  # additional q-sized padded tensors
    out_float32_above: int = 0  # out is summed in float32 above this head_dim; 0: never
    split_rows: tuple[int, ...] = ()  # limit on float32 rows of partial results, if few rows of q: 16 bits, 32 bits
    split_most: tuple[int, ...] = ()  # limit on these rows, as a multiple of the rows of q
    stored_bytes: int = 0  # limit on the bytes of P and dS that are stored at head_dim above 256 in 16 bits; 0: never
    # In float32 without a window at head_dim 65 to 128: a limit on the bytes of P and dS that are stored, the least
    # rows of queries, and the most that heads with one key head have.
    parts_stored: tuple[int, ...] = ()
    # Needed for some dtypes.
    copies_float32: float = 0.0  # q-sized tensors, if the dtype is float32
    parts_float32: int = 0  # q-sized tensors in three bfloat16 parts, instead of copies_float32 at head_dim 17 to 128
    upcast: float = 0.0  # q-sized tensors in float32, if the dtype is narrower
    quantised_rows: int = 0  # rows per float32 scale of q, k and v in 8 bits; 0: not quantized
    quantised_head_dims: tuple[int, ...] = ()  # head_dim of these is padded to the next of these numbers
    # Needed if query heads share key heads.
    expanded: float = 0.0  # copies of keys and values for each query head
    grouped_float32: float = 0.0  # dk and dv in float32
    # Needed for masks.
    mask_bytes: int = 0  # bytes of a causal mask per query-key pair of one head
    window_mask_bytes: int = 0  # bytes of a window mask per query-key pair of one head
    window_copies: float = 0.0  # q-sized tensors, if heads share keys; older than `expanded`
    # Needed for caches.
    gathered: float = 0.0  # copies of keys and values, if the cache is paged or in 8 bits
    laid_out: float = 0.0  # additional copies of keys, if several heads are paged
    zeroed: float = 0.0  # copies of values, if lengths are ragged


@dataclass(frozen=True)
class MemoryLaw:
    """The growth of an implementation's memory, and the workspace of each pass if it is confirmed.

    An implementation declares it as a dict, for example `{"growth": "linear", "fwd": {"numbers": 1}}`; `fwd` and
    `fwd_bwd` have the fields of WorkspaceLaw that are not 0. A run records the dict in `implementations`.
    """

    growth: str | None = None  # "matrix": quadratic in seqlen; "linear": linear in seqlen; None: not known
    fwd: WorkspaceLaw | None = None  # None: only the growth is known
    fwd_bwd: WorkspaceLaw | None = None

    def __post_init__(self) -> None:
        if self.growth not in (None, *GROWTHS):
            raise ValueError(f"growth {self.growth!r} is not one of {', '.join(GROWTHS)}.")

    def confirmed(self, of_pass: str | None) -> WorkspaceLaw | None:
        """Return the workspace of a pass ("fwd" or "fwd_bwd"); None if it is not confirmed."""
        return {"fwd": self.fwd, "fwd_bwd": self.fwd_bwd}.get(of_pass or "")

    def least(self, of_pass: str | None) -> WorkspaceLaw | None:
        """Return the least workspace of a pass that the growth implies; None if the growth is not known."""
        return _LEAST.get(self.growth or "", {}).get(of_pass or "")


@dataclass(frozen=True)
class MemoryParts:
    """The parts of a predicted peak, in MiB."""

    given: float  # q, k, v and, with a backward, dout
    returned: float  # out and, with a backward, the gradients
    matrices: float  # scores and probabilities
    workspace: float  # all other workspace

    @property
    def peak(self) -> float:
        """Return the sum."""
        return self.given + self.returned + self.matrices + self.workspace


_BLOCKS = 132 * 128  # rows of q with one block for each SM of an H200; with fewer rows, keys are split
_IN_PARTS = range(17, 129)  # head_dims
_PAIRS = ("sum_rows", "split_rows", "split_most")  # a number for each of two kinds of shapes
_MOST = 1 << 40  # largest number in a law; ring_bytes is the largest one
# The least workspace by growth, used if no workspace is confirmed.
_LEAST = {
    "matrix": {"fwd": WorkspaceLaw(matrices=2), "fwd_bwd": WorkspaceLaw(matrices=3)},
    "linear": {"fwd": WorkspaceLaw(numbers=1), "fwd_bwd": WorkspaceLaw(numbers=2)},
}
GROWTHS = tuple(_LEAST)
_WORDS = toml_of(__file__)


def law_from_json(record: Mapping[str, Any] | None) -> MemoryLaw:
    """Return the law of an implementation's declaration. Raises ValueError for an unknown field or a wrong value."""
    try:
        record = dict(record or {})
        passes: Any = {
            name: _workspace(record.pop(name)) for name in ("fwd", "fwd_bwd") if record.get(name) is not None
        }
        return MemoryLaw(**record, **passes)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"Not a memory law: {error}.") from error


def attention_parts(case: Fields, work: WorkspaceLaw, of_pass: str) -> MemoryParts | None:
    """Return the parts of the peak of a pass ("fwd" or "fwd_bwd"); None if a size is not stated."""
    sizes = tensor_bytes(case)
    if sizes is None:
        return None
    backward = of_pass == "fwd_bwd"
    given = sizes.q + sizes.k + sizes.v + (sizes.out if backward else 0)
    returned = sizes.out + (sizes.q + sizes.k + sizes.v if backward else 0)
    scores = float(case["batch"]) * case["num_heads"] * case["seqlen_q"] * case["seqlen_k"]
    size = DTYPE_BYTES[str(case["dtype"])]
    matrices = work.matrices * scores * (4 if work.float32_matrices else size)
    workspace = _workspace_bytes(case, work, sizes) + _padding_bytes(case, work, sizes, backward=backward)
    in_pages = known(case.get("page_size")) and case["num_kv_heads"] > 1
    laid_out = work.laid_out * sizes.k if in_pages else 0.0  # freed before the scores are in float32
    if laid_out and laid_out + size * scores > matrices:
        matrices, workspace = size * scores, workspace + laid_out
    return MemoryParts(given / MIB, returned / MIB, matrices / MIB, workspace / MIB)


def memory_words(law: MemoryLaw, of_pass: str) -> str | None:
    """Return in words what the prediction of a pass counts; None if there is no prediction."""
    work = law.confirmed(of_pass)
    if work is None:
        return _WORDS["least"].get(law.growth or "", {}).get(of_pass)
    said: dict[str, Any] = {
        **vars(work),
        "in_float32": " in float32" if work.float32_matrices else "",
        "number": "number" if work.numbers == 1 else "numbers",
        "copy": "copy" if work.copies == 1 else "copies",
        "ring_mib": work.ring_bytes // MIB,
        "half_ring": work.ring_seqlen // 2,
        "stored_mib": work.stored_bytes // MIB,
        "parts_stored_mib": sum(work.parts_stored[:1]) // MIB,
    }
    counted = [text.format_map(said) for name, text in _WORDS["counted"].items() if said[name]]
    first = "q, k, v, out" + (", their gradients" if of_pass == "fwd_bwd" else "")
    return ", ".join([first, *([] if work.matrices else ["no matrix"]), *counted])


def _workspace(record: Mapping[str, Any]) -> WorkspaceLaw:
    found: dict[str, Any] = frozen(dict(record))
    kinds = {field.name: str(field.type) for field in fields(WorkspaceLaw)}
    wrong = [name for name, value in found.items() if name in kinds and not _possible(kinds[name], value)]
    pairs = [name for name in _PAIRS if len(found.get(name, ())) not in (0, 2)] if not wrong else []
    if wrong or pairs or bool(found.get("split_rows")) != bool(found.get("split_most")):
        raise ValueError(f"Not a memory law: {', '.join(wrong or pairs or ['split_rows without split_most'])}.")
    return WorkspaceLaw(**found)


def _possible(kind: str, value: object) -> bool:
    """Return whether a field of WorkspaceLaw can have that value."""
    if kind.startswith("tuple"):
        return isinstance(value, tuple) and all(_possible("int", entry) and entry for entry in value)
    if kind == "bool" or isinstance(value, bool):
        return kind == "bool" and isinstance(value, bool)
    return isinstance(value, int | float if kind == "float" else int) and 0 <= value <= _MOST


def _workspace_bytes(case: Fields, work: WorkspaceLaw, sizes: TensorBytes) -> float:
    size = DTYPE_BYTES[str(case["dtype"])]
    found = work.numbers * sizes.lse + _dq_sum_bytes(case, work, sizes.q)
    found += work.copies * sizes.q if case["num_heads"] > 1 else 0.0
    if case["dtype"] == "float32":
        in_parts = work.parts_float32 and case["head_dim"] in _IN_PARTS
        found += 1.5 * work.parts_float32 * sizes.q if in_parts else work.copies_float32 * sizes.q
        found += _stored_parts_bytes(case, work.parts_stored) if work.parts_stored else 0.0
    in_8_bits = (known(case.get("cache_dtype")) or case["dtype"]) != case["dtype"]
    found += work.gathered * (sizes.k + sizes.v) if known(case.get("page_size")) or in_8_bits else 0.0
    found += work.zeroed * sizes.v if case.get("lengths") == "ragged" and not known(case.get("page_size")) else 0.0
    found += work.scaled * sizes.q + _masks_bytes(case, work, sizes.q) + _split_bytes(case, work)
    if size < 4:
        found += work.upcast * sizes.q * 4 / size
        scores = float(case["batch"]) * case["num_heads"] * case["seqlen_q"] * case["seqlen_k"]
        found += min(work.stored_bytes, 2 * size * scores) if case["head_dim"] > 256 else 0.0
        found += sizes.out * 4 / size if 0 < work.out_float32_above < case["head_dim"] else 0.0
    if case["num_kv_heads"] < case["num_heads"]:
        found += work.grouped_float32 * (sizes.k + sizes.v) * 4 / size
        found += work.expanded * (sizes.k + sizes.v) * case["num_heads"] / case["num_kv_heads"]
    return found + (_quantised_bytes(case, work) if work.quantised_rows else 0.0)


def _stored_parts_bytes(case: Fields, limits: tuple[int, ...]) -> float:
    """Count the bytes of P and dS in three bfloat16 parts each."""
    most, least_rows, most_shared = limits
    rows = float(case["batch"]) * case["num_heads"] * case["seqlen_q"]
    shared = case["num_heads"] / case["num_kv_heads"] * case["seqlen_q"]
    stored = 64 < case["head_dim"] <= 128 and not case["window_size"] and rows >= least_rows and shared <= most_shared
    return min(float(most), 12 * rows * case["seqlen_k"]) if stored else 0.0


def _padding_bytes(case: Fields, work: WorkspaceLaw, sizes: TensorBytes, *, backward: bool) -> float:
    """Count the bytes of padded copies in addition to the tensors of a pass without padding."""
    if not work.padded or case["head_dim"] % work.padded == 0:
        return 0.0
    wider = _multiple(case["head_dim"], work.padded) / case["head_dim"]
    inputs = sizes.q + sizes.k + sizes.v
    found = wider * inputs + (wider - 1) * sizes.out  # the result is a view of the padded out
    if backward:
        found += wider * sizes.out + (wider - 1) * inputs + (wider - 1) * work.copies * sizes.q
    return found + wider * work.padded_copies * sizes.q


def _multiple(count: float, of: int) -> int:
    """Return a count rounded up to a multiple."""
    return -(-int(count) // of) * of


def _masks_bytes(case: Fields, work: WorkspaceLaw, q: float) -> float:
    """Count the bytes of a mask tensor, which all heads share, and of the copies that it requires."""
    pairs = float(case["seqlen_q"]) * case["seqlen_k"]
    if known(case.get("window_size")):
        shared = case["num_kv_heads"] < case["num_heads"]
        return work.window_mask_bytes * pairs + (work.window_copies * q if shared else 0.0)
    return work.mask_bytes * pairs if known(case.get("causal")) else 0.0


def _split_bytes(case: Fields, work: WorkspaceLaw) -> float:
    """Count the bytes of partial results if keys are split, which happens with few rows of q."""
    rows = case["batch"] * case["num_heads"] * case["seqlen_q"]
    if not work.split_rows or rows >= _BLOCKS:
        return 0.0
    wide = case["dtype"] == "float32"
    return 4.0 * case["head_dim"] * min(work.split_most[wide] * rows, work.split_rows[wide])


def _dq_sum_bytes(case: Fields, work: WorkspaceLaw, q: float) -> float:
    """Count the bytes of the float32 sums of dq; `q` is the size of q in bytes."""
    head_dim, seqlen = case["head_dim"], case["seqlen_q"]
    padded = _multiple(head_dim, work.sum_head_dim) / head_dim if work.sum_head_dim else 1.0
    padded *= _multiple(seqlen, work.sum_rows[head_dim > 64]) / seqlen if work.sum_rows else 1.0
    sums = work.queries_float32 * padded * q * 4 / DTYPE_BYTES[str(case["dtype"])]
    if not work.ring_bytes:
        return sums
    if case["head_dim"] > 128:
        return 0.0
    longest = work.ring_seqlen // 2 if known(case.get("causal")) and case["head_dim"] > 64 else work.ring_seqlen
    short = case["seqlen_q"] <= longest and not known(case.get("window_size"))
    return min(sums, work.ring_bytes) if short else sums


def _quantised_bytes(case: Fields, work: WorkspaceLaw) -> float:
    """Count the bytes of q, k and v in 8 bits and of their scales, with head_dim and the rows of v padded."""
    rows = work.quantised_rows
    head_dim, seqlen_q, seqlen_k = (int(case[name]) for name in ("head_dim", "seqlen_q", "seqlen_k"))
    size = next((size for size in work.quantised_head_dims if head_dim <= size), head_dim)
    q_blocks, k_blocks = -(-seqlen_q // rows), -(-seqlen_k // rows)
    queries = case["num_heads"] * (seqlen_q * size + 4 * q_blocks)
    keys = case["num_kv_heads"] * (seqlen_k * size + 4 * k_blocks)
    values = case["num_kv_heads"] * (k_blocks * rows * size + 4 * k_blocks)
    return float(case["batch"]) * (queries + keys + values)
