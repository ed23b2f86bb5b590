"""The decoding peers: called through stand-ins, modules with the signatures of the real ones that compute with PyTorch.

flash-attn 2.8.3, flash_attn_interface 3.0.0b1, flash-attn-4 4.0.0b36, flash_mla (April 2026), flashinfer-python 0.6.13,
nvidia-cudnn-frontend 1.32.0 and xformers 0.0.35. A stand-in reads through the page table that it is given, and none of
what lies beyond a length.
"""

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
import torch

from kernels import registry
from kernels.decode import cudnn_frontend, flash_attn_2, flash_attn_3, flash_attn_4, flash_mla, flashinfer, flex_paged
from kernels.decode import xformers as xformers_decode
from kernels.reference import attention as reference_attention
from kernels.registry import Device, UnsupportedCase
from results.records import decode_case
from runner.levels import decode, make_inputs
from runner.measure.check import check, make_oracle

CASE = decode_case(batch=3, num_heads=4, num_kv_heads=2, context=64, head_dim=16, dtype="float32")
LATENT = decode_case(
    batch=3, num_heads=4, num_kv_heads=1, context=128, head_dim=576, dtype="float32", latent_dim=512, page_size=64
)
PAGED, RAGGED, E4M3 = {"page_size": 16}, {"lengths": "ragged"}, {"cache_dtype": "float8_e4m3fn"}
H200 = Device("cuda", "NVIDIA H200", (9, 0), 232448, 150 << 30)
PEERS = ("cudnn_frontend", "flash_attn_2", "flash_attn_3", "flash_attn_4", "flash_mla", "flashinfer", "xformers")


def attend(q, k, v, lengths, table=None, scale=None, causal=True, window=0):
    """Attention of q: (batch, tokens, heads, head_dim) to caches laid out so, or to their pages."""
    outs = []
    for at, length in enumerate(lengths):
        if table is None:
            keys, values = k[at, :length], v[at, :length]
        else:
            pages = table[at, : -(-length // k.shape[1])].long()
            keys, values = (cache[pages].flatten(0, 1)[:length] for cache in (k, v))
        one = (x.transpose(0, 1)[None] for x in (q[at], keys, values))
        answer = reference_attention(*one, causal=causal, window_size=window, softmax_scale=scale).out
        outs.append(answer.transpose(1, 2))
    return torch.cat(outs).to(q.dtype)


def width_of(window_size, causal):
    """The window of (keys before, keys after), none for every kind of 'all'."""
    before, after = window_size
    assert after in ((-1, None, 0) if causal else (-1, None, before))
    return 0 if before in (-1, None) else before + 1


def flash_attn_2_stand_in():
    def flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        k=None,
        v=None,
        rotary_cos=None,
        rotary_sin=None,
        cache_seqlens=None,
        cache_batch_idx=None,
        cache_leftpad=None,
        block_table=None,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        rotary_interleaved=True,
        alibi_slopes=None,
        num_splits=0,
        return_softmax_lse=False,
    ):
        assert (k, v, rotary_cos, rotary_sin, cache_batch_idx, cache_leftpad, alibi_slopes) == (None,) * 7
        assert k_cache.stride(-1) == v_cache.stride(-1) == 1
        window = width_of(window_size, causal)
        return attend(q, k_cache, v_cache, cache_seqlens.tolist(), block_table, softmax_scale, causal, window)

    return {"flash_attn": _module("flash_attn", flash_attn_with_kvcache=flash_attn_with_kvcache)}


def flash_attn_3_stand_in():
    def flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        k=None,
        v=None,
        qv=None,
        rotary_cos=None,
        rotary_sin=None,
        cache_seqlens=None,
        cache_batch_idx=None,
        cache_leftpad=None,
        page_table=None,
        cu_seqlens_q=None,
        cu_seqlens_k_new=None,
        max_seqlen_q=None,
        rotary_seqlens=None,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        attention_chunk=0,
        softcap=0.0,
        rotary_interleaved=True,
        scheduler_metadata=None,
        num_splits=0,
        pack_gqa=None,
        sm_margin=0,
        return_softmax_lse=False,
    ):
        assert (k, v, cache_batch_idx, cu_seqlens_q, scheduler_metadata, k_descale) == (None,) * 6
        if qv is not None:  # scores of both parts, values of the latent
            assert q.shape[-1] == k_cache.shape[-1] == 64
            q, k_cache = torch.cat((qv, q), -1), torch.cat((v_cache, k_cache), -1)
        window = width_of(window_size, causal)
        return attend(q, k_cache, v_cache, cache_seqlens.tolist(), page_table, softmax_scale, causal, window)

    return {"flash_attn_interface": _module("flash_attn_interface", flash_attn_with_kvcache=flash_attn_with_kvcache)}


