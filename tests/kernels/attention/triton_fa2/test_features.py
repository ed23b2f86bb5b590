"""Features of triton_fa2 against their definition in float64; without a GPU in Triton's interpreter."""

import itertools

import pytest
import torch

import kernels
from kernels import feature_calls, features, registry
from kernels.features import Features
from kernels.registry import UnsupportedCase
from kernels.tools.check_features import FeatureCase, blocks, cases, check, numbers, worst_error
from tests.kernels.conftest import on_hopper

call = pytest.importorskip("kernels.attention.triton_fa2.features.call")
triton_fa2 = pytest.importorskip("kernels.attention.triton_fa2")
tile = pytest.importorskip("kernels.attention.triton_fa2.tuning")
CUDA = torch.cuda.is_available()
CASES = cases()
DECLARED = [
    (name, case)
    for name, each in registry.implementations().items()
    for case in CASES
    if CASES[case].feature in each.features and each.family != "peer"
]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Have the interpreter walk over several tiles of short sequences; for dq over two batches that share a mask."""
    small, two, big = (tile.Tile(n, n, 4, 1, batches=count) for n, count in ((16, 1), (16, 2), (32, 1)))
    if not CUDA:
        monkeypatch.setattr(call, "MOST_PROGRAMS", 3)  # several launches for four batches
        monkeypatch.setattr(call, "tiles", lambda of, q, _: (*[two] * ("dq" in of), big if q.shape[2] == 99 else small))


WHOLE = cases(lengths=(128, 256) if CUDA else (32, 64))  # multiples of tiles
OF_WHOLE = ["narrower values", "padding mask in a window", "learned mask", "prefixes", "documents", "blocks"]
OURS = {case: CASES[case] for name, case in DECLARED if name == "triton_fa2"}
OURS |= {f"{case}, whole tiles": WHOLE[case] for case in OF_WHOLE}
OURS["from within tiles"] = FeatureCase("two_windows", (1, 2, 1, 99, 150, 16, 16), window_size=(35, 20))


@pytest.mark.parametrize("case", OURS.values(), ids=OURS)
def test_outputs_and_gradients_are_as_near_float64_as_the_definition(case, device):
    full = case.shape[5] <= 100 and case.feature != "mask_gradient" and "softcap" not in case.asked
    worst, of = worst_error(case, triton_fa2.attention, torch.float32 if full else torch.float16, device)
    assert worst <= 1, of


def test_every_feature_that_an_implementation_declares_has_a_case():
    tested = {case.feature for case in CASES.values()}
    declared = {name for each in registry.implementations().values() for name in each.features}
    assert declared <= tested <= set(registry.FEATURES)


def test_tf32_is_asked_of_the_kernels_with_features(monkeypatch, device):
    asked, config = [], call.FeatureConfig
    monkeypatch.setattr(call, "FeatureConfig", lambda **fields: asked.append(fields["precision"]) or config(**fields))
    attention = registry.get("triton_fa2_tf32").attention
    worst, of = worst_error(CASES["several, packed"], attention, torch.float32, device, tf32=True)
    assert worst <= 1, of
    assert set(asked) == {"tf32"}


@pytest.mark.parametrize("case", ["sinks and rows without a key", "window"])
def test_sinks_join_a_plan_that_has_none(case, device):
    sinks = pytest.importorskip("kernels.attention.gluon_hopper.sinks")
    plan = pytest.importorskip("kernels.attention.triton_fa2.plan")
    wide = FeatureCase("sinks", (2, 4, 2, 33, 70, 24, 24), True, 20, {"sinks": torch.tensor([9.0, -3.0, 0.0, 1.0])})

    def attention(q, k, v, causal, window_size, features):
        plain = plan.TritonPlan(q, k, v, causal, window_size, q.shape[3] ** -0.5, "ieee")
        return call.attend(sinks.WithSinks(features, plain), q, k, v)

    worst, of = worst_error(CASES.get(case, wide), attention, torch.float16, device)
    assert worst <= 1, of


FEATURES = {"dropout_p": 0.3, "dropout_seed": 5, "sinks": numbers(4), "softcap": 2.0, "alibi_slopes": numbers(4, 4)}


@pytest.mark.parametrize(
    ("dtype", "width", "asked"),
    [
        (torch.float16, 16, {"causal": True, **FEATURES}),
        (torch.float32, 11, {"causal": True, **FEATURES, "prefix_lengths": torch.tensor([2, 0, 9, 5])}),
        (torch.float16, 16, {"causal": True}),
        (torch.float16, 16, {"causal": False}),
        (torch.float16, 16, {"causal": True, "window_size": 4}),
    ],
    ids=["features", "features in float32, narrower values", "causal", "full", "window"],
)
def test_packed_sequences_are_each_computed_alone(dtype, width, asked, monkeypatch, device):
    asked = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in asked.items()}
    lengths_q, lengths_k = [3, 0, 20, 7], [5, 10, 17, 0]
    starts_q, starts_k = (torch.tensor([0, *x], device=device).cumsum(0) for x in (lengths_q, lengths_k))  # int64
    q, k, v = (numbers(*size).to(device, dtype) for size in ((30, 4, 16), (32, 2, 16), (32, 2, width)))
    got = []
    for takes in (True, False):
        monkeypatch.setattr(feature_calls, "takes", lambda *asked, takes=takes: takes)
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        out = kernels.attention_varlen(*inputs, starts_q, starts_k, 20, 17, **asked)
        assert out.shape == (30, 4, width)
        got.append((out, *torch.autograd.grad(out, inputs, q[..., :width])))
    for ours, plain in zip(*got, strict=True):
        assert (ours - plain).abs().max() <= 16 * torch.finfo(dtype).eps * plain.abs().max()


PAGED_FORMS = {
    "causal, grouped heads": ({"causal": True}, 16, 16),
    "full, two panels": ({}, 24, 24),
    "window": ({"causal": True, "window_size": 5}, 16, 16),
    "window of two widths": ({"window_size": (3, 2)}, 16, 16),
    "softcap, slopes, narrower values": ({"softcap": 2.0, "alibi_slopes": numbers(4), "causal": True}, 16, 11),
}


@pytest.mark.parametrize(
    ("dtype", "page_size"), [(torch.bfloat16 if CUDA else torch.float32, 5), (torch.float16, 1), (torch.float16, 16)]
)
@pytest.mark.parametrize("form", PAGED_FORMS)
def test_keys_in_pages_are_read_as_those_in_a_row(form, dtype, page_size, monkeypatch, device):
    """Prompts, a chunk of one, single tokens and an empty sequence; what is not in use is NaN or names no page."""
    asked, width, width_v = PAGED_FORMS[form]
    asked = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in asked.items()}
    lengths = (torch.tensor([20, 3, 1, 1, 0]), torch.tensor([20, 33, 17, 1, 6]))
    starts = [torch.tensor([0, *x], device=device).cumsum(0).int() for x in lengths]
    counts = [-(-length // page_size) for length in lengths[1].tolist()]
    order = torch.randperm(sum(counts) + 2, generator=torch.Generator().manual_seed(3)).tolist()
    table = torch.full((5, max(counts)), 2**30, dtype=torch.int32)
    rows = [numbers(77, 2, w, seed=w + i).to(device, dtype) for i, w in enumerate((width, width_v))]
    pages = [torch.full((len(order), page_size, 2, w), torch.nan, dtype=dtype, device=device) for w in (width, width_v)]
    for i, count in enumerate(counts):
        table[i, :count] = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int32)
        for key in range(int(lengths[1][i])):
            for cache, row in zip(pages, rows, strict=True):
                cache[table[i, key // page_size], key % page_size] = row[starts[1][i] + key]
    q = numbers(25, 4, width).to(device, dtype)
    sizes = (*starts, 20, 33)
    plain = kernels.attention_varlen(q, *rows, *sizes, return_lse=True, **asked)
    monkeypatch.setattr(feature_calls, "takes", lambda *given: True)
    monkeypatch.setattr(feature_calls, "_rows_of_pages", None)
    before = [x.clone() for x in pages]
    ways = {"copy_pages": False, "return_lse": True}, {"return_lse": True}, {}  # the last one decodes few queries
    for how in ways if page_size == 5 else ways[:1]:
        ours = kernels.attention_varlen(q, *pages, *sizes, block_table=table.to(device), **how, **asked)
        for got, expected in zip(ours if how else [ours], plain, strict=False):
            got, expected = (x.double().masked_fill(x.isinf(), -1e3) for x in (got, expected))
            assert (got - expected).abs().max() <= 16 * torch.finfo(dtype).eps * expected.abs().max()
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(pages, before, strict=True))


def test_softcaps_or_slopes_alone_go_to_gluon_hopper_in_bfloat16(monkeypatch):
    scores = pytest.importorskip("kernels.attention.gluon_hopper.scores")
    monkeypatch.setattr(scores, "plan_of", lambda *asked, **of_scores: of_scores)
    monkeypatch.setattr(scores, "WithScores", lambda found, plan: plan)
    monkeypatch.setattr(feature_calls.routes, "takes", lambda *asked: True)
    monkeypatch.setattr(feature_calls.routes, "name", lambda *asked: "gluon_hopper")
    q, slopes = torch.zeros(1, 2, 9, 128, dtype=torch.bfloat16), torch.zeros(2)
    asked = ({"softcap": 4.0}, {"alibi_slopes": slopes}, {"softcap": 1.0}, {"softcap": 4.0, "alibi_slopes": slopes})
    chosen = [feature_calls._on_hopper(call.FeatureCall(Features(**x), True, 0, 0.5, "ieee"), q, q, q) for x in asked]
    assert chosen == [{"bend": 0.125}, {"alibi": True}, None, None]
    wide = q.new_zeros(1, 2, 9, 256)
    assert scores.with_scores(Features(alibi_slopes=slopes), wide, wide, wide, (True, 0, 0.5)) is None
    assert scores.with_scores(Features(softcap=4.0), q.half(), q.half(), q.half(), (True, 0, 0.5)) is None


def test_sinks_and_two_widths_in_short_windows_stay_with_the_kernels_with_features(monkeypatch):
    sinks = pytest.importorskip("kernels.attention.gluon_hopper.sinks")
    monkeypatch.setattr(sinks, "with_sinks", lambda *asked: "gluon_hopper")
    monkeypatch.setattr(feature_calls.routes, "takes", lambda *asked: True)
    monkeypatch.setattr(feature_calls.routes, "name", lambda *asked: "gluon_hopper")
    q, found = torch.zeros(1, 2, 9, 64), Features(sinks=torch.zeros(2))
    calls = [call.FeatureCall(found, True, window, 1.0, "ieee") for window in (0, 128, 129)]
    assert [feature_calls._on_hopper(each, q, q, q) is None for each in calls] == [False, True, False]
    monkeypatch.setattr(feature_calls.routes, "plan_of", lambda *asked: "gluon_hopper")
    calls = [call.FeatureCall(Features(), False, (left, 13), 1.0, "ieee") for left in (70, 130, -1)]
    assert [feature_calls.faster(each, *[q.half()] * 3) is None for each in calls] == [True, False, False]


@pytest.mark.parametrize(("causal", "window_size"), [(True, 4), (False, 0)])
def test_padding_and_holes_are_not_seen_and_rows_around_tokens_are_zero(causal, window_size, monkeypatch, device):
    monkeypatch.setattr(feature_calls, "takes", lambda *asked: True)
    real = torch.ones(4, 21, dtype=torch.bool, device=device)
    real[0, :6] = real[1, 17:] = real[2, :3] = real[2, 9:11] = real[2, 18:] = False
    q, k, v = (numbers(4, heads, rows, 16).to(device).requires_grad_() for heads, rows in ((2, 19), (1, 21), (1, 21)))
    found = Features(mask=real[:, None, None, :], softcap=2.0)
    span = (real.cumsum(1) > 0) & (real.flip(1).cumsum(1) > 0).flip(1)
    computed = span[:, None, 2:, None] if causal else torch.ones((), device=device)
    masks = {"causal": causal, "window_size": window_size}
    plain = features.attention(q, k, v, found, **masks) * computed
    ours = feature_calls.attention_padded(q, k, v, real, softcap=2.0, **masks)
    inputs, dout = (q, k, v), numbers(*plain.shape).to(device)
    results = [(out, *torch.autograd.grad(out, inputs, dout)) for out in (ours, plain)]
    for got, expected in zip(*results, strict=True):
        assert (got - expected).abs().max() <= 16 * torch.finfo(got.dtype).eps * expected.abs().max()


def test_what_dropout_keeps_is_its_share_and_depends_on_the_seed_alone():
    shape, share = (2, 3, 40, 50), 0.3
    first, again, other = (features.dropout_mask(seed, shape, share, "cpu") for seed in (11, 11, 12))
    assert first.equal(again) and not first.equal(other)
    assert abs(first.float().mean().item() - 0.7) < 5 * (share * 0.7 / first.numel()) ** 0.5
    torch.manual_seed(3)
    drawn = [feature_calls.features_of({"dropout_p": 0.1}, torch.device("cpu")).dropout_seed for _ in range(2)]
    torch.manual_seed(3)
    assert feature_calls.features_of({"dropout_p": 0.1}, torch.device("cpu")).dropout_seed == drawn[0] != drawn[1]


def test_a_mask_whose_rows_lie_too_far_apart_is_copied():
    mask = torch.empty_strided((9, 9), (1 << 24, 1), device="meta")
    assert call.FeatureCall(Features(mask=mask), False, 0, 1.0, "ieee")._tensors.mask_m == 9


def test_the_front_door_computes_features_where_no_kernel_does():
    q = numbers(1, 2, 9, 16).double()
    for asked in ({"softcap": 2.0}, {"sinks": numbers(2)}, {"mask": torch.zeros(9, 9, dtype=torch.bool)}):
        expected = features.attention(q, q, q, Features(**asked), causal=True)
        assert kernels.attention(q, q, q, causal=True, **asked).equal(expected)
    assert not expected.any()


def test_torch_compile_keeps_features_whole_in_one_program_for_all_lengths(monkeypatch, device):
    from torch._dynamo.testing import CompileCounterWithBackend  # seconds at import, which collecting need not take

    monkeypatch.setattr(feature_calls, "takes", lambda *asked: True)
    blocks = kernels.block_mask(torch.ones(1, 2, 1, 1, dtype=torch.bool, device=device))

    def loss(q, sinks, real):
        asked = {"sinks": sinks, "softcap": 3.0, "block_mask": blocks, "mask": real[:, None, None]}
        out = kernels.attention(q, q, q, causal=True, alibi_slopes=sinks.detach(), **asked)
        return (out + feature_calls.attention_padded(q, q, q, real)).square().sum()

    programs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(loss, backend=programs, fullgraph=True, dynamic=True)
    for batch, length in ((5, 9), (6, 12)):
        inputs = [numbers(*shape).to(device).requires_grad_() for shape in ((batch, 2, length, 16), (2,))]
        real = torch.arange(length, device=device).expand(batch, -1) < length - 2
        plain, traced = (torch.autograd.grad(f(*inputs, real), inputs) for f in (loss, compiled))
        assert all(map(torch.equal, plain, traced))
    assert programs.frame_count == 1


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"softcap": -1.0}, "softcap must not be negative"),
        ({"dropout_p": 1.0}, "below 1"),
        ({"sinks": torch.zeros(3)}, r"sinks must be \(2,\)"),
        ({"mask": torch.zeros(5, 9)}, r"broadcast to \(1, 2, 9, 9\)"),
        ({"alibi_slopes": torch.zeros(2, requires_grad=True)}, "only sinks and an additive mask have a gradient"),
        ({"prefix_lengths": torch.tensor([3])}, "need causal=True"),
        ({"document_ids": torch.zeros(9)}, "an id a key"),
        ({"block_mask": torch.ones(1, 2, 1, 1, dtype=torch.bool)}, r"must come from kernels.block_mask\(listed\)"),
        ({"block_mask": kernels.block_mask(torch.ones(1, 2, 1, 2) > 0)}, "lists of blocks of 64 or 128 for 9 queries"),
    ],
)
def test_features_that_do_not_go_with_the_tensors_are_refused(asked, message):
    q = torch.zeros(1, 2, 9, 16)
    with pytest.raises(UnsupportedCase, match=message):
        kernels.attention(q, q, q, **asked)


def test_a_block_mask_is_refused_for_packed_sequences_and_for_what_is_no_list():
    with pytest.raises(UnsupportedCase, match=r"boolean tensor .* not torch.float32 \(1, 1\)"):
        kernels.block_mask(torch.ones(1, 1))
    mask, starts = kernels.block_mask(torch.ones(1, 2, 1, 1) > 0), torch.tensor([0, 9])
    with pytest.raises(UnsupportedCase, match="does not support mask, document_ids or block_mask"):
        kernels.attention_varlen(*[torch.zeros(9, 2, 16)] * 3, starts, starts, 9, 9, block_mask=mask)
    padded = torch.zeros(1, 2, 9, 16)
    with pytest.raises(UnsupportedCase, match="whole sequences only"):
        feature_calls.attention_padded(*[padded] * 3, torch.ones(1, 9) > 0, block_mask=mask)


@pytest.mark.parametrize("asked", [{}, {"softcap": 3.0, "sinks": numbers(2)}], ids=["alone", "with features"])
@pytest.mark.parametrize("shape", [(2, 2, 5, 7), (1, 2, 5, 7), (2, 1, 1, 7), (5, 7)])
@pytest.mark.parametrize("ours", [True, False], ids=["by a kernel", "by definition"])
def test_a_mask_has_a_gradient_that_is_summed_over_what_it_is_broadcast_to(shape, asked, ours, monkeypatch):
    monkeypatch.setattr(feature_calls, "takes", lambda *given: ours)
    q, k, dout = (numbers(2, 2, rows, 16, seed=rows) for rows in (5, 7, 5))
    mask, q = numbers(*shape).requires_grad_(), q.requires_grad_()
    found = torch.autograd.grad(kernels.attention(q, k, k, mask=mask, **asked), (q, mask), dout)
    whole, exact_q = (x.detach().double().expand(size).clone() for x, size in ((mask, (2, 2, 5, 7)), (q, q.shape)))
    exact = features.attention(
        exact_q.requires_grad_(), *[k.double()] * 2, Features(mask=whole.requires_grad_(), **asked)
    )
    of_q, of_whole = torch.autograd.grad(exact, (exact_q, whole), dout.double())
    torch.testing.assert_close(found, (of_q.float(), of_whole.sum_to_size(shape).float()))
    blocks = kernels.block_mask(torch.ones(1, 2, 1, 1) > 0)
    with pytest.raises(UnsupportedCase, match="no gradient of a mask"):
        triton_fa2.attention(q, k, k, features=Features(mask=mask, block_mask=blocks))


def test_the_definition_is_that_of_pytorch_for_masks_written_out():
    q, k = numbers(2, 2, 5, 8).double(), numbers(2, 2, 7, 8).double()
    slopes, documents, prefixes = [[0.5, 2.0], [0.25, 1.0]], [[0, 0, 0, 1, 1, 1, 1], [0] * 7], [4, 2]
    mask = torch.full((2, 2, 5, 7), -torch.inf, dtype=torch.float64)
    for batch, head, row, key in itertools.product(range(2), range(2), range(5), range(7)):
        position = row + 2
        if documents[batch][position] == documents[batch][key] and (key <= position or key < prefixes[batch]):
            mask[batch, head, row, key] = -slopes[batch][head] * abs(position - key)
    asked = Features(
        alibi_slopes=torch.tensor(slopes), document_ids=torch.tensor(documents), prefix_lengths=torch.tensor(prefixes)
    )
    found = features.attention(q, k, k, asked, causal=True)
    torch.testing.assert_close(found, torch.nn.functional.scaled_dot_product_attention(q, k, k, mask))


def test_starts_of_sequences_that_kernels_cannot_read_are_refused():
    q, starts = torch.zeros(9, 2, 16), torch.tensor([0, 4, 9])
    for wrong, message in (
        (starts.to("meta"), "on cpu, where q is"),
        (starts[None], "as many starts"),
        (starts[:0], "as many"),
    ):
        with pytest.raises(UnsupportedCase, match=message):
            kernels.attention_varlen(q, q, q, wrong, wrong, 5, 5)


def test_an_implementation_says_which_features_it_lacks():
    assert registry.get("triton_fa2").reason_against_features(registry.FEATURES) is None
    assert registry.get("triton_fa2").facts["features"] == list(registry.FEATURES)
    reason = registry.get("tiled_v1").reason_against_features(("softcap", "dropout"))
    assert reason == "tiled_v1 does not support softcaps or dropout."


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("head_dim", [40, 64, 128, 256, 512])
def test_all_features_at_once_on_the_gpu(dtype, head_dim):
    shape = (2, 4, 2, 300, 461, head_dim, head_dim)
    asked = {"softcap": 5.0, "sinks": numbers(4), "alibi_slopes": numbers(4).abs(), "dropout_p": 0.2}
    asked |= {"mask": numbers(2, 1, 300, 461) > -1, "document_ids": blocks(2, 461, 100)}
    for causal, window_size in ((True, 0), (False, 50)):
        case = FeatureCase("sinks", shape, causal, window_size, asked)
        worst, of = worst_error(case, triton_fa2.attention, dtype, "cuda")
        assert worst <= 1, of


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")  # torch_flex
@pytest.mark.parametrize(("name", "case"), DECLARED)
def test_every_declared_feature_is_right_on_the_gpu(name, case):
    implementation = registry.get(name)
    ratio = check(implementation, cases(16, 64)[case], "cuda", getattr(torch, implementation.dtypes[0]))
    assert ratio is None or ratio <= 1


@on_hopper
@pytest.mark.parametrize(
    ("head_dim", "case"), [(128, "softcap"), (256, "softcap"), (128, "slopes of heads"), (112, "slopes of batches")]
)
def test_softcaps_and_slopes_are_right_in_gluon_hopper(head_dim, case):
    assert check(registry.get("gluon_hopper"), cases(16, head_dim)[case], "cuda", torch.bfloat16) <= 1
