"""Record which problems of attention a program computes, and how often.

While a recording is open, calls of PyTorch's scaled_dot_product_attention, of this package's functions, of modules of
transformers that use it, of FlexAttention, and of the FlashAttention packages that are imported by then are counted for
the whole process. No tensor is kept; a mask of FlexAttention is evaluated at some rows, which may read its tensors. A
call within another one is not counted again, such as PyTorch's function that `kernels.attention` falls back to.

Functions given to torch.compile run eagerly meanwhile, so that each call is seen, and their problems have the regime
"captured". Calls captured in a CUDA graph are counted at the capture, not at its replays.
"""

import functools
import importlib
import inspect
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import dispatch, drop_in, feature_calls, flash_attn, problem, transformers
from .decode import triton_decode, triton_mla
from .features import Features, SequenceBounds, one_window, reach
from .plans import wants_gradients
from .problem import CAPTURED, FORWARD, TRAINING, Problem

FORKED = "processes that were forked, whose calls are not recorded"
GRAPHS = "calls captured in CUDA graphs, counted once and not at each replay"
_MASKS = {"causal": False, "window_size": 0, "softmax_scale": None}  # arguments of `kernels.attention`, not features
_ROWS = 16  # of FlexAttention's masks: as many rows are compared with the masks that have a name
_COMPILED = os.path.join("torch", "_dynamo", "eval_frame.py"), "compile_wrapper"  # runs what torch.compile was given


class _Seen(NamedTuple):
    """What is known of a call."""

    problem: Problem
    scale: float | None = None  # of the scores, where the call names one


class _Described(Exception):
    """Ends a call that was made for its problem alone."""


@dataclass(eq=False)
class Recording:
    """The calls that were made while a recording was open."""

    calls: Counter[Problem] = field(default_factory=Counter)
    unseen: Counter[str] = field(default_factory=Counter)  # what is missing, in words
    modules: dict[Problem, set[str]] = field(default_factory=dict)  # classes of the modules around the calls
    scales: dict[Problem, set[float]] = field(default_factory=dict)  # of the calls that name one
    stepped: Counter[int] = field(default_factory=Counter)  # steps of each optimizer, by its id

    @property
    def steps(self) -> int:
        """Return the steps of training: those of the optimizer that made most."""
        return max(self.stepped.values(), default=0)

    def as_record(self) -> dict[str, Any]:
        """Return the recording as plain data, the most frequent problem first."""
        calls = [
            {"problem": _stated(asked), "count": count, "modules": sorted(self.modules[asked])}
            | ({"scales": sorted(self.scales[asked])} if asked in self.scales else {})
            for asked, count in self.calls.most_common()
        ]
        return {"calls": calls, "steps": self.steps, "unseen": dict(self.unseen)}


_OPEN: list[Recording] = []
_LOCK = threading.Lock()
_THREAD = threading.local()


@contextmanager
def recording() -> Iterator[Recording]:
    """Count the problems of attention that the process computes within the block; see the module."""
    opened = Recording()
    with _LOCK:
        if not _OPEN:
            _open()
        _OPEN.append(opened)
    try:
        yield opened
    finally:
        with _LOCK:
            if opened in _OPEN:  # a forked process has none
                _OPEN.remove(opened)
                if not _OPEN:
                    _close()


_UNDO: list[Callable[[], Any]] = []


def _open() -> None:
    drop_in.observe(functools.partial(_watched, describe=functools.partial(_problem, _of_sdpa)))
    _UNDO.append(lambda: drop_in.observe(None))
    for module, name, describe in _WATCHED:
        _replace(module, name, functools.partial(_problem, describe))
    _replace(importlib.import_module(_FLEX), "flex_attention", functools.partial(_problem, _of_flex))
    for name, words in _UNSEEN:
        if hasattr(torch, name):
            _replace(torch, name, lambda *x, said=words, **y: said)
    for module in filter(None, map(sys.modules.get, _FLASH)):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if hasattr(flash_attn, name) and name.startswith("flash_attn_"):
                _replace(module, name, functools.partial(_of_flash, name, inspect.signature(function)))
    _UNDO.append(register_optimizer_step_post_hook(_stepped).remove)
    before = torch.compiler.set_stance("force_eager")
    _UNDO.append(functools.partial(before.__exit__, None, None, None))


def _replace(module: Any, name: str, describe: Callable[..., _Seen | str]) -> None:
    """Count the calls of a module's function until `_close`."""
    original = getattr(module, name)
    setattr(module, name, _watched(original, describe))
    _UNDO.append(functools.partial(setattr, module, name, original))


def _close() -> None:
    while _UNDO:
        _UNDO.pop()()