def flash_attn_4_stand_in():
    def flash_attn_func(
        q,
        k,
        v,
        qv=None,
        gather_kv_indices=None,
        softmax_scale=None,
        causal=False,
        window_size=(None, None),
        learnable_sink=None,
        softcap=0.0,
        num_splits=1,
        pack_gqa=None,
        deterministic=False,
        **more,
    ):
        lengths = [k.shape[1]] * len(q)
        window = width_of(window_size, True)
        return attend(q, k, v, lengths, None, softmax_scale, causal or bool(window), window), None

    def flash_attn_varlen_func(
        q,
        k,
        v,
        qv=None,
        cu_seqlens_q=None,
        cu_seqlens_k=None,
        max_seqlen_q=None,
        max_seqlen_k=None,
        min_seqlen_k=None,
        seqused_q=None,
        seqused_k=None,
        gather_kv_indices=None,
        page_table=None,
        softmax_scale=None,
        causal=False,
        window_size=(None, None),
        learnable_sink=None,
        softcap=0.0,
        num_splits=1,
        **more,
    ):
        assert num_splits == 1, "SplitKV not supported on SM 9.0"
        window = width_of(window_size, True)
        causal = causal or bool(window)
        return attend(q, k, v, seqused_k.tolist(), page_table, softmax_scale, causal, window), None

    cute = _module("flash_attn.cute", flash_attn_func=flash_attn_func, flash_attn_varlen_func=flash_attn_varlen_func)
    return {"flash_attn": _module("flash_attn", cute=cute), "flash_attn.cute": cute}


def flash_mla_stand_in():
    def get_mla_metadata(*args, **kwargs):
        return SimpleNamespace(have_initialized=False), None

    def flash_mla_with_kvcache(
        q,
        k_cache,
        block_table,
        cache_seqlens,
        head_dim_v,
        tile_scheduler_metadata,
        num_splits=None,
        softmax_scale=None,
        causal=False,
        is_fp8_kvcache=False,
        indices=None,
    ):
        assert num_splits is None
        assert k_cache.shape[1:] == (64, 1, 576)
        tile_scheduler_metadata.have_initialized = True
        values = k_cache[..., :head_dim_v]
        return attend(q, k_cache, values, cache_seqlens.tolist(), block_table, softmax_scale, causal), None

    return {
        "flash_mla": _module(
            "flash_mla", get_mla_metadata=get_mla_metadata, flash_mla_with_kvcache=flash_mla_with_kvcache
        )
    }


class Planned:
    """What FlashInfer's wrappers of keys and values have in common."""

    def __init__(
        self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, use_tensor_cores=False, backend="auto"
    ):
        assert float_workspace_buffer.dtype == torch.uint8
        self.layout, self.tokens, self.causal = kv_layout, 1, True

    def keep(self, indptr, indices, last_page_len, page_size, window_left, sm_scale):
        counts = indptr.diff().tolist()
        self.lengths = [(n - 1) * page_size + last for n, last in zip(counts, last_page_len.tolist(), strict=True)]
        self.table = torch.nn.utils.rnn.pad_sequence(indices.split(counts), batch_first=True)
        self.window, self.scale = window_left + 1, sm_scale

    def run(self, q, paged_kv_cache):
        k, v = (x.transpose(1, 2) if self.layout == "HND" else x for x in paged_kv_cache)
        k, v = (x.to(q.dtype) for x in (k, v))
        q = q.unflatten(0, (-1, self.tokens))
        out = attend(q, k, v, self.lengths, self.table, self.scale, self.causal, self.window)
        return out.flatten(0, 1)


class BatchDecode(Planned):
    """BatchDecodeWithPagedKVCacheWrapper."""

    def plan(
        self,
        indptr,
        indices,
        last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        page_size,
        pos_encoding_mode="NONE",
        window_left=-1,
        logits_soft_cap=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type=None,
        data_type=None,
        sm_scale=None,
    ):
        self.keep(indptr, indices, last_page_len, page_size, window_left, sm_scale)


