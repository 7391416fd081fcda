"""How both attention kernels read the paged cache and fold a block of keys into their softmax.

Owns the running softmax (its exponentials are powers of two: the scores come in times
`scale * log2(e)`) and the lookup of pages. Knows neither queries' places nor how work is split.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = 1.4426950408889634


@triton.jit
def attend_block(
    b_q,
    b_out,
    b_max,
    b_sum,
    p_k,
    p_v,
    p_pages,
    o_n,
    o_last,
    end,
    scale,
    PAGE_SIZE: tl.constexpr,
    SLOT_STRIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Attend `b_q: [rows, BLOCK_D]` to the keys `o_n`, each row to those up to its `o_last`.

    No key at or beyond `end` is read. Without `MASKED`, all of `o_n` is below `end` and visible to
    every row. Each row must see a key in the first block it is given: its maximum is finite then.
    """
    o_d = tl.arange(0, BLOCK_D)
    m_kv = (o_d < HEAD_DIM)[None, :]
    if MASKED:
        m_n = o_n < end
        m_kv = m_n[:, None] & m_kv
        # Table entries after the sequence's last page are stale.
        b_page = tl.load(p_pages + o_n // PAGE_SIZE, mask=m_n, other=0)
    else:
        b_page = tl.load(p_pages + o_n // PAGE_SIZE)
    o_slot = b_page.to(tl.int64) * PAGE_SIZE + o_n % PAGE_SIZE
    o_kv = o_slot[:, None] * SLOT_STRIDE + o_d[None, :]
    # Slots not written yet may hold NaN, which a weight of zero would not silence.
    b_k = tl.load(p_k + o_kv, mask=m_kv, other=0.0)
    b_v = tl.load(p_v + o_kv, mask=m_kv, other=0.0)

    b_scores = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")
    if MASKED:
        b_scores = tl.where(o_n[None, :] <= o_last[:, None], b_scores, float("-inf"))
    b_new_max = tl.maximum(b_max, tl.max(b_scores, 1) * scale)
    b_weights = tl.exp2(b_scores * scale - b_new_max[:, None])
    b_decay = tl.exp2(b_max - b_new_max)
    b_sum = b_sum * b_decay + tl.sum(b_weights, 1)
    b_out = b_out * b_decay[:, None]
    b_out = tl.dot(b_weights.to(b_v.dtype), b_v, acc=b_out, input_precision="ieee")
    return b_out, b_new_max, b_sum