def _watched(original: Callable[..., Any], describe: Callable[..., _Seen | str]) -> Callable[..., Any]:
    """Return a function that counts the calls that return, unless they are part of another one."""

    @functools.wraps(original)
    def watched(*arguments: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling() or getattr(_THREAD, "inside", False):
            return original(*arguments, **options)
        try:
            found = describe(*arguments, **options)
        except Exception as fault:  # of arguments that the function itself will refuse
            found = f"calls that cannot be described ({type(fault).__name__})"
        if getattr(_THREAD, "describing", False):
            raise _Described(found)
        _THREAD.inside = True
        try:
            result = original(*arguments, **options)
        finally:
            _THREAD.inside = False
        _count(found)
        return result

    return watched


def _count(found: _Seen | str) -> None:
    around = _module_around()
    with _LOCK:
        for each in _OPEN:
            if isinstance(found, str):
                each.unseen[found] += 1
                continue
            each.calls[found.problem] += 1
            each.modules.setdefault(found.problem, set()).update(around)
            if isinstance(found.scale, int | float):  # a tensor is not read: the GPU may be busy or in a capture
                each.scales.setdefault(found.problem, set()).add(float(found.scale))


def _stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    with _LOCK:
        for each in _OPEN:
            each.stepped[id(optimizer)] += 1


def _module_around() -> list[str]:
    """Return the class of the innermost nn.Module whose method is running, if there is one."""
    owners = (frame.f_locals.get("self") for frame in _frames())
    return next(([type(owner).__name__] for owner in owners if isinstance(owner, torch.nn.Module)), [])


def _frames() -> Iterator[FrameType]:
    """Yield the frames of the calls that are running, the innermost first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def _problem(describe: Callable[..., _Seen | str], *arguments: Any, **options: Any) -> _Seen | str:
    """Return what is known of a call, its direction and regime among it, or what is missing."""
    if torch._C._are_functorch_transforms_active():
        return "calls within transforms of torch.func"
    found = describe(*arguments, **options)
    if isinstance(found, str):
        return found
    return found._replace(problem=replace(found.problem, chip=None, regime=_regime()))


def _regime() -> str:
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        _count(GRAPHS)
        return CAPTURED
    compiled = any(x.f_code.co_name == _COMPILED[1] and x.f_code.co_filename.endswith(_COMPILED[0]) for x in _frames())
    return CAPTURED if compiled else problem.EAGER


def _of_tensors(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, window: Any, features: Sequence[str], scale: Any
) -> _Seen | str:
    if any(type(x) not in dispatch.PLAIN or x.is_nested for x in (q, k, v)):
        return "calls with nested tensors or other classes of tensors"
    causal, window = one_window(bool(causal), window)
    if isinstance(window, tuple):
        return "calls with windows of two widths"
    direction = TRAINING if wants_gradients(q, k, v) else FORWARD
    kind = q.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        q, k, v = (_cast(x, torch.get_autocast_dtype(kind)) for x in (q, k, v))
    found = problem.of_tensors(q, k, v, causal, window, direction)
    if found is None:
        return "calls whose tensors have no common batch, heads or dtype"
    return _Seen(replace(found, features=tuple(dict.fromkeys((*found.features, *features)))), scale)


def _cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    kept = not x.is_floating_point() or x.dtype == torch.float64
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype if kept else dtype, device="meta")


def _of_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **asked: Any) -> _Seen | str:
    causal, window_size, scale = (asked.pop(name, default) for name, default in _MASKS.items())
    return _of_tensors(q, k, v, causal, window_size, _names(asked), scale)


def _names(asked: dict[str, Any]) -> tuple[str, ...]:
    return Features(**feature_calls.Wanted.taken_from(asked)[1]).asked


def _of_sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **_: Any,
) -> _Seen | str:
    if query.is_nested or not query.dim() == key.dim() == value.dim() >= 3:
        return "calls with nested tensors or tensors of less than three dimensions"
    q, k, v = (x[None] if x.dim() == 3 else x.flatten(0, -4) for x in (query, key, value))
    if is_causal and q.shape[-2] > k.shape[-2]:
        return "calls with a causal mask over more queries than keys"
    if is_causal:  # PyTorch aligns the mask with the first key: later keys are not seen
        k, v = k[..., : q.shape[-2], :], v[..., : q.shape[-2], :]
    asked = (("mask", attn_mask is not None), ("dropout", dropout_p > 0))
    return _of_tensors(q, k, v, is_causal, 0, [name for name, there in asked if there], scale)


def _of_flex(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    *_: Any,
    **__: Any,
) -> _Seen | str:
    if score_mod is not None:
        return "calls of FlexAttention with a score_mod"
    if block_mask is None:
        return _of_tensors(query, key, value, False, 0, (), scale)
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return "calls of FlexAttention with a mask, captured in CUDA graphs"
    return _of_tensors(query, key, value, *_named_mask(block_mask, query, key.shape[-2]), scale)


def _named_mask(block_mask: Any, query: torch.Tensor, keys: int) -> tuple[bool, int, tuple[str, ...]]:
    """Return causal, the window and the features of a mask of FlexAttention, by some rows of the outermost heads."""
    (batch, heads, queries, _), device = query.shape, query.device
    batches, of_heads = (torch.tensor([0, size - 1], device=device) for size in (batch, heads))
    rows = torch.linspace(0, queries - 1, _ROWS, device=device).round().long()
    visible = sys.modules[_FLEX].create_mask(
        lambda b, h, q, k: block_mask.mask_mod(batches[b], of_heads[h], rows[q], k), 2, 2, _ROWS, keys, device
    )
    before = rows[:, None] + (keys - queries) - torch.arange(keys, device=device)  # positions from a key to a query
    width = int(visible[0, 0, -1].sum())  # the last query's keys
    for causal, window in ((False, 0), (True, 0), (True, width), (False, width)):
        left, right = reach(causal, window, queries + keys)
        if torch.equal(visible, ((before <= left) & (before >= -right)).expand_as(visible)):
            listed = not causal and not window and block_mask.sparsity() > 0  # by blocks, not by a function
            return causal, window, ("mask",) if listed else ()
    return False, 0, ("mask",)


def _of_module(call: Any, mask: torch.Tensor | None, asked: dict[str, Any]) -> _Seen | str:
    features = Features(**call.features).asked
    if mask is not None:
        padded = mask.dim() != 2 or mask.dtype == torch.bool
        features = (*features, "mask" if padded else "document_ids")
    elif asked.get("cu_seq_lens_q") is not None:
        features = (*features, "varlen")
    causal, window = (False, 0) if mask is not None and mask.dim() != 2 else (call.causal, call.window_size)
    return _of_tensors(call.q, call.k, call.v, causal, window, features, call.scale)


def _of_rows(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: SequenceBounds, asked: dict[str, Any], masks: Any
) -> _Seen | str:
    causal, window = one_window(bool(masks[0]), masks[1])
    if isinstance(window, tuple):
        return "calls with windows of two widths"
    direction = TRAINING if wants_gradients(q, k, v) else FORWARD
    found = problem.of_rows(q, k, v, len(bounds.starts_q), causal, window, direction)
    return _Seen(replace(found, features=(*found.features, *_names(asked))), masks[2])


def _of_flash(name: str, signature: inspect.Signature, *arguments: Any, **options: Any) -> _Seen | str:
    """Return what is known of a call of a FlashAttention package, by a call of ours that ends where it is known."""
    given = signature.bind(*arguments, **options).arguments
    if any(given.get(each) is not None for each in ("k_cache", "block_table", "page_table")):
        return "calls of FlashAttention over a cache"
    _THREAD.describing = True
    try:
        getattr(flash_attn, name)(**given)
    except _Described as found:
        return found.args[0]
    finally:
        _THREAD.describing = False
    return "calls that cannot be described"


def _of_decode(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, **options: Any) -> _Seen:
    table, layout = options.get("page_table"), options.get("kv_layout", "NHD")
    heads, rows = (1, 2) if table is None or layout == "HND" else (2, 1)
    capacity = k_cache.shape[rows] * (1 if table is None else table.shape[1])
    (batch, num_heads, queries, head_dim), window = q.shape, options.get("window_size", 0)
    sizes = (batch, num_heads, k_cache.shape[heads], queries, capacity, head_dim, v_cache.shape[3])
    kind = problem.mask_of(options.get("causal", True), window)
    found = Problem(str(q.dtype).removeprefix("torch."), kind, *sizes, window_size=window, operator="decode")
    return _Seen(found, options.get("softmax_scale"))


def _of_latents(q: torch.Tensor, kv_cache: torch.Tensor, **options: Any) -> _Seen:
    latents = kv_cache[:, None]
    found = _of_decode(q, latents, latents[..., : options.get("latent_dim", 512)], **options, kv_layout="HND")
    return found._replace(problem=replace(found.problem, operator="mla_decode"))


def _stated(asked: Problem) -> dict[str, Any]:
    """Return the fields of a problem that say something."""
    return {name: value for name, value in asdict(asked).items() if value not in (None, ()) and name != "chip"}


_FLEX = "torch.nn.attention.flex_attention"  # importing it takes seconds, so that only a recording does
_FLASH = ("flash_attn", "flash_attn.flash_attn_interface", "flash_attn_interface", "flash_attn.cute")  # modules
# Functions that are called by their module's name, so that replacing the name is enough; SDPA has its own way.
_WATCHED: tuple[tuple[Any, str, Callable[..., _Seen | str]], ...] = (
    (dispatch, "attention", _of_attention),
    (feature_calls, "attention_of_rows", _of_rows),
    (triton_decode, "decode", _of_decode),
    (triton_mla, "mla_decode", _of_latents),
    (transformers, "_by_mask", _of_module),
)
_UNSEEN = (
    ("_native_multi_head_attention", "calls of nn.MultiheadAttention's fast path for inference"),
    ("_transformer_encoder_layer_fwd", "calls of nn.TransformerEncoderLayer's fast path for inference"),
)


def _forked_parent() -> None:
    for each in _OPEN:
        each.unseen[FORKED] += 1


def _forked_child() -> None:
    """Record nothing in a forked process, which may hold a lock that no thread releases."""
    global _LOCK
    _LOCK = drop_in._LOCK = threading.Lock()
    _THREAD.inside = False
    _OPEN.clear()
    with suppress(RuntimeError):
        _close()


os.register_at_fork(after_in_parent=_forked_parent, after_in_child=_forked_child)
