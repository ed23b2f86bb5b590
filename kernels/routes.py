"""Which of our kernels computes a problem, by the routes of `kernels.tables`, and the plans that launch them.

Both packages agree on what passes from a forward to a backward (out, and the base-2 logsumexp, +inf for a row that sees
no key), so each direction takes the one that is faster there. Few query tokens that want no gradients, as in generating
text, go to the kernels of `kernels.decode` instead.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import index
from types import SimpleNamespace
from typing import Any

import torch

from . import choice, invariant, plans, problem, registry, tables
from .attention.gluon_hopper.configs import takes_head_dims
from .features import Window, reach
from .plans import Decided, Masks, Options, Prepare, Tensors, check_inputs, plan_key
from .problem import CAPTURED, EAGER, FORWARD, TRAINING
from .ruled import Attend, Bind, Ruled
from .tables import Table, family

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_HEAD_DIM = plans.MAX_HEAD_DIM
MIN_CAPABILITY = (8, 0)
HOPPER = (9, 0)
TRITON = importlib.util.find_spec("triton") is not None

_ROUTES: Decided[Route | _DecodingRoute | Ruled | None] = Decided()
_CAPTURED: Decided[Route | None] = Decided()  # of the operators of compiled programs, where a rule decides
_PACKED: Decided[choice.Decision] = Decided()
_UNDECIDED: Any = object()

IN_PLACE = "triton_paged"  # of level decode
_PORTABLE = "triton_fa2"  # for what no table names
_SDPA, _PYTORCH = "torch_sdpa_", "torch_sdpa_auto"
# From how many keys on triton_decode computes up to 16 query tokens: where many key heads in all (batch x num_kv_heads)
# are shared by query heads, and elsewhere. Columns: head_dims are multiples of them.
_DECODE = family("sm_86")["decode routes"]
DECODED_KEYS_SHARED, DECODED_KEYS, MANY_KEY_HEADS, DECODED_COLUMNS = (
    _DECODE.first(name=name)[0] for name in ("shared_keys", "keys", "shared_from_key_heads", "columns")
)


@dataclass(frozen=True)
class Route:
    """How tensors of one shape, stride and alignment are computed: a `kernels.plans.AttentionPlan`."""

    prepare: Callable[[torch.Tensor], torch.Tensor] | None  # copies what the kernels cannot address; None: nothing
    output: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # out alone
    forward: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]  # out and lse
    backward: Callable[..., Tensors]  # q, k, v, out, lse, dout to dq, dk, dv
    forward_with_more: Callable[..., Tensors] | None = None  # out, lse and the natural lse; see GluonHopperPlan
    bound = plans.bound


def route_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: *Options
) -> Route | _DecodingRoute | Ruled | None:
    """Look up what computes these tensors, decided at the first call of their shape.

    None where neither our kernels take them nor a rule names an implementation. Rules do not decide windows of two
    widths.
    """
    key = plan_key(q, k, v, options)
    found = _ROUTES.get(key, _UNDECIDED)
    if found is _UNDECIDED:
        found = _ROUTES.remember(key, _decided(q, k, v, *options))
    return found


def plan_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any) -> Route | _DecodingRoute | None:
    """Return our kernels for these tensors, even if a rule names others; None if they do not take them."""
    found = route_of(q, k, v, *options)
    return found.plan(q, k, v) if isinstance(found, Ruled) else found


def bound(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any) -> Callable[..., torch.Tensor]:
    """Return what computes such tensors: a kernel's plan, what a rule names, or PyTorch's function.

    options: causal, window_size and softmax_scale.
    """
    if invariant.wanted():
        return invariant.bound(q, k, v, *options)
    found = route_of(q, k, v, *options)
    return found.bound(q, k, v) if found else without_ours(q, k, v, *options)


def forget() -> None:
    """Forget all routes and rules, so that rules which were installed meanwhile are read at the next call."""
    plans.forget(Decided)
    choice.forget()


def decisions(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: *Options, regime: str = EAGER
) -> dict[str, choice.Decision]:
    """Return what the rules decide for each direction; nothing if there is no rule for such tensors."""
    causal, window_size, softmax_scale = options
    scaled = softmax_scale is None or softmax_scale > 0
    if not scaled or not choice.anything_named(q.device):
        return {}
    today = built_in(q, k, v, *options)
    asked = {way: problem.of_tensors(q, k, v, bool(causal), window_size, way) for way in today}
    found = {way: replace(each, regime=regime) for way, each in asked.items() if each}
    return {way: choice.decide(q.device, each, today[way]) for way, each in found.items()}


def packed_decision(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sequences: int, masks: Masks, ours: bool, room: int = 0
) -> choice.Decision | None:
    """Return what rules decide for packed rows (total, heads, head_dim); `ours`: our kernels take them.

    With `room` for so many keys of a sequence, k and v are pages (pages, page_size, heads, width), and the decision is
    whether a kernel reads them IN_PLACE.
    """
    if masks[2] <= 0 or not (q.numel() and k.numel() and sequences and choice.anything_named(q.device)):
        return None
    way = TRAINING if plans.wants_gradients(q, k, v) else FORWARD
    key = (way, q.dtype, q.device, q.shape, k.shape, v.shape, sequences, masks, ours, room)
    found = _PACKED.get(key)
    today: tuple[str, ...] = ("triton_varlen",)
    if found is None and room:
        sizes = {"batch": sequences, "num_heads": q.shape[1], "num_kv_heads": k.shape[2], "seqlen_k": room}
        sizes |= {"seqlen_q": max(1, round(len(q) / sequences)), "head_dim": q.shape[2], "head_dim_v": v.shape[3]}
        asked = problem.of_cache(q, k, sizes, bool(masks[0]), masks[1], paged=True)
    elif found is None:
        batch = q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None]
        names = packed_names(*batch, sequences, masks) if ours else {}
        today = tuple(dict.fromkeys(name for each, name in names.items() if way == TRAINING or each == "forward"))
        asked = problem.of_rows(q, k, v, sequences, masks[0], masks[1], way)
    return found or _PACKED.remember(key, choice.decide(q.device, asked, today))


def give_up(name: str, refused: Exception) -> None:
    """Say once that an implementation which a rule names refused a packed call, and leave such calls to the tables."""
    choice.warn_once(f"The implementation that a rule names refused a call: {refused}")
    _PACKED.update((key, choice.Decision(None, str(refused))) for key, x in _PACKED.items() if x.implementation == name)


def captured_plan(way: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any) -> Route | None:
    """Return the plan of a direction in a compiled program, where a rule names one of our kernels for it."""
    if not choice.anything_named(q.device):
        return None
    key = (way, *plan_key(q, k, v, options))
    found = _CAPTURED.get(key, _UNDECIDED)
    if found is _UNDECIDED:
        decided = decisions(q, k, v, *options, regime=CAPTURED).get(way)
        named = decided.implementation if decided else None
        found = _CAPTURED.remember(key, _own(named, q, k, v, *options) if named else None)
        if named and found is None:
            choice.warn_once(f"A rule names {named} for compiled programs, which has no operator for such calls.")
    return found


def pytorch_in_program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any) -> Attend | None:
    """Return PyTorch's function where a rule or a table leaves a call of a compiled program to it; None elsewhere.

    It is part of the program, so the choice is made when that is traced, and `kernels.torch_ops` declares the answers
    that are constants then. Only rules make constants of the sizes.
    """
    if choice.anything_named(q.device):
        strided = tuple((tuple(map(index, x.shape)), tuple(map(index, x.stride()))) for x in (q, k, v))
        named = named_in_program(plans.wants_gradients(q, k, v), q.dtype, q.device, strided, *options)
        if named:
            return _sdpa(options, named.removeprefix(_SDPA), q, k, v) if named.startswith(_SDPA) else None
    by_table = plans.wants_gradients(q, k, v) and left_to_pytorch(q, k, *options[:2])
    return _sdpa(options, "auto", q, k, v) if by_table else None


def named_in_program(
    training: bool, dtype: torch.dtype, device: torch.device, strided: Any, *options: Any
) -> str | None:
    """Return the implementation that a rule names for a compiled call of such sizes and strides of q, k and v."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q, k, v = (torch.empty_strided(*each, dtype=dtype, device=device) for each in strided)
        decided = decisions(q, k, v, *options, regime=CAPTURED).get(TRAINING if training else FORWARD)
    return decided.implementation if decided else None


