"""cuDNN's attention graph over a cache, through nvidia-cudnn-frontend (MIT licence), where it is installed.

PyTorch's own cuDNN backend takes neither pages nor lengths; this graph does: padding by lengths on the device, and page
tables (docs/operations/Attention.md of NVIDIA/cudnn-frontend). The graph is built and its plan chosen before a step is
timed, and the table's entries out of use are set to page 0, as cuDNN may look them up.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from .. import attention_packages, decode_packages
from ..registry import AttentionCase, Device, UnsupportedCase
from .step import DecodeStep


def prepare(step: DecodeStep) -> decode_packages.Step:
    """Return the step as an execution of a built graph. Raises UnsupportedCase where cuDNN has no plan for it."""
    import cudnn

    handle = _handle(step.q.device)
    graph = cudnn.pygraph(
        handle=handle,
        io_data_type=getattr(cudnn.data_type, {"bfloat16": "BFLOAT16", "float16": "HALF"}[_name(step.q.dtype)]),
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
    )
    given = _tensors(step)
    known = {name: graph.tensor_like(tensor) for name, tensor in given.items()}
    out_shape = (*step.q.shape[:3], step.v_cache.shape[3])
    strides = torch.empty(out_shape, device="meta").stride()
    out, _ = graph.sdpa(name="decode", is_inference=True, attn_scale=step.scale, **known, **_mask(step))
    out.set_output(True).set_dim(list(out_shape)).set_stride(list(strides))
    try:
        graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    except (cudnn.cudnnGraphNotSupportedError, RuntimeError) as error:
        raise UnsupportedCase(f"cuDNN has no plan for this case: {' '.join(str(error).split())[:200]}") from error
    workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device=step.q.device)
    pack = {known[name]: tensor for name, tensor in given.items()}

    def attend() -> torch.Tensor:
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream(step.q.device).cuda_stream)
        result = step.q.new_empty(out_shape)
        graph.execute({**pack, out: result}, workspace, handle=handle)
        return result

    return attend


def _tensors(step: DecodeStep) -> dict[str, torch.Tensor]:
    """Return the graph's tensors by the names of its arguments; caches as (batch or pages, heads, tokens, head_dim)."""
    lengths = {
        "seq_len_q": torch.full_like(step.cache_seqlens, step.query_tokens).view(-1, 1, 1, 1),
        "seq_len_kv": step.cache_seqlens.view(-1, 1, 1, 1),
    }
    if step.page_table is None:
        k, v = step.in_use()
        return {"q": step.q, "k": k, "v": v, **({} if step.uniform else lengths)}
    table = step.readable_table()[:, None, :, None]
    k, v = (cache.transpose(1, 2) for cache in (step.k_cache, step.v_cache))
    tables = {"paged_attention_k_table": table, "paged_attention_v_table": table.clone()}
    return {"q": step.q, "k": k, "v": v, **lengths, **tables}


def _mask(step: DecodeStep) -> dict[str, Any]:
    """Return the options of masks: the last query stands at the last key."""
    import cudnn

    found: dict[str, Any] = {}
    if step.page_table is not None or not step.uniform:
        found["use_padding_mask"] = True
    if step.page_table is not None:
        found["paged_attention_max_seq_len_kv"] = step.page_table.shape[1] * step.page_size
    if step.causal and (step.query_tokens > 1 or step.window_size):
        found["diagonal_alignment"] = cudnn.diagonal_alignment.BOTTOM_RIGHT
        found["diagonal_band_right_bound"] = 0
    if step.window_size:
        found["diagonal_band_left_bound"] = step.window_size
    return found


@cache
def _handle(device: torch.device) -> Any:
    import cudnn

    with torch.cuda.device(device):
        return cudnn.create_handle()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _refuses(case: AttentionCase, device: Device) -> str | None:
    if case.window_size and not case.causal:
        return "cudnn_frontend takes a sliding window with a causal mask alone."
    return attention_packages.misaligned("cudnn_frontend", case)


IMPLEMENTATIONS = (
    decode_packages.implementation(
        "cudnn_frontend",
        "cuDNN's attention graph with pages and lengths, through nvidia-cudnn-frontend, where it is installed",
        prepare,
        attention_packages.missing(
            "nvidia-cudnn-frontend", "nvidia-cudnn-frontend is not installed: pip install nvidia-cudnn-frontend."
        ),
        max_head_dim=256,
        paged=True,
        ragged=True,
        planned="the graph and its plan, and a page table without entries out of use",
        min_compute_capability=(8, 0),
        colour="#1b7837",
        refuses=_refuses,
    ),
)
