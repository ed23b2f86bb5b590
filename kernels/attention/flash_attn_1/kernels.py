"""Algorithms 1 and 4 of FlashAttention (arXiv 2205.14135): a program walks all blocks of one head.

Within a block of keys every block of queries is its own rows, and a barrier stands between one block of keys and the
next: what one thread wrote to device memory another may read.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _tile(
    ptr, rows, stride, limit, BLOCK_D: tl.constexpr, HEAD_DIM: tl.constexpr
):  # fmt: skip
    """Return pointers and mask of rows: (rows, BLOCK_D)."""
    dims = tl.arange(0, BLOCK_D)
    pointers = ptr + rows.to(tl.int64)[:, None] * stride + dims[None, :]
    return pointers, (rows < limit)[:, None] & (dims < HEAD_DIM)[None, :]


@triton.jit
def _load(ptr, rows, stride, limit, BLOCK_D: tl.constexpr, HEAD_DIM: tl.constexpr):
    pointers, mask = _tile(ptr, rows, stride, limit, BLOCK_D, HEAD_DIM)
    return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def _store(ptr, rows, stride, limit, tile, BLOCK_D: tl.constexpr, HEAD_DIM: tl.constexpr):
    pointers, mask = _tile(ptr, rows, stride, limit, BLOCK_D, HEAD_DIM)
    tl.store(pointers, tile.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def _scores(q, k, rows, keys, seqlen_q, seqlen_k, scale, CAUSAL: tl.constexpr):
    """Return scores times log2(e), -inf where a query must not look; the last query stands at the last key."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2_E)
    visible = (keys < seqlen_k)[None, :]
    if CAUSAL:
        visible = visible & (keys[None, :] <= rows[:, None] + (seqlen_k - seqlen_q))
    return tl.where(visible, s, float("-inf"))