def built_in(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: *Options) -> dict[str, tuple[str, ...]]:
    """Return the implementations that the tables choose for each direction: for training of forward and backward."""
    causal, window_size, softmax_scale = options
    if not _ours(q, k, v, softmax_scale):
        return dict.fromkeys((FORWARD, TRAINING), (f"{_SDPA}{_variant(q, k, causal, window_size)}",))
    names = [name(way, q, k, softmax_scale, window_size, causal) for way in ("forward", "backward")]
    forward = "triton_decode" if decodes(q, k, v) else names[0]
    training = (_PYTORCH,) if left_to_pytorch(q, k, causal, window_size) else tuple(dict.fromkeys(names))
    return {FORWARD: (forward,), TRAINING: training}


def left_to_pytorch(
    q: torch.Tensor, k: torch.Tensor, causal: bool, window_size: int, asked: tuple[str, ...] = ()
) -> bool:
    """Return whether calls that `takes` accepts are PyTorch's: with gradients, or as `asked` says.

    There the host decides: PyTorch's node is in C++, and its function needs no launch of a kernel with features. Of the
    sizes, a program with dynamic ones keeps a comparison.
    """
    if torch.compiler.is_compiling():
        from . import torch_ops  # noqa: F401 - declares that the answer of the table is a constant

    aligned = not causal or q.shape[2] == k.shape[2]
    if q.dtype.itemsize > 2 or window_size or not aligned or invariant.wanted():
        return False
    most = max([most_operations(call, q.device, index(q.shape[3])) for call in asked or (TRAINING,)])
    return (2 if causal else 4) * q.numel() * k.shape[2] <= most


