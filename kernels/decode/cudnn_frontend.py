"""cuDNN's attention graph over a cache, through nvidia-cudnn-frontend (MIT licence), where it is installed.

Unlike PyTorch's cuDNN backend, this graph takes lengths on the device and page tables (docs/operations/Attention.md of
NVIDIA/cudnn-frontend). The graph is built and planned before a step is timed. Unused entries of the page table are set
to page 0, because cuDNN may read them.
"""

from functools import cache
from typing import Any

import torch

from .. import packages
from ..registry import UnsupportedCase
from .step import DecodeStep

_DTYPES = {torch.bfloat16: "BFLOAT16", torch.float16: "HALF"}


def prepare(step: DecodeStep) -> packages.Step:
    """Return the step as an execution of a built graph. Raises UnsupportedCase where cuDNN has no plan for it."""
    import cudnn

    handle, wide = _handle(step.q.device), cudnn.data_type.FLOAT
    types = {"intermediate_data_type": wide, "compute_data_type": wide}
    graph = cudnn.pygraph(handle=handle, io_data_type=getattr(cudnn.data_type, _DTYPES[step.q.dtype]), **types)
    tensors, options = _arguments(step, cudnn)
    known = {name: graph.tensor_like(tensor) for name, tensor in tensors.items()}
    out_shape = (*step.q.shape[:3], step.v_cache.shape[3])
    out, _ = graph.sdpa(name="decode", is_inference=True, attn_scale=step.scale, **known, **options)
    out.set_output(True).set_dim(list(out_shape)).set_stride(list(torch.empty(out_shape, device="meta").stride()))
    try:
        graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    except (cudnn.cudnnGraphNotSupportedError, RuntimeError) as error:
        raise UnsupportedCase(f"cuDNN has no plan for this case: {' '.join(str(error).split())[:200]}") from error
    workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device=step.q.device)
    pack = {known[name]: tensor for name, tensor in tensors.items()}

    def attend() -> torch.Tensor:
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream(step.q.device).cuda_stream)
        result = step.q.new_empty(out_shape)
        graph.execute({**pack, out: result}, workspace, handle=handle)
        return result

    return attend


def _arguments(step: DecodeStep, cudnn: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the tensors and the options of `sdpa`; caches are (batch or pages, heads, tokens, head_dim)."""
    paged = step.page_table is not None
    k, v = (cache.transpose(1, 2) for cache in (step.k_cache, step.v_cache)) if paged else step.in_use()
    tensors = {"q": step.q, "k": k, "v": v}
    options: dict[str, Any] = {}
    if paged or not step.uniform:
        tensors["seq_len_q"] = torch.full_like(step.cache_seqlens, step.query_tokens).view(-1, 1, 1, 1)
        tensors["seq_len_kv"] = step.cache_seqlens.view(-1, 1, 1, 1)
        options["use_padding_mask"] = True
    if paged:
        table = step.readable_table()[:, None, :, None]
        tensors |= {"paged_attention_k_table": table, "paged_attention_v_table": table.clone()}
        options["paged_attention_max_seq_len_kv"] = step.page_table.shape[1] * step.page_size
    if step.causal and (step.query_tokens > 1 or step.window_size):  # the last query is aligned with the last key
        options["diagonal_alignment"] = cudnn.diagonal_alignment.BOTTOM_RIGHT
        options["diagonal_band_right_bound"] = 0
    if step.window_size:
        options["diagonal_band_left_bound"] = step.window_size
    return tensors, options


@cache
def _handle(device: torch.device) -> Any:
    import cudnn

    with torch.cuda.device(device):
        return cudnn.create_handle()


IMPLEMENTATIONS = packages.decode("cudnn_frontend", prepare)
