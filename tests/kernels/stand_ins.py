"""Stand-ins for packages that are not installed: modules with their signatures, which compute with PyTorch.

The versions: flash-attn 2.8.3, flash_attn_interface 3.0.0b1, flash-attn-4 4.0.0b36, flash_mla (April 2026),
flashinfer-python 0.6.13, nvidia-cudnn-frontend 1.32.0 and xformers 0.0.35. A stand-in reads through the page table that
it gets, and nothing beyond a length.
"""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from kernels import features
from kernels.features import Features

_SIGNATURES = tomllib.loads(Path(__file__).with_name("stand_ins.toml").read_text())
FLASH, USED = _SIGNATURES["flash"], _SIGNATURES["used"]
WITH_LSE = ("flash_attn.cute", "flash_mla")  # modules whose functions return more than the output


def attend_packed(q, k, v, starts, **options) -> torch.Tensor:
    """Return attention of packed sequences, one after the other."""
    parts = zip(*(x.split(starts.diff().tolist()) for x in (q, k, v)), strict=True)
    return torch.cat([attend(*(x[None] for x in each), **options)[0] for each in parts])


def attend(
    q,
    k,
    v,
    *,
    lengths=None,
    table=None,
    scale=None,
    causal=False,
    window=(-1, -1),
    starts=None,
    softcap=0.0,
    slopes=None,
    sinks=None,
) -> torch.Tensor:
    """Return attention of q (batch, tokens, heads, head_dim) to k and v of the same layout, or to their pages.

    With starts q is (all tokens, heads, head_dim).

    window: the keys that a query sees before and after its own position. The last query is aligned with the last key.
    """
    causal, window = features.one_window(bool(causal), tuple(-1 if side is None else side for side in window))
    masks: dict[str, Any] = {"causal": causal, "window_size": window, "softmax_scale": scale}
    outs = []
    for at, query in enumerate(q if starts is None else q.split(starts.diff().tolist())):
        pages = None if table is None else table[at, : -(-int(lengths[at]) // k.shape[1])].long()
        keys, values = (x[at] if pages is None else x[pages].flatten(0, 1) for x in (k, v))
        length = len(keys) if lengths is None else int(lengths[at])
        tensors = (x.transpose(0, 1)[None] for x in (query, keys[:length].to(q.dtype), values[:length].to(q.dtype)))
        found = Features(softcap, sinks=sinks, alibi_slopes=None if slopes is None else slopes.expand(len(q), -1)[at])
        outs.append(features.attention(*tensors, found, **masks)[0].transpose(0, 1))
    return torch.stack(outs) if starts is None else torch.cat(outs)


def bound(parameters: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by the names of a function's parameters. Raises TypeError for an unknown name."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [inspect.Parameter(name, kind, default=None) for name in parameters.split()]
    return inspect.Signature(names).bind(*arguments, **keywords).arguments


def _flash(path: str) -> Any:
    def function(*arguments: Any, **keywords: Any) -> Any:
        given = {USED[name]: value for name, value in bound(FLASH[path], arguments, keywords).items()}
        window = given.setdefault("window", (-1, -1))
        if "window_size" in keywords:
            assert isinstance(window, tuple)
            assert (-1 if "cute" in path else None) not in window, "the package has another word for all keys"
        assert not (given["causal"] and any(side not in (-1, None) for side in window))
        q, k = given.pop("q"), given.pop("k")
        if "starts_k" in given:
            starts = given["starts"]
            assert torch.equal(starts, given.pop("starts_k"))
            assert starts.diff().max() == given.pop("longest") == given.pop("longest_k")
            out = attend_packed(q, k, given.pop("v"), **given)
            return (out, None) if path.startswith(WITH_LSE) else out
        if latent_dim := given.pop("latent_dim", None):  # FlashMLA
            assert k.shape[1:] == (64, 1, 576) and given.pop("schedule") == "schedule"
            given["v"] = k[..., :latent_dim]
        if (latent := given.pop("qv", None)) is not None:  # scores of both parts, values of the latent
            assert q.shape[-1] == k.shape[-1] == 64
            q, k = torch.cat((latent, q), -1), torch.cat((given["v"], k), -1)
        out = attend(q, k, given.pop("v"), **given)
        return (out, None) if path.startswith(WITH_LSE) else out

    return function


class _Band:
    """A mask of xFormers: LowerTriangularFromBottomRightMask, or LocalAttentionFromBottomRightMask with sides."""

    def __init__(self, window_left=-1, window_right=0):
        self.window = (window_left, window_right)

    def make_local_attention(self, window_size):
        return _Band(window_size - 1, 0)


class _Blocks:
    """BlockDiagonalMask."""

    def __init__(self, starts, window=(-1, -1)):
        self.starts, self.window = starts, window

    @classmethod
    def from_seqlens(cls, q_seqlen, kv_seqlen=None, *, device=None):
        return cls(torch.tensor([0, *q_seqlen]).cumsum(0))

    def make_causal(self):
        return _Blocks(self.starts, (-1, 0))


class _PagedMask:
    """PagedBlockDiagonalPaddedKeysMask."""

    causal = False

    @classmethod
    def from_seqlens(cls, q_seqlen, kv_seqlen, block_tables, page_size, *, device=None):
        made = cls()
        made.tokens, made.lengths, made.table, made.page_size = q_seqlen[0], kv_seqlen, block_tables, page_size
        return made


class _CausalPagedMask(_PagedMask):
    """PagedBlockDiagonalCausalWithOffsetPaddedKeysMask."""

    causal = True


def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None, output_dtype=None):
    assert (p, op, output_dtype) == (0.0, None, None)
    q, k, v = query, key, value
    if query.ndim == 5:  # (batch, seqlen, groups, heads of a group, head_dim)
        assert not any(x.requires_grad for x in (q, k, v)), "its backward takes no groups"
        assert q.shape[2:4] == k.shape[2:4] and k.stride(3) == v.stride(3) == 0
        q, k, v = (x.flatten(2, 3) for x in (q, k, v))
    assert q.shape[2] == k.shape[2]
    window = attn_bias.window if attn_bias else (-1, -1)
    if isinstance(attn_bias, _Blocks):
        out = attend_packed(q[0], k[0], v[0], attn_bias.starts, scale=scale, window=window)
        return out.reshape(query.shape)
    return attend(q, k, v, scale=scale, window=window).reshape(query.shape)


def memory_efficient_attention_forward(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None):
    k, v = (x[0, :, :, 0].unflatten(0, (-1, attn_bias.page_size)) for x in (key, value))
    q, pages = query[0].flatten(1, 2).unflatten(0, (-1, attn_bias.tokens)), {"table": attn_bias.table}
    out = attend(q, k, v, lengths=attn_bias.lengths, scale=scale, causal=attn_bias.causal, **pages)
    return out.flatten(0, 1).unflatten(1, key.shape[2:4])[None]


class _Wrapper:
    """A wrapper of FlashInfer for keys and values."""

    parameters = _SIGNATURES["plans"]["decode"]

    def __init__(self, workspace, kv_layout="NHD", use_cuda_graph=False, use_tensor_cores=False, backend="auto"):
        assert workspace.dtype == torch.uint8
        self.layout = kv_layout

    def plan(self, *arguments, **keywords):
        given = self.given = bound(self.parameters, arguments, keywords)
        counts = given["indptr"].diff().tolist()
        table = torch.nn.utils.rnn.pad_sequence(given["indices"].split(counts), batch_first=True)
        lengths = given.get("kv_len_arr")
        if lengths is None:
            before = [(count - 1) * given["page_size"] for count in counts]
            lengths = given["last_page_len"] + torch.tensor(before)
        self.options = {"table": table, "lengths": lengths, "scale": given["sm_scale"]}
        self.options |= {"causal": given.get("causal", True), "window": (given.get("window_left", -1), -1)}
        self.options["starts"] = given.get("qo_indptr", torch.arange(len(counts) + 1))

    def run(self, q, paged_kv_cache):
        k, v = (x.transpose(1, 2) if self.layout == "HND" else x for x in paged_kv_cache)
        return attend(q, k, v, **self.options)


class _Prefill(_Wrapper):
    parameters = _SIGNATURES["plans"]["prefill"]


class _Mla(_Wrapper):
    """BatchMLAPagedAttentionWrapper."""

    parameters = _SIGNATURES["plans"]["mla"]

    def run(self, q_nope, q_pe, ckv_cache, kpe_cache, out=None, lse=None, return_lse=False):
        assert (self.given["head_dim_ckv"], self.given["head_dim_kpe"]) == (512, 64)
        records = torch.cat((ckv_cache, kpe_cache), -1).unsqueeze(2)
        return super().run(torch.cat((q_nope, q_pe), -1), (records, records[..., :512]))


class _Known:
    """A tensor of a graph of cuDNN."""

    def set_output(self, value):
        return self

    def set_dim(self, dim):
        assert isinstance(dim, list)
        return self

    def set_stride(self, stride):
        return self


class _Graph:
    """cudnn.pygraph, as far as a step uses its sdpa."""

    def __init__(self, *, handle, io_data_type, intermediate_data_type, compute_data_type):
        self.built = False

    def tensor_like(self, template):
        return _Known()

    def sdpa(self, q, k, v, *, name, is_inference, attn_scale, use_padding_mask=False, seq_len_q=None, seq_len_kv=None,
             paged_attention_k_table=None, paged_attention_v_table=None, paged_attention_max_seq_len_kv=None,
             diagonal_alignment=None, diagonal_band_left_bound=None, diagonal_band_right_bound=None):  # fmt: skip
        assert use_padding_mask == (seq_len_kv is not None)
        assert (paged_attention_k_table is None) == (paged_attention_max_seq_len_kv is None)
        assert diagonal_band_right_bound is None or diagonal_alignment == "BOTTOM_RIGHT"
        self.inputs = q, k, v, seq_len_kv, paged_attention_k_table
        left = -1 if diagonal_band_left_bound is None else diagonal_band_left_bound - 1
        self.options = {"scale": attn_scale, "causal": diagonal_band_right_bound is not None, "window": (left, -1)}
        self.out = _Known()
        return self.out, None

    def build(self, heuristics):
        self.built = True

    def get_workspace_size(self):
        return 0

    def execute(self, pack, workspace, handle=None):
        assert self.built
        q, k, v, lengths, table = (None if known is None else pack[known] for known in self.inputs)
        lengths = None if lengths is None else lengths.flatten()
        table = None if table is None else table[:, 0, :, 0]
        assert table is None or int(table.max()) < len(k), "cuDNN may look up entries out of use"
        tokens_first = (x.transpose(1, 2) for x in (q, k, v))
        pack[self.out].copy_(attend(*tokens_first, lengths=lengths, table=table, **self.options).transpose(1, 2))


_CONTENT: dict[str, dict[str, Any]] = {  # module -> its content; a module's parents are made too
    "flash_mla": {"get_mla_metadata": lambda: ("schedule", None)},
    "flashinfer": {"BatchDecodeWithPagedKVCacheWrapper": _Wrapper, "BatchPrefillWithPagedKVCacheWrapper": _Prefill},
    "flashinfer.mla": {"BatchMLAPagedAttentionWrapper": _Mla},
    "cudnn": {
        "data_type": SimpleNamespace(BFLOAT16=0, HALF=1, FLOAT=2),
        "heur_mode": SimpleNamespace(A=0, FALLBACK=1),
        "diagonal_alignment": SimpleNamespace(BOTTOM_RIGHT="BOTTOM_RIGHT"),
        "cudnnGraphNotSupportedError": type("cudnnGraphNotSupportedError", (RuntimeError,), {}),
        "pygraph": _Graph,
        "set_stream": lambda handle, stream: None,
    },
    "xformers.ops": {
        "memory_efficient_attention": memory_efficient_attention,
        "memory_efficient_attention_forward": memory_efficient_attention_forward,
    },
    "xformers.ops.fmha.attn_bias": {
        "BlockDiagonalMask": _Blocks,
        "LocalAttentionFromBottomRightMask": _Band,
        "LowerTriangularFromBottomRightMask": _Band,
        "PagedBlockDiagonalPaddedKeysMask": _PagedMask,
        "PagedBlockDiagonalCausalWithOffsetPaddedKeysMask": _CausalPagedMask,
    },
}
for _path in FLASH:
    _CONTENT.setdefault(_path.partition(":")[0], {})[_path.partition(":")[2]] = _flash(_path)


def modules() -> dict[str, ModuleType]:
    """Return all stand-ins and their parents, by the names of sys.modules."""
    made: dict[str, ModuleType] = {}
    for name, content in _CONTENT.items():
        parts = name.split(".")
        for at in range(1, len(parts) + 1):
            made.setdefault(".".join(parts[:at]), ModuleType(".".join(parts[:at])))
        vars(made[name]).update(content)
    for name, module in made.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(made[parent], child, module)
    return made