def most_operations(call: str, device: torch.device, head_dim: int) -> float:
    """Return up to how many operations forward such calls are PyTorch's: "training", with a feature, or a forward's."""
    return next(iter(_table("routes to pytorch", device).first(call=call, head_dim=head_dim)), 0)


def most_in_program(call: str, dtype: torch.dtype, device: torch.device, head_dim: int) -> float | None:
    """Return up to how many operations such calls of a compiled program are PyTorch's; None where more decides."""
    if not (TRITON and device.type == "cuda" and dtype in DTYPES and 0 < head_dim <= MAX_HEAD_DIM):
        return None
    if _known_capability(device) < MIN_CAPABILITY or choice.anything_named(device):
        return None
    return most_operations(call, device, head_dim) if dtype.itemsize <= 2 else 0


def _decided(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any) -> Route | _DecodingRoute | Ruled | None:
    if isinstance(options[1], tuple):
        return _route_by_names(q, k, v, *options) if _ours(q, k, v, options[2]) else None
    decided = decisions(q, k, v, *options)
    asked = {way: _named(each.implementation, q, k, v, options) for way, each in decided.items() if each.implementation}
    named = {way: bind for way, bind in asked.items() if bind}
    if TRAINING not in named and _ours(q, k, v, options[2]) and left_to_pytorch(q, k, *options[:2]):
        named[TRAINING] = partial(_sdpa, options, "auto")
    if TRAINING not in named and q.dim() == k.dim() == 4 and k.shape[2] == 1:
        named[TRAINING] = partial(_defined, options)
    if named:
        return Ruled(named, lambda *x: _by_tables(*x, *options), lambda *x: without_ours(*x, *options))
    return _by_tables(q, k, v, *options)


def _defined(options: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Attend:
    """Return the definition, by which dq and dk of a single key are exactly 0, where kernels leave roundings."""
    from . import features

    return partial(features.attention, features=features.Features(), **by_name(*options))


def _by_tables(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any) -> Route | _DecodingRoute | None:
    return route(q, k, v, *options) if _ours(q, k, v, options[2]) else None


def _ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softmax_scale: float | None) -> bool:
    return (takes(q, k, v) or takes_wide_keys(q, k, v, softmax_scale)) and q.numel() > 0 and k.numel() > 0


def _named(implementation: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options) -> Bind | None:
    """Return what binds an implementation to q, k and v, one of our own by its plan; None if a plan refuses them."""
    if found := _own(implementation, q, k, v, *options):
        return found.bound
    if implementation.partition("[")[0] in _PLANS and k.shape == v.shape:
        return None
    if implementation == _PYTORCH:
        return partial(_sdpa, options, "auto")
    attend = partial(registry.get(implementation).attention, **by_name(*options))
    return lambda *tensors: attend


def by_name(causal: bool, window_size: Window, softmax_scale: float | None) -> dict[str, Any]:
    """Return masks as keyword arguments of an attention."""
    return {"causal": bool(causal), "window_size": window_size, "softmax_scale": softmax_scale}