class BatchPrefill(Planned):
    """BatchPrefillWithPagedKVCacheWrapper."""

    def plan(
        self,
        qo_indptr,
        paged_kv_indptr,
        paged_kv_indices,
        paged_kv_last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        page_size,
        head_dim_vo=None,
        custom_mask=None,
        packed_custom_mask=None,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        sm_scale=None,
        window_left=-1,
        logits_soft_cap=None,
        rope_scale=None,
        rope_theta=None,
        q_data_type="float16",
        kv_data_type=None,
    ):
        self.tokens, self.causal = int(qo_indptr[1]), causal
        self.keep(paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size, window_left, sm_scale)


class BatchMLA:
    """BatchMLAPagedAttentionWrapper."""

    def __init__(self, float_workspace_buffer, use_cuda_graph=False, qo_indptr=None, kv_indptr=None, kv_indices=None,
                 kv_len_arr=None, backend="auto"):  # fmt: skip
        pass

    def plan(
        self,
        qo_indptr,
        kv_indptr,
        kv_indices,
        kv_len_arr,
        num_heads,
        head_dim_ckv,
        head_dim_kpe,
        page_size,
        causal,
        sm_scale,
        q_data_type,
        kv_data_type,
        use_profiler=False,
    ):
        assert (head_dim_ckv, head_dim_kpe) == (512, 64)
        self.tokens, self.causal, self.scale = int(qo_indptr[1]), causal, sm_scale
        self.lengths = kv_len_arr.tolist()
        self.table = torch.nn.utils.rnn.pad_sequence(kv_indices.split(kv_indptr.diff().tolist()), batch_first=True)

    def run(self, q_nope, q_pe, ckv_cache, kpe_cache, out=None, lse=None, return_lse=False):
        q = torch.cat((q_nope, q_pe), -1).unflatten(0, (-1, self.tokens))
        records = torch.cat((ckv_cache, kpe_cache), -1).unsqueeze(2)
        out = attend(q, records, records[..., :512], self.lengths, self.table, self.scale, self.causal)
        return out.flatten(0, 1)


def flashinfer_stand_in():
    mla = _module("flashinfer.mla", BatchMLAPagedAttentionWrapper=BatchMLA)
    wrappers = {"BatchDecodeWithPagedKVCacheWrapper": BatchDecode, "BatchPrefillWithPagedKVCacheWrapper": BatchPrefill}
    return {"flashinfer": _module("flashinfer", mla=mla, **wrappers), "flashinfer.mla": mla}


class Known:
    """A tensor of a graph of cuDNN."""

    def set_output(self, value):
        return self

    def set_dim(self, dim):
        assert isinstance(dim, list)
        return self

    def set_stride(self, stride):
        return self


class Graph:
    """cudnn.pygraph, with what a step uses of its sdpa."""

    def __init__(self, *, handle, io_data_type, intermediate_data_type, compute_data_type):
        self.built = False

    def tensor_like(self, template):
        return Known()

    def sdpa(self, q, k, v, *, name, is_inference, attn_scale, use_padding_mask=False, seq_len_q=None, seq_len_kv=None,
             paged_attention_k_table=None, paged_attention_v_table=None, paged_attention_max_seq_len_kv=None,
             diagonal_alignment=None, diagonal_band_left_bound=None, diagonal_band_right_bound=None):  # fmt: skip
        assert use_padding_mask == (seq_len_kv is not None)
        assert (paged_attention_k_table is None) == (paged_attention_max_seq_len_kv is None)
        assert diagonal_band_right_bound is None or diagonal_alignment == "BOTTOM_RIGHT"
        self.inputs = q, k, v, seq_len_kv, paged_attention_k_table
        self.mask = diagonal_band_right_bound is not None, diagonal_band_left_bound or 0
        self.scale, self.out = attn_scale, Known()
        return self.out, None

    def build(self, heuristics):
        self.built = True

    def get_workspace_size(self):
        return 0

    def execute(self, pack, workspace, handle=None):
        assert self.built
        q, k, v, lengths, table = (None if known is None else pack[known] for known in self.inputs)
        lengths = [k.shape[2]] * len(q) if lengths is None else lengths.flatten().tolist()
        table = None if table is None else table[:, 0, :, 0]
        assert table is None or int(table.max()) < len(k), "cuDNN may look up entries out of use"
        causal, window = self.mask
        tokens_first = (x.transpose(1, 2) for x in (q, k, v))
        pack[self.out].copy_(attend(*tokens_first, lengths, table, self.scale, causal, window).transpose(1, 2))


