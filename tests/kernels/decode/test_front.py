"""The functions of `kernels`, what they refuse, and torch.compile."""

import pytest
import torch

import kernels
from kernels.decode.triton_decode import MAX_HEAD_DIM
from kernels.registry import UnsupportedCase
from tests.cases import cases


def tensors(batch=2, heads=4, kv_heads=2, seqlen_q=1, capacity=40, head_dim=32, dtype=torch.float16, device="cpu"):
    q = torch.randn(batch, heads, seqlen_q, head_dim, dtype=dtype, device=device)
    k, v = (torch.randn(batch, kv_heads, capacity, head_dim, dtype=dtype, device=device) for _ in range(2))
    return q, k, v


def test_one_call_is_attention_and_latent_attention_has_a_name_of_its_own(device):
    q, k, v = tensors(device=device)
    expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), enable_gqa=True)
    assert torch.allclose(kernels.decode(q, k, v).double(), expected, atol=2e-3)
    q = torch.randn(2, 4, 1, 48, dtype=torch.float16, device=device)
    cache = torch.randn(2, 40, 48, dtype=torch.float16, device=device)
    out = kernels.mla_decode(q, cache, softmax_scale=0.1, latent_dim=32)
    k = cache[:, None].double()
    expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k, k[..., :32], scale=0.1, enable_gqa=True)
    assert torch.allclose(out.double(), expected, atol=2e-3)


def test_torch_compile_keeps_the_operators_whole(device):
    q, k, v = tensors(device=device)
    lengths = torch.tensor([7, 40], dtype=torch.int32, device=device)

    def attend(q, k, v):
        return kernels.decode(q, k, v, cache_seqlens=lengths, return_lse=True)

    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    assert all(map(torch.equal, compiled(q, k, v), attend(q, k, v)))
    cache = k[:, 0].contiguous()
    latent = torch.compile(
        lambda q, c: kernels.mla_decode(q, c, softmax_scale=0.2, latent_dim=16), backend="eager", fullgraph=True
    )
    assert torch.equal(latent(q, cache), kernels.mla_decode(q, cache, softmax_scale=0.2, latent_dim=16))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("latent_dim", [0, 16])
def test_the_operator_promises_what_it_gives(latent_dim, device):
    q, k, v = tensors(device=device)
    caches = [k[:, 0].contiguous()] * 2 if latent_dim else [k, v]
    kernels.decode(q, k, v)
    arguments = (q, *caches, None, None, "NHD", 0.2, True, 0, None, None, latent_dim)
    torch.library.opcheck(torch.ops.attnbench.decode.default, arguments)


@pytest.mark.parametrize(("change", "sentence"), cases(__file__, "test_shapes_that_do_not_belong_together_are_refused"))
def test_shapes_that_do_not_belong_together_are_refused(change, sentence, device):
    q, k, v = tensors(device=device)
    given = {"q": q, "k": k, "v": v}
    given |= {name: torch.zeros(shape, dtype=q.dtype, device=device) for name, shape in change.items()}
    with pytest.raises(UnsupportedCase, match=sentence):
        kernels.decode(given["q"], given["k"], given["v"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"cache_seqlens": torch.zeros(2, dtype=torch.int64)}, "cache_seqlens is torch.int64"),
        ({"cache_seqlens": torch.zeros(3, dtype=torch.int32)}, r"cache_seqlens has shape .3,.; decode needs .2."),
        ({"page_table": torch.zeros(2, dtype=torch.int32)}, "page_table has shape"),
        ({"page_table": torch.zeros(2, 2, dtype=torch.int32), "kv_layout": "DHN"}, "Available: NHD, HND"),
        ({"k_scale": torch.ones(())}, "k_scale is for caches of torch.float8_e4m3fn"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(options, sentence, device):
    q, k, v = tensors(device=device)
    options = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    with pytest.raises(UnsupportedCase, match=sentence):
        kernels.decode(q, k, v, **options)


def test_dtypes_gradients_and_a_query_whose_last_dimension_is_strided_are_refused(device):
    q, k, v = tensors(device=device)
    with pytest.raises(UnsupportedCase, match=r"A cache of torch.float32 does not go with q of torch.float16"):
        kernels.decode(q, k.float(), v.float())
    with pytest.raises(UnsupportedCase, match="float64; decode takes bfloat16, float16, float32"):
        kernels.decode(q.double(), k.double(), v.double())
    with pytest.raises(UnsupportedCase, match=r"call it under torch.no_grad"):
        kernels.decode(q.requires_grad_(), k, v)
    with torch.no_grad():
        kernels.decode(q, k, v)
    if device == "cpu":
        with pytest.raises(UnsupportedCase, match="triton issue 11584"):
            kernels.decode(*(x.detach().bfloat16() for x in (q, k, v)))
    q, k, v = tensors(device=device, seqlen_q=2)
    with pytest.raises(UnsupportedCase, match="last dimension of q must be contiguous"):
        kernels.decode(q.mT.contiguous().mT, k, v)


def test_a_cache_without_room_gives_zeros(device):
    q, k, v = tensors(device=device, head_dim=MAX_HEAD_DIM)
    out, lse = kernels.decode(q, k[:, :, :0], v[:, :, :0], return_lse=True)
    assert not out.any()
    assert torch.all(lse == float("-inf"))