def takes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Return whether any kernel of ours computes these tensors; whether they belong together is not asked here."""
    return (
        q.device.type == "cuda"
        and q.dim() == k.dim() == 4
        and q.dtype in DTYPES
        and q.dtype == k.dtype == v.dtype
        and k.shape == v.shape
        and 0 < q.shape[3] <= MAX_HEAD_DIM
        and TRITON
        and _capability(q.device) >= MIN_CAPABILITY
        and (torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active())
    )


def takes_wide_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softmax_scale: float | None) -> bool:
    """Return whether gluon_hopper computes tensors whose keys are wider than their values, where it is the faster one.

    triton_fa2 computes them too, by its kernels with features, but more slowly than PyTorch.
    """
    if not takes(q, k, k) or v.dim() != 4 or v.shape[:3] != k.shape[:3] or v.shape[3] == k.shape[3]:
        return False
    names = {name(direction, q, k, softmax_scale) for direction in ("forward", "backward")}
    fits = takes_head_dims(k.shape[3], v.shape[3]) and v.dtype == q.dtype and names == {"gluon_hopper"}
    return fits and bool(_table("wide routes", q.device).first(rows=q.shape[0] * q.shape[1] * q.shape[2]))


def packed_names(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sequences: int, masks: Masks) -> dict[str, str]:
    """Return the implementation of each direction of packed sequences; q: (1, num_heads, total_q, head_dim).

    `masks`: causal, window_size and softmax_scale.
    """
    causal, window_size, softmax_scale = masks
    _, heads, total_q, head_dim = q.shape
    fits = head_dim == v.shape[3] and head_dim % 8 == 0 and k.shape[2] > 0 and not window_size and sequences > 0
    found = dict.fromkeys(("forward", "backward"), _PORTABLE)
    for way in found if fits and q.device.type == "cuda" else ():
        asked = {"direction": way, "head_dim": head_dim, "causal": causal, "rows": heads * total_q}
        if _table("packed routes", q.device).first(**asked, queries=total_q / sequences):
            found[way] = name(way, q, k, softmax_scale)
    return found


def route(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: *Options) -> Route | _DecodingRoute:
    """Choose the kernels for these tensors. Raises UnsupportedCase if they do not belong together."""
    if decodes(q, k, v):
        check_inputs("kernels.attention", q, k, v, DTYPES)
        return _DecodingRoute(q, k, v, *options)
    return _route_by_names(q, k, v, *options)


def _route_by_names(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any, names: dict[str, str] | None = None
) -> Route:
    causal, window_size, scale = options
    names = names or {way: name(way, q, k, scale, window_size, causal) for way in ("forward", "backward")}
    prepare: Prepare = _contiguous_rows
    if "gluon_hopper" in names.values():
        from .attention.gluon_hopper.launch import addressable as prepare
    ready = tuple(map(prepare, (q, k, v)))
    plans = {each: _PLANS[each](*ready, *options) for each in set(names.values())}
    forward, backward = plans[names["forward"]], plans[names["backward"]]
    addressable = all(a is b for a, b in zip(ready, (q, k, v), strict=True))
    return Route(None if addressable else prepare, forward[0], forward[1], backward[2], *forward[3:])


def route_by_name(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any) -> Route:
    """Return the plan of one of our packages by its name, or of a form (`kernels.forms`), for both directions."""
    from . import forms

    with tables.using(*forms.named(name)):
        return _route_by_names(q, k, v, *options, names=dict.fromkeys(("forward", "backward"), forms.base_of(name)))


def _own(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any) -> Route | None:
    """Return the plan of one of our packages that a rule names; None of another, or if it refuses the tensors."""
    if name.partition("[")[0] not in _PLANS or k.shape != v.shape:
        return None
    try:
        return route_by_name(name, q, k, v, *options)
    except registry.UnsupportedCase as refused:
        choice.warn_once(f"A rule names {name}, which refused a call: {refused}")
        return None


class _DecodingRoute:
    """Out by triton_decode; with gradients by the kernels of longer queries, decided when they are first wanted."""

    prepare: Prepare | None = None
    bound = plans.bound

    def __init__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any) -> None:
        self.output = _triton_decode(q, k, v, *options)
        self._options = options
        self._with_gradients: Route | None = None

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return out and the base-2 logsumexp."""
        route, tensors = self._ready(q, k, v)
        return route.forward(*tensors)

    def backward(self, *saved: torch.Tensor) -> Tensors:
        """Return dq, dk and dv; saved: q, k, v, out, lse and dout."""
        route, tensors = self._ready(*saved[:3])
        return route.backward(*tensors, *saved[3:])

    def _ready(self, *tensors: torch.Tensor) -> tuple[Route, tuple[torch.Tensor, ...]]:
        if self._with_gradients is None:
            self._with_gradients = _route_by_names(*tensors, *self._options)
        prepare = self._with_gradients.prepare
        return self._with_gradients, tuple(map(prepare, tensors)) if prepare else tensors