def cudnn_stand_in():
    types = SimpleNamespace(BFLOAT16=0, HALF=1, FLOAT=2)
    return {
        "cudnn": _module(
            "cudnn",
            data_type=types,
            heur_mode=SimpleNamespace(A=0, FALLBACK=1),
            diagonal_alignment=SimpleNamespace(BOTTOM_RIGHT="BOTTOM_RIGHT"),
            cudnnGraphNotSupportedError=type("cudnnGraphNotSupportedError", (RuntimeError,), {}),
            pygraph=Graph,
            create_handle=lambda: object(),
            set_stream=lambda handle, stream: None,
        )
    }


class PagedMask:
    """xFormers' masks of pages; the causal one hides what comes after a query's own position."""

    def __init__(self, **given):
        self.__dict__ |= given

    @classmethod
    def from_seqlens(cls, q_seqlen, kv_seqlen, block_tables, page_size, *, device=None):
        return cls(tokens=q_seqlen[0], lengths=kv_seqlen, table=block_tables, page_size=page_size)


class CausalPagedMask(PagedMask):
    """PagedBlockDiagonalCausalWithOffsetPaddedKeysMask."""


def xformers_stand_in():
    def memory_efficient_attention_forward(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None):
        pages = [x[0, :, :, 0].unflatten(0, (-1, attn_bias.page_size)) for x in (key, value)]
        q = query[0].flatten(1, 2).unflatten(0, (-1, attn_bias.tokens))
        causal = isinstance(attn_bias, CausalPagedMask)
        out = attend(q, *pages, attn_bias.lengths, attn_bias.table, scale, causal)
        return out.flatten(0, 1).unflatten(1, key.shape[2:4])[None]

    def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None):
        q, k, v = (x.flatten(2, 3) if x.dim() == 5 else x for x in (query, key, value))
        lengths, causal = [k.shape[1]] * len(q), attn_bias is not None
        return attend(q, k, v, lengths, None, scale, causal, getattr(attn_bias, "window", 0)).reshape(query.shape)

    attn_bias = _module(
        "xformers.ops.fmha.attn_bias",
        PagedBlockDiagonalPaddedKeysMask=PagedMask,
        PagedBlockDiagonalCausalWithOffsetPaddedKeysMask=CausalPagedMask,
        LowerTriangularFromBottomRightMask=lambda: SimpleNamespace(
            make_local_attention=lambda window: SimpleNamespace(window=window)
        ),
    )
    fmha = _module("xformers.ops.fmha", attn_bias=attn_bias)
    functions = (memory_efficient_attention, memory_efficient_attention_forward)
    ops = _module("xformers.ops", fmha=fmha, **{function.__name__: function for function in functions})
    return {
        "xformers": _module("xformers", ops=ops),
        "xformers.ops": ops,
        "xformers.ops.fmha": fmha,
        "xformers.ops.fmha.attn_bias": attn_bias,
    }


def _module(name, **content):
    module = ModuleType(name)
    module.__dict__.update(content)
    return module


STAND_INS = {
    flash_attn_2: flash_attn_2_stand_in,
    flash_attn_3: flash_attn_3_stand_in,
    flash_attn_4: flash_attn_4_stand_in,
    flash_mla: flash_mla_stand_in,
    flashinfer: flashinfer_stand_in,
    cudnn_frontend: cudnn_stand_in,
    xformers_decode: xformers_stand_in,
}
CASES = [
    replace(case, **form)
    for case in (CASE, replace(CASE, seqlen_q=3), replace(CASE, window_size=7))
    for form in ({}, PAGED, RAGGED, {**PAGED, **RAGGED}, {"page_size": 256, **RAGGED}, {**PAGED, **E4M3})
] + [LATENT, replace(LATENT, seqlen_q=2, **RAGGED)]