@triton.jit
def _first_row(start_n, seqlen_q, seqlen_k, BLOCK_M: tl.constexpr, CAUSAL: tl.constexpr):
    """Return the block of queries from which on some query sees a key of the block at start_n."""
    first = 0
    if CAUSAL:
        first = tl.maximum(0, start_n - (seqlen_k - seqlen_q)) // BLOCK_M * BLOCK_M
    return first


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, total_ptr, highest_ptr,
    q_b, q_h, q_m, k_b, k_h, k_n, v_b, v_h, v_n, o_b, o_h, o_m,
    num_heads, num_kv_heads, seqlen_q, seqlen_k, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Add every block of keys to out, sum and maximum of all rows of a head, which are float32 in device memory."""
    head = tl.program_id(0).to(tl.int64)
    batch, query_head = head // num_heads, head % num_heads
    key_head = query_head // (num_heads // num_kv_heads)
    q_ptr += batch * q_b + query_head * q_h
    k_ptr += batch * k_b + key_head * k_h
    v_ptr += batch * v_b + key_head * v_h
    out_ptr += batch * o_b + query_head * o_h
    total_ptr += head * seqlen_q
    highest_ptr += head * seqlen_q
    for start_n in range(0, seqlen_k, BLOCK_N):
        keys = start_n + tl.arange(0, BLOCK_N)
        k = _load(k_ptr, keys, k_n, seqlen_k, BLOCK_D, HEAD_DIM)
        v = _load(v_ptr, keys, v_n, seqlen_k, BLOCK_D, HEAD_DIM)
        for start_m in range(_first_row(start_n, seqlen_q, seqlen_k, BLOCK_M, CAUSAL), seqlen_q, BLOCK_M):
            rows = start_m + tl.arange(0, BLOCK_M)
            q = _load(q_ptr, rows, q_m, seqlen_q, BLOCK_D, HEAD_DIM)
            s = _scores(q, k, rows, keys, seqlen_q, seqlen_k, scale, CAUSAL)
            highest = tl.load(highest_ptr + rows, mask=rows < seqlen_q, other=float("-inf"))
            total = tl.load(total_ptr + rows, mask=rows < seqlen_q, other=0.0)
            new_highest = tl.maximum(highest, tl.max(s, 1))
            shown = tl.where(new_highest == float("-inf"), 0.0, new_highest)  # of rows that see no key so far
            p = tl.exp2(s - shown[:, None])
            rescaled = total * tl.exp2(highest - shown)
            new_total = rescaled + tl.sum(p, 1)
            out = _load(out_ptr, rows, o_m, seqlen_q, BLOCK_D, HEAD_DIM) * rescaled[:, None]
            out += tl.dot(p.to(v.dtype), v, input_precision="ieee")
            out = out / tl.where(new_total == 0.0, 1.0, new_total)[:, None]
            _store(out_ptr, rows, o_m, seqlen_q, out, BLOCK_D, HEAD_DIM)
            tl.store(total_ptr + rows, new_total, mask=rows < seqlen_q)
            tl.store(highest_ptr + rows, new_highest, mask=rows < seqlen_q)
        tl.debug_barrier()


@triton.jit
def backward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, dout_ptr, dq_ptr, dk_ptr, dv_ptr, total_ptr, highest_ptr,
    q_b, q_h, q_m, k_b, k_h, k_n, v_b, v_h, v_n, o_b, o_h, o_m, do_b, do_h, do_m,
    dq_b, dq_h, dq_m, dk_b, dk_h, dk_n, dv_b, dv_h, dv_n,
    num_heads, num_kv_heads, seqlen_q, seqlen_k, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of a key head block by block; dq grows in float32 in device memory.

    A program does all query heads that share the key head, so that nothing is added by two.
    """
    program = tl.program_id(0).to(tl.int64)
    batch, key_head = program // num_kv_heads, program % num_kv_heads
    group = num_heads // num_kv_heads
    k_ptr += batch * k_b + key_head * k_h
    v_ptr += batch * v_b + key_head * v_h
    dk_ptr += batch * dk_b + key_head * dk_h
    dv_ptr += batch * dv_b + key_head * dv_h
    for start_n in range(0, seqlen_k, BLOCK_N):
        keys = start_n + tl.arange(0, BLOCK_N)
        k = _load(k_ptr, keys, k_n, seqlen_k, BLOCK_D, HEAD_DIM)
        v = _load(v_ptr, keys, v_n, seqlen_k, BLOCK_D, HEAD_DIM)
        dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
        dv = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
        for of_group in range(group):
            query_head = key_head * group + of_group
            q_at = q_ptr + batch * q_b + query_head * q_h
            out_at = out_ptr + batch * o_b + query_head * o_h
            dout_at = dout_ptr + batch * do_b + query_head * do_h
            dq_at = dq_ptr + batch * dq_b + query_head * dq_h
            row_at = (batch * num_heads + query_head) * seqlen_q
            for start_m in range(_first_row(start_n, seqlen_q, seqlen_k, BLOCK_M, CAUSAL), seqlen_q, BLOCK_M):
                rows = start_m + tl.arange(0, BLOCK_M)
                q = _load(q_at, rows, q_m, seqlen_q, BLOCK_D, HEAD_DIM)
                dout = _load(dout_at, rows, do_m, seqlen_q, BLOCK_D, HEAD_DIM)
                out = _load(out_at, rows, o_m, seqlen_q, BLOCK_D, HEAD_DIM)
                highest = tl.load(highest_ptr + row_at + rows, mask=rows < seqlen_q, other=0.0)
                total = tl.load(total_ptr + row_at + rows, mask=rows < seqlen_q, other=0.0)
                shown = tl.where(highest == float("-inf"), 0.0, highest)
                s = _scores(q, k, rows, keys, seqlen_q, seqlen_k, scale, CAUSAL)
                p = tl.exp2(s - shown[:, None]) / tl.where(total == 0.0, 1.0, total)[:, None]
                dv += tl.dot(tl.trans(p.to(dout.dtype)), dout, input_precision="ieee")
                delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
                dp = tl.dot(dout, tl.trans(v), input_precision="ieee")
                ds = (p * (dp - delta[:, None]) * scale).to(q.dtype)
                dq = _load(dq_at, rows, dq_m, seqlen_q, BLOCK_D, HEAD_DIM)
                dq += tl.dot(ds, k, input_precision="ieee")
                _store(dq_at, rows, dq_m, seqlen_q, dq, BLOCK_D, HEAD_DIM)
                dk += tl.dot(tl.trans(ds), q, input_precision="ieee")
        _store(dk_ptr, keys, dk_n, seqlen_k, dk, BLOCK_D, HEAD_DIM)
        _store(dv_ptr, keys, dv_n, seqlen_k, dv, BLOCK_D, HEAD_DIM)
        tl.debug_barrier()
