"""flash-attn's functions against attention written out here in float64: layouts, masks, caches, and refusals."""

import inspect

import pytest
import torch

from kernels import flash_attn
from kernels.registry import UnsupportedCase
from tests.cases import cases
from tests.kernels import stand_ins

ON_GPU = torch.cuda.is_available()
UNITS = 64 * torch.finfo(torch.float32).eps


@pytest.fixture
def decoder(monkeypatch):
    """The decoding kernels for few query tokens, on the CPU in Triton's interpreter."""
    launch = pytest.importorskip("kernels.decode.triton_decode.launch", exc_type=ImportError)
    if not ON_GPU and not launch.INTERPRETED:
        pytest.skip("needs a GPU or TRITON_INTERPRET=1")
    called = []
    decoded = flash_attn._decoded
    monkeypatch.setattr(flash_attn, "_decodes", lambda q, window, scale: not isinstance(window, tuple))
    monkeypatch.setattr(flash_attn, "_decoded", lambda *given: called.append(1) or decoded(*given))
    return called


def numbers(*shape: int, device: str = "cpu", seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def exact(q, k, v, causal=False, window_size=(-1, -1), softcap=0.0, slopes=None):
    """Attention of one sequence in float64: q (seqlen_q, heads, head_dim), k and v (seqlen_k, heads_k, head_dim)."""
    q, k, v = (x.double().cpu() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[2] ** -0.5
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    distance = torch.arange(len(q))[:, None] + len(k) - len(q) - torch.arange(len(k))
    if slopes is not None:
        scores = scores - slopes.double().cpu()[:, None, None] * distance.abs()
    left, right = window_size
    right = 0 if causal else right
    hidden = (distance > left) & (left >= 0) | (-distance > right) & (right >= 0)
    scores = scores.masked_fill(hidden, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1).nan_to_num(0.0), v), scores.logsumexp(-1)


def assert_near(got: torch.Tensor, expected: torch.Tensor) -> None:
    got, expected = (torch.where(x.isinf(), -1e3, x.double()).cpu() for x in (got, expected))
    assert (got - expected).abs().max() <= UNITS * expected.abs().clamp(1).max()


@pytest.mark.parametrize(
    "options",
    [{"window_size": (3, 1)}, {"window_size": (4, -1)}, {"causal": True, "window_size": (4, 9), "softcap": 2.0}],
    ids=str,
)
def test_fixed_lengths(front, options) -> None:
    q, k, v = numbers(2, 9, 4, 16, device=front), *(numbers(2, 12, 2, 16, device=front, seed=i) for i in (1, 2))
    slopes = None if options.get("window_size") == (4, -1) else numbers(2, 4, device=front, seed=3).abs()
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out, lse, nothing = flash_attn.flash_attn_func(*inputs, alibi_slopes=slopes, return_attn_probs=True, **options)
    assert nothing is None and lse.shape == (2, 4, 9)
    of_tensor = {**options, "window_size": torch.tensor(options["window_size"])}  # as flash-attn's own tests pass it
    assert torch.equal(out, flash_attn.flash_attn_func(*inputs, alibi_slopes=slopes, **of_tensor))
    wide = [x.detach().double().cpu().requires_grad_() for x in inputs]
    parts = [exact(*(x[i] for x in wide), **options, slopes=None if slopes is None else slopes[i]) for i in (0, 1)]
    expected = torch.stack([x for x, _ in parts]), torch.stack([x for _, x in parts])
    assert_near(out, expected[0])
    assert_near(lse, expected[1])
    dout = numbers(*out.shape, seed=4)
    for got, wanted in zip(
        torch.autograd.grad(out, inputs, dout.to(front)),
        torch.autograd.grad(expected[0], wide, dout.double()),
        strict=True,
    ):
        assert_near(got, wanted)


@pytest.mark.parametrize("options", [{}, {"window_size": (0, -1), "softcap": 15.0}], ids=str)
def test_a_single_key_has_no_gradient_and_an_empty_batch_is_computed(front, options) -> None:
    q, k, v = (numbers(2, n, heads, 16, device=front).requires_grad_() for n, heads in ((5, 4), (1, 2), (1, 2)))
    dq, dk, _ = torch.autograd.grad(flash_attn.flash_attn_func(q, k, v, **options).sum(), (q, k, v))
    assert not dq.any() and not dk.any()
    assert flash_attn.flash_attn_func(q[:0], k[:0], v[:0], **options).shape == (0, 5, 4, 16)


def test_packed_tensors_are_their_parts() -> None:
    qkv, starts = numbers(2, 7, 3, 2, 16), torch.tensor([0, 5, 14], dtype=torch.int32)
    q, k, v = qkv.unbind(2)
    options = {"causal": True, "softmax_scale": 0.3, "deterministic": True}
    expected = flash_attn.flash_attn_func(q, k, v, **options)
    assert torch.equal(flash_attn.flash_attn_qkvpacked_func(qkv, **options), expected)
    assert torch.equal(
        flash_attn.flash_attn_kvpacked_func(q, qkv[:, :, 1:], 0.0, 0.3, True, deterministic=True), expected
    )
    rows = qkv.flatten(0, 1)
    expected = flash_attn.flash_attn_varlen_func(*rows.unbind(1), starts, starts, 9, 9, **options)
    assert torch.equal(flash_attn.flash_attn_varlen_qkvpacked_func(rows, starts, 9, **options), expected)
    lengths = (starts, starts, 9, 9)
    assert torch.equal(
        flash_attn.flash_attn_varlen_kvpacked_func(rows[:, 0], rows[:, 1:], *lengths, **options), expected
    )


@pytest.mark.parametrize("paged", [False, True])
def test_packed_lengths(front, paged) -> None:
    starts = [torch.tensor(x, dtype=torch.int32, device=front) for x in ([0, 3, 3, 12], [0, 5, 9, 26])]
    q, k, v = (numbers(n, h, 16, device=front, seed=n + h) for n, h in ((12, 4), (26, 2), (26, 2)))
    given, table = (k, v), None
    if paged:
        table = torch.tensor([[5, 0], [1, 7], [2, 4]], dtype=torch.int32, device=front)
        given = [torch.full((6, 16, 2, 16), float("nan"), device=front) for _ in range(2)]
        for pages, rows in zip(given, (k, v), strict=True):
            for i, (first, last) in enumerate(zip(starts[1][:-1].tolist(), starts[1][1:].tolist(), strict=True)):
                for j in range(first, last):
                    pages[table[i, (j - first) // 16], (j - first) % 16] = rows[j]
    options = {"window_size": (6, 2), "softcap": 3.0}
    out, lse, _ = flash_attn.flash_attn_varlen_func(
        q, *given, *starts, 9, 17, block_table=table, return_attn_probs=True, **options
    )
    for i in range(3):
        rows, keys = (slice(*x[i : i + 2].tolist()) for x in starts)
        expected = exact(q[rows], k[keys], v[keys], **options)
        assert_near(out[rows], expected[0]) if out[rows].numel() else None
        assert_near(lse[:, rows], expected[1]) if out[rows].numel() else None


def turned(x: torch.Tensor, angles: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Multiply pairs of numbers of x (seqlen, heads, head_dim) by e^(i angle), as complex numbers."""
    width = 2 * angles.shape[-1]
    front = x[..., :width].double()
    a, b = (front[..., ::2], front[..., 1::2]) if interleaved else front.chunk(2, -1)
    z = torch.complex(a, b) * torch.polar(torch.ones_like(angles), angles)[:, None]
    parts = torch.stack([z.real, z.imag], -1).flatten(-2) if interleaved else torch.cat([z.real, z.imag], -1)
    return torch.cat([parts.float(), x[..., width:]], -1)


CACHES = cases(__file__, "CACHES")
GUARD = -77.0


def guarded(x: torch.Tensor) -> torch.Tensor:
    """Return a copy of x within a row of numbers that nothing may write to."""
    whole = x.new_full((x.numel() + 128,), GUARD)
    whole[64:-64] = x.flatten()
    return whole[64:-64].view(x.shape)


def is_guarded(x: torch.Tensor) -> bool:
    around = x.new_empty(0).set_(x.untyped_storage(), 0, (x.numel() + 128,), (1,))
    return bool((around[:64] == GUARD).all()) and bool((around[-64:] == GUARD).all())


def check_cache(
    device, *, causal=False, window_size=(-1, -1), softcap=0.0, tokens=3, rotary=False, interleaved=True,
    paged=False, batch_idx=False, leftpad=False, slopes=False,
) -> None:  # fmt: skip
    """Append to a cache, attend, and compare the result, and every number of the cache, with what they should be."""
    capacity, lengths = 48, [11, 0, 30]
    caches = [numbers(5, capacity, 2, 16, device=device, seed=i) for i in (1, 2)]
    q, k, v = (numbers(3, tokens, h, 16, device=device, seed=i) for i, h in ((3, 4), (4, 2), (5, 2)))
    chosen = [4, 0, 2] if batch_idx else [0, 1, 2]
    pads = [3, 0, 30] if leftpad else [0, 0, 0]
    table = None
    if not batch_idx and not paged:
        caches = [x[:3].contiguous() for x in caches]
    expected_caches = [x.clone() for x in caches]
    if paged:
        table = torch.tensor([[8, 3, 6], [1, 14, 0], [7, 2, 9]], dtype=torch.int32, device=device)
        caches = [x.reshape(15, 16, 2, 16) for x in caches]
        expected_caches = [x[table.long()].flatten(1, 2).clone() for x in caches]
    caches = [guarded(x) for x in caches]
    angles = numbers(capacity, 4, seed=6).double().to(device)
    slope = numbers(4, seed=7).abs().to(device)
    integers = {name: torch.tensor(x, dtype=torch.int32, device=device) for name, x in
                (("cache_seqlens", lengths), ("cache_batch_idx", chosen), ("cache_leftpad", pads))}  # fmt: skip
    out, lse = flash_attn.flash_attn_with_kvcache(
        q, *caches, k, v,
        rotary_cos=angles.cos().float() if rotary else None,
        rotary_sin=angles.sin().float() if rotary else None,
        cache_seqlens=integers["cache_seqlens"],
        cache_batch_idx=integers["cache_batch_idx"] if batch_idx else None,
        cache_leftpad=integers["cache_leftpad"] if leftpad else None,
        block_table=table,
        causal=causal, window_size=window_size, softcap=softcap, rotary_interleaved=interleaved,
        alibi_slopes=slope if slopes else None, return_softmax_lse=True,
    )  # fmt: skip
    masks = {"causal": causal, "window_size": window_size, "softcap": softcap, "slopes": slope if slopes else None}
    for i, (row, length, pad) in enumerate(zip(chosen, lengths, pads, strict=True)):
        query, key = q[i], k[i]
        if rotary:
            key = turned(key, angles[length : length + tokens], interleaved)
            local = causal or window_size != (-1, -1)
            steps = range(length, length + tokens) if local else [length] * tokens
            query = turned(query, angles[list(steps)], interleaved)
        for cache, new in zip(expected_caches, (key, v[i]), strict=True):
            cache[row, length : length + tokens] = new
        keys, values = (x[row, pad : length + tokens] for x in expected_caches)
        expected = exact(query, keys, values, **masks)
        assert_near(out[i], expected[0])
        assert_near(lse[i], expected[1])
    assert all(map(is_guarded, caches))
    found = [x[table.long()].flatten(1, 2) for x in caches] if paged else caches
    assert torch.equal(found[1], expected_caches[1])
    assert (found[0] - expected_caches[0]).abs().max() <= (UNITS if rotary else 0)


@pytest.mark.parametrize("options", CACHES.values(), ids=CACHES)
def test_a_cache_is_extended_and_attended(front, options) -> None:
    check_cache(front, **options)


@pytest.mark.parametrize("name", ["as it is", "indices", "pages", "rotary, interleaved"])
def test_few_tokens_use_the_decoding_kernels(decoder, device, name) -> None:
    check_cache(device, **CACHES[name])
    assert decoder


@pytest.mark.parametrize("table", [None, [[0, 7], [2, 3]], [[0, -1], [2, 3]]])
@pytest.mark.parametrize("lengths", [[3, -1], [30, 2]])
@pytest.mark.skipif(ON_GPU, reason="an index out of range ends a GPU's process")
def test_unchecked_lengths_and_pages_write_nothing_outside_of_the_cache(monkeypatch, table, lengths) -> None:
    monkeypatch.setattr(flash_attn, "reads", lambda x: False)  # as on a GPU
    caches = [
        guarded(numbers(2, 32, 2, 16, seed=i) if table is None else numbers(4, 16, 2, 16, seed=i)) for i in (1, 2)
    ]
    before, pages = [x.clone() for x in caches], None if table is None else torch.tensor(table, dtype=torch.int32)
    new = numbers(2, 3, 2, 16)
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        flash_attn.flash_attn_with_kvcache(
            numbers(2, 3, 4, 16), *caches, new, new, cache_seqlens=_integers(*lengths), block_table=pages
        )
    named = torch.zeros(caches[0].shape[:2], dtype=torch.bool)
    for i, length in enumerate(lengths):
        for at in range(max(0, length), min(32, length + 3)):
            page, place = (i, at) if table is None else (table[i][at // 16], at % 16)
            if 0 <= page < len(named):
                named[page, place] = True
    assert all(torch.equal(x[~named], y[~named]) for x, y in zip(caches, before, strict=True))
    assert all(map(is_guarded, caches))


# flash-attn 2.8.3, flash_attn/flash_attn_interface.py: the first arguments of each function, then the defaults.
_OPTIONS = {
    "dropout_p": 0.0, "softmax_scale": None, "causal": False, "window_size": (-1, -1), "softcap": 0.0,
    "alibi_slopes": None, "deterministic": False, "return_attn_probs": False,
}  # fmt: skip
_LENGTHS = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
_CACHE = dict.fromkeys(stand_ins.FLASH["flash_attn:flash_attn_with_kvcache"].split())
_CACHE |= {"causal": False, "window_size": (-1, -1), "softcap": 0.0, "rotary_interleaved": True, "num_splits": 0}
_NEEDED = inspect.Parameter.empty
SIGNATURES = {
    "flash_attn_func": ("q k v", _OPTIONS),
    "flash_attn_kvpacked_func": ("q kv", _OPTIONS),
    "flash_attn_qkvpacked_func": ("qkv", _OPTIONS),
    "flash_attn_varlen_func": (f"q k v {_LENGTHS}", _OPTIONS | {"block_table": None}),
    "flash_attn_varlen_kvpacked_func": (f"q kv {_LENGTHS}", _OPTIONS),
    "flash_attn_varlen_qkvpacked_func": ("qkv cu_seqlens max_seqlen", _OPTIONS),
    "flash_attn_with_kvcache": ("q k_cache v_cache", _CACHE | {"return_softmax_lse": False}),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_their_order_and_their_defaults_are_those_of_flash_attn(name) -> None:
    first, options = SIGNATURES[name]
    expected = options | dict.fromkeys(first.split(), _NEEDED)
    found = {each.name: each.default for each in inspect.signature(getattr(flash_attn, name)).parameters.values()}
    assert found == expected and list(found) == [*first.split(), *(x for x in options if x not in first.split())]
    with pytest.raises(TypeError, match="unexpected keyword argument 'qv'"):
        getattr(flash_attn, name)(*[Q] * len(first.split()), qv=Q)


def _integers(*x: int) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.int32)


def rotary(positions: int, angles: int) -> dict[str, torch.Tensor]:
    return {"rotary_cos": torch.ones(positions, angles), "rotary_sin": torch.ones(positions, angles)}


Q, CACHE, NEW = numbers(2, 3, 4, 16), numbers(2, 32, 2, 16), numbers(2, 3, 2, 16)
ROWS, KEYS, PAGES = numbers(6, 2, 16), numbers(6, 2, 16), numbers(4, 16, 2, 16)
KV = (flash_attn.flash_attn_with_kvcache, Q, CACHE, CACHE)
VARLEN = (flash_attn.flash_attn_varlen_func, ROWS)
SIX = (_integers(0, 2, 6), _integers(0, 2, 6), 4, 4)


@pytest.mark.parametrize(
    ("call", "options", "sentence"),
    [
        ((flash_attn.flash_attn_func, Q, NEW, NEW), {"dropout_p": 0.1, "return_attn_probs": True}, "do not store"),
        ((flash_attn.flash_attn_func, Q, NEW, NEW), {"window_size": (-3, 0)}, "at least -1"),
        ((flash_attn.flash_attn_func, Q, NEW, NEW), {"window_size": 4}, r"must be \(left, right\)"),
        ((flash_attn.flash_attn_func, Q, NEW.to("meta"), NEW), {}, "on one device"),
        ((flash_attn.flash_attn_func, None, NEW, NEW), {}, "a tensor, not None"),
        ((flash_attn.flash_attn_func, Q, NEW, NEW), {"alibi_slopes": [1.0] * 4}, "a tensor, not"),
        ((*VARLEN, KEYS, KEYS, [0, 2, 6], *SIX[1:]), {}, "a tensor, not"),
        ((*VARLEN, KEYS, KEYS, *SIX[:3], 4.5), {}, "must be whole numbers, not"),
        ((flash_attn.flash_attn_func, Q, NEW, NEW), {"softcap": -1.0}, "must not be negative"),
        ((*VARLEN, KEYS, KEYS, *SIX), {"alibi_slopes": torch.ones(3)}, r"must be \(2,\)"),
        ((flash_attn.flash_attn_func, Q, NEW[:1], NEW[:1]), {}, "agree in batch"),
        ((flash_attn.flash_attn_func, Q, NEW, NEW[:, :2]), {}, "must have the same shape"),
        ((flash_attn.flash_attn_func, Q[0], NEW, NEW), {}, "Expected a tensor"),
        ((flash_attn.flash_attn_qkvpacked_func, Q[:, :, None]), {}, "must be 3"),
        ((*VARLEN, KEYS, KEYS, _integers(0, 2, 9), SIX[1], 7, 4), {}, "do not go with 6 rows"),
        ((*VARLEN, KEYS, KEYS, *SIX[:3], 3), {}, "lengths up to 3"),
        ((*VARLEN, PAGES, PAGES, *SIX), {"block_table": _integers(0, 4)[:, None]}, "outside 0 to 3"),
        (KV, {"cache_seqlens": 30, "k": NEW, "v": NEW}, "do not fit into a cache of 32"),
        (KV, {"cache_seqlens": _integers(1, 33)}, "do not fit"),
        ((KV[0], *(x.to("meta") for x in KV[1:])), {"cache_seqlens": 33}, "do not fit"),  # no device is read for this
        (KV, {"cache_seqlens": torch.tensor([1, 2])}, "int32"),
        (KV, {"k": NEW}, "like the cache"),
        (KV, {"k": NEW.half(), "v": NEW.half(), "cache_seqlens": 1}, "like the cache"),
        (KV, {"rotary_cos": torch.ones(32, 4)}, "belong together"),
        (KV, {"k": NEW, "v": NEW, "cache_seqlens": 1, **rotary(31, 4)}, "at least 32 positions"),
        (KV, {"k": NEW, "v": NEW, "cache_seqlens": 1, **rotary(32, 9)}, "at most 8 angles"),
        (KV, {"cache_leftpad": _integers(-1, 2), "cache_seqlens": 5}, "must be 0 to the keys in use"),
        (KV, {"cache_leftpad": torch.tensor([1.0, 2.0])}, "must hold integers"),
        (KV, {"cache_batch_idx": [1, 0]}, "must hold integers"),
        (KV, {"k": NEW, "v": NEW, "softcap": -1.0}, "must not be negative"),
        (KV, {"k": NEW, "v": NEW, "alibi_slopes": torch.ones(3)}, r"must be \(4,\)"),
        (KV, {"num_splits": -1}, "at least 0"),
        (KV, {"cache_batch_idx": _integers(0, 2)}, "outside 0 to 1"),
        ((*KV[:2], CACHE[:1], CACHE[:1]), {}, "pass cache_batch_idx"),
        ((*KV[:2], PAGES, PAGES), {"block_table": _integers(0, -1)[:, None]}, "outside 0 to 3"),
        ((*KV[:2], PAGES, PAGES), {"block_table": _integers(0)[:, None]}, r"block_table \(2, pages\)"),
    ],
)
def test_bad_input_is_refused_in_words(call, options, sentence) -> None:
    function, *tensors = call
    before = CACHE.clone()
    with pytest.raises(UnsupportedCase, match=sentence):
        function(*tensors, **options)
    assert torch.equal(CACHE, before)