def decodes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Return whether triton_decode computes tensors that `takes` accepts, where no gradients are wanted."""
    from .decode.triton_decode import MAX_SEQLEN_Q

    shared = q.shape[1] > k.shape[1] and k.shape[0] * k.shape[1] >= MANY_KEY_HEADS
    keys = DECODED_KEYS_SHARED if shared else DECODED_KEYS
    few = q.shape[2] <= MAX_SEQLEN_Q and k.shape[2] >= keys
    return few and q.shape[3] % DECODED_COLUMNS == 0 and q.stride(3) == 1 and k.shape == v.shape


def name(
    direction: str, q: torch.Tensor, k: torch.Tensor, scale: float | None, window_size: Window = 0, causal: bool = True
) -> str:
    """Return the implementation that computes a direction of tensors that `takes` accepts."""
    if q.dtype == torch.float32 or (scale is not None and scale <= 0):
        return _PORTABLE
    if q.device.type != "cuda" or _capability(q.device) != HOPPER or not _has_gluon():
        return _PORTABLE
    heads, queries = q.shape[0] * q.shape[1], q.shape[2]
    if isinstance(window_size, tuple):  # as one of as many keys
        window_size = sum(reach(False, window_size, queries + k.shape[2])) // 2 + 1
    sizes = {"heads": heads, "rows": heads * queries, "queries": queries, "keys": k.shape[2]}
    asked = {"direction": direction, "head_dim": q.shape[3], "grouped": q.shape[1] != k.shape[1], "causal": causal}
    found = _table("routes", q.device).first(**asked, **sizes, window=window_size)
    if window_size and not causal and direction == "forward":
        both = _table("routes of windows on both sides", q.device)
        found = both.first(head_dim=q.shape[3], window=window_size) or found
    return found[0] if found else _PORTABLE


def _table(name: str, device: torch.device) -> Table:
    """Return a table of routes; those of Hopper are the only ones that have rows."""
    hopper = device.type == "cuda" and _capability(device) == HOPPER
    return family("sm_90" if hopper else "sm_86")[name]


def _triton_fa2(*arguments: *tuple[Any, Any, Any, Any, Any, Any]) -> tuple[Callable[..., Any], ...]:
    from .attention.triton_fa2.plan import TritonPlan

    plan = TritonPlan(*arguments, "ieee")
    return plan.output, plan.forward, plan.backward


def _gluon_hopper(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: *Options
) -> tuple[Callable[..., Any], ...]:
    from .attention.gluon_hopper import check
    from .attention.gluon_hopper.plan import GluonHopperPlan

    check(q, k, v)
    plan = GluonHopperPlan(q, k, v, *options[:2], plans.scale_of(options[2], q.shape[3]))
    return plan.output, plan.forward, plan.backward, *([plan.forward_with_more] if plan.size <= 256 else [])


def _triton_decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, window_size: int, softmax_scale: float | None
) -> Callable[..., Any]:
    """Return a decoding plan's output: of all keys, as of a cache that is full."""
    from .decode.triton_decode.calls import plan_of_all
    from .decode.triton_decode.request import Options

    return plan_of_all(q, k, v, Options("NHD", softmax_scale, causal, window_size)).output


_PLANS = {"triton_fa2": _triton_fa2, "gluon_hopper": _gluon_hopper}


def _contiguous_rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _capability(device: torch.device) -> tuple[int, int]:
    if not torch.compiler.is_compiling():
        return _known_capability(device)
    properties = torch.cuda.get_device_properties(device)  # a call that torch.compile knows the answer of
    return properties.major, properties.minor


_known_capability = cache(torch.cuda.get_device_capability)


@cache
def _has_gluon() -> bool:
    from .attention.gluon_hopper import IMPLEMENTATIONS
    from .registry import Device

    implementation = IMPLEMENTATIONS[0]
    any_case: Any = SimpleNamespace(head_dim=None, head_dim_v=None, asked=None)
    hopper = Device(type="cuda", name="", compute_capability=HOPPER)
    return implementation.unavailable is None and implementation.refuses(any_case, hopper) is None


def without_ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any) -> Attend:
    """Return what computes attention that no kernel of ours takes: PyTorch's function.

    options: causal, window_size and softmax_scale.
    """
    if not q.numel():  # PyTorch 2.11 returns None for a batch of 0 on a GPU
        return _defined(options, q, k, v)
    return _sdpa(options, _variant(q, k, *options[:2]), q, k, v)


def _sdpa(options: tuple[Any, ...], variant: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Attend:
    from .attention import torch_sdpa

    return torch_sdpa.bound(q, k, **by_name(*options), variant=variant)


def _variant(q: torch.Tensor, k: torch.Tensor, causal: bool, window_size: int) -> str:
    blind = causal and q.shape[2] > k.shape[2] or window_size > 0  # PyTorch's fused kernels leave such rows undefined
    return "math" if blind and q.device.type == "cuda" else "auto"