@pytest.fixture
def on_cpu(monkeypatch):
    """What the adapters ask of a GPU, answered by the CPU: its stream, and head_dim and dtype as the kernels' own."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(cudnn_frontend, "_handle", lambda device: object())
    monkeypatch.setattr(cudnn_frontend, "_name", lambda dtype: "float16")
    monkeypatch.setattr(flashinfer, "_HEAD_DIMS", (16,))
    monkeypatch.setattr(flashinfer, "_WORKSPACE_BYTES", 1 << 10)


@pytest.mark.parametrize("module", STAND_INS, ids=lambda module: module.__name__.rpartition(".")[2])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_peer_is_called_so_that_the_answer_is_right(module, case, monkeypatch, on_cpu) -> None:
    (declared,) = module.IMPLEMENTATIONS
    rules = replace(declared, unavailable=None)
    if reason := rules.reason_against(replace(case, dtype="float16", cache_dtype=_cache_of(case)), H200):
        assert declared.name in reason
        return
    for name, stand_in in STAND_INS[module]().items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    (step,) = decode.PASSES
    checked = check(module.prepare, step, make_oracle(make_inputs(case, "cpu", seed=5), seed=5))
    assert checked.reason is None


def _cache_of(case):
    return "float16" if case.cache_dtype == case.dtype else case.cache_dtype


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("flash_attn_2", {"page_size": 16}, "multiple of 256"),
        ("flash_attn_2", {"head_dim": 20, "head_dim_v": 20}, "divisible by 8"),
        ("flash_mla", {}, "latent caches alone"),
        ("flashinfer", {"head_dim": 96, "head_dim_v": 96}, "head_dim of 64, 128, 256"),
        ("xformers", {"lengths": "ragged"}, "paged caches alone"),
        ("cudnn_frontend", {"cache_dtype": "float8_e4m3fn"}, "caches in float8_e4m3fn"),
        ("torch_sdpa_cudnn", {"lengths": "ragged"}, "sequences of different lengths"),
        ("torch_sdpa_flash", {"page_size": 16}, "paged caches"),
        ("flex_paged", {"page_size": 16}, "multiple of 64"),
        ("flex_paged", {"page_size": 256}, "must fill its pages"),
        ("flex_paged", {"page_size": 64, "lengths": "ragged"}, "sequences of different lengths"),
        ("flash_attn_4", {"latent_dim": 8}, "latent caches"),
    ],
)
def test_what_a_peer_cannot_do_is_said_before_it_is_tried(name, changes, reason) -> None:
    case = replace(
        CASE, **{"dtype": "bfloat16", "cache_dtype": "bfloat16", "head_dim": 64, "head_dim_v": 64, **changes}
    )
    implementation = replace(registry.get(name, "decode"), unavailable=None)
    assert reason in implementation.reason_against(case, H200)


@pytest.mark.parametrize("page_size", [1, 16, 256])
def test_flash_mla_takes_pages_of_64_alone(page_size) -> None:
    case = replace(LATENT, dtype="bfloat16", cache_dtype="bfloat16")
    implementation = replace(registry.get("flash_mla", "decode"), unavailable=None)
    assert implementation.reason_against(case, H200) is None
    assert "pages of 64" in implementation.reason_against(replace(case, page_size=page_size), H200)


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_that_is_not_installed_is_never_imported(name) -> None:
    implementation = registry.get(name, "decode")
    if implementation.unavailable is None:
        pytest.skip("installed here")
    assert "not installed" in implementation.reason_against(CASE, H200)
    with pytest.raises(UnsupportedCase, match="not installed"):
        implementation.attention(make_inputs(CASE, "cpu", seed=0).step)


def test_every_peer_says_what_it_plans_before_it_is_timed() -> None:
    planned = {name: registry.get(name, "decode").planned for name in (*PEERS, "triton_split_kv", "flex_paged")}
    assert planned["triton_split_kv"] is None
    assert planned["flash_attn_3"] is None
    assert "plan()" in planned["flashinfer"]
    assert registry.get("flashinfer", "decode").facts["planned"] == planned["flashinfer"]
    assert "planned" not in registry.get("triton_split_kv", "decode").facts


@pytest.mark.parametrize("tokens", [1, 4])
def test_flex_sees_the_pages_of_a_sequence_and_of_the_last_what_comes_before_a_query(tokens) -> None:
    step = make_inputs(replace(CASE, page_size=64, seqlen_k=192, seqlen_q=tokens), "cpu", seed=0).step
    mask = flex_paged.block_mask(step)
    for at in range(3):
        whole = mask.full_kv_indices[at, 0, 0, : int(mask.full_kv_num_blocks[at, 0, 0])].tolist()
        partly = mask.kv_indices[at, 0, 0, : int(mask.kv_num_blocks[at, 0, 0])].tolist()
        assert whole + partly == step.page_table[at].tolist()
        assert len(partly) == (tokens > 1)
        for query in range(tokens):
            keys = torch.arange(64) + 64 * int(step.page_table[at, 2])
            seen = mask.mask_mod(at, 0, query, keys)
            assert int(seen.sum()) == 64 - tokens + 1 + query
