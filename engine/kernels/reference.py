"""Every operation of the engine in plain torch: what a CPU runs, and what the kernels must equal.

`engine.kernels.fused` holds the same names with the same signatures as Triton kernels. Here
clarity comes before speed: loops over sequences and experts are written out. Arithmetic is done
in float32 and results have the dtype of the first argument, unless a docstring says otherwise.

Names used throughout:

- `cu_seqlens: [num_seqs + 1]` int32, where each sequence's tokens begin in a packed batch;
- `context_lens: [num_seqs]` int32, tokens of the sequence already in the caches;
- `block_table: [num_seqs, max_blocks]` int32, the pages of each sequence in order;
- `slot_mapping: [num_tokens]` int32, `page * page_size + offset` for each new token, or -1 for a
  token that is not stored;
- `state_indices: [num_seqs]` int32, each sequence's slot in the recurrent and convolution states.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from engine.kernels.philox import uniform
from engine.kernels.statements import Statement

# Plain torch has no variants: what warmup runs once has met all that there is.
STATEMENTS: dict[str, Statement] = {}
SAMPLING_VARIANTS: tuple[dict[str, float], ...] = ({"temperature": 0.0},)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False) -> Tensor:
    """`x / rms(x) * weight`, or `* (1 + weight)` with `plus_one`, over the last dimension.

    `x: [num_tokens, width]`, rows may be strided; `weight: [width]`. Returns a contiguous tensor.
    """
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    scale = weight.float() + 1.0 if plus_one else weight.float()
    return (wide * scale).to(x.dtype)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False
) -> Tensor:
    """Add `x` to `residual` in place, and return `rms_norm(residual)`.

    Both `[num_tokens, width]`; the sum is rounded to `residual`'s dtype before it is normalised.
    """
    residual.add_(x)
    return rms_norm(residual, weight, eps, plus_one=plus_one)


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """`x / sqrt(sum(x²) + eps)` over the last dimension of `x: [num_tokens, num_heads, dim]`.

    Rows may be strided. Source: transformers' `l2norm`, as flash-linear-attention has it.
    """
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).sum(-1, keepdim=True) + eps)).to(x.dtype)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`rms_norm(x) * weight * silu(gate)`, all `[num_tokens, num_heads, dim]`; `weight: [dim]`.

    `gate`'s tokens may be strided. Source: transformers' `Qwen3NextRMSNormGated`.
    """
    normed = rms_norm(x, weight, eps).float()
    return (normed * functional.silu(gate.float())).to(x.dtype)


def silu_and_mul(x: Tensor) -> Tensor:
    """`silu(x[:, :width]) * x[:, width:]` for `x: [num_tokens, 2 * width]`."""
    gate, up = x.float().chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(x.dtype)


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    state: Tensor,
    state_indices: Tensor,
    cu_seqlens: Tensor,
    context_lens: Tensor,
    max_query_len: int,
) -> Tensor:
    """Depthwise causal convolution and SiLU over each sequence; the state is updated in place.

    `x: [num_tokens, channels]`, rows may be strided; `weight: [channels, kernel]`;
    `state: [num_slots, channels, kernel - 1]`, the last inputs of each sequence, oldest first.
    A sequence with `context_lens == 0` starts from zeros, whatever its slot holds.
    """
    del max_query_len  # the kernel's grid
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for index, slot in enumerate(state_indices.tolist()):
        begin, end = int(cu_seqlens[index]), int(cu_seqlens[index + 1])
        past = state[slot].float()
        if int(context_lens[index]) == 0:
            past = torch.zeros_like(past)
        inputs = torch.cat([past, x[begin:end].float().T], dim=1)
        mixed = functional.conv1d(inputs[None], weight.float()[:, None], groups=inputs.shape[0])
        out[begin:end] = functional.silu(mixed[0].T).to(x.dtype)
        state[slot] = inputs[:, inputs.shape[1] - past.shape[1] :].to(state.dtype)
    return out


def causal_conv1d_update(x: Tensor, weight: Tensor, state: Tensor, state_indices: Tensor) -> Tensor:
    """One token of `causal_conv1d` for each sequence: `x: [num_seqs, channels]`."""
    past = state[state_indices.long()].float()
    inputs = torch.cat([past, x.float()[:, :, None]], dim=2)
    state[state_indices.long()] = inputs[:, :, 1:].to(state.dtype)
    return functional.silu((inputs * weight.float()).sum(-1)).to(x.dtype)


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    state_indices: Tensor,
    cu_seqlens: Tensor,
    context_lens: Tensor,
    max_query_len: int,
) -> Tensor:
    """The gated delta rule over each sequence, token by token; the state is updated in place.

    `q, k: [num_tokens, num_k_heads, k_dim]`, already l2-normalised; `v: [num_tokens, num_v_heads,
    v_dim]`; `a, b: [num_tokens, num_v_heads]`; `a_log, dt_bias: [num_v_heads]` float32;
    `state: [num_slots, num_v_heads, k_dim, v_dim]` float32. All but the last two may have strided
    tokens. Value head `h` belongs to key head `h // (num_v_heads // num_k_heads)`. With
    `decay = exp(-exp(a_log) * softplus(a + dt_bias))` and `beta = sigmoid(b)`:

        S = decay * S;  S = S + k (beta * (v - k S));  out = (q / sqrt(k_dim)) S

    A sequence with `context_lens == 0` starts from zeros, whatever its slot holds.
    Returns `[num_tokens, num_v_heads, v_dim]`. Source: Gated Delta Networks, arXiv 2412.06464.
    """
    del max_query_len  # the kernel's grid
    groups = v.shape[1] // k.shape[1]
    decay = torch.exp(-a_log.exp() * functional.softplus(a.float() + dt_bias))
    beta = torch.sigmoid(b.float())
    queries = q.float().repeat_interleave(groups, dim=1) * k.shape[-1] ** -0.5
    keys = k.float().repeat_interleave(groups, dim=1)
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    for index, slot in enumerate(state_indices.tolist()):
        memory = state[slot].clone()
        if int(context_lens[index]) == 0:
            memory.zero_()
        for token in range(int(cu_seqlens[index]), int(cu_seqlens[index + 1])):
            memory = memory * decay[token][:, None, None]
            known = torch.einsum("hk,hkv->hv", keys[token], memory)
            delta = (v[token].float() - known) * beta[token][:, None]
            memory = memory + torch.einsum("hk,hv->hkv", keys[token], delta)
            out[token] = torch.einsum("hk,hkv->hv", queries[token], memory).to(v.dtype)
        state[slot] = memory
    return out


def gated_delta_rule_update(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    state_indices: Tensor,
    eps: float = 1e-6,
) -> Tensor:
    """One token of `gated_delta_rule` for each sequence, `q` and `k` l2-normalised here.

    Shapes as there with `num_tokens == num_seqs`.
    """
    num_seqs = v.shape[0]
    ones = torch.ones(num_seqs, dtype=torch.int32, device=v.device)
    cu_seqlens = torch.arange(num_seqs + 1, dtype=torch.int32, device=v.device)
    return gated_delta_rule(
        l2_norm(q.float(), eps),
        l2_norm(k.float(), eps),
        v,
        a,
        b,
        a_log,
        dt_bias,
        state,
        state_indices,
        cu_seqlens,
        ones,
        1,
    )


def rotate(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Rotary embedding on the first dimensions of `x: [num_tokens, num_heads, dim]`.

    `cos_sin: [num_tokens, rotary_dim]` float32, the cosines of `rotary_dim / 2` angles and then
    their sines; pair `i` is `(x[i], x[i + rotary_dim / 2])`. Returns float32.
    """
    half = cos_sin.shape[-1] // 2
    cos, sin = cos_sin[:, None, :half], cos_sin[:, None, half:]
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    rest = x[..., 2 * half :].float()
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def rope_and_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    cos_sin: Tensor,
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    *,
    plus_one: bool = False,
) -> Tensor:
    """Normalise the heads of `q` and `k`, rotate them, and store `k` and `v` in the paged cache.

    `q: [num_tokens, num_heads, head_dim]`, `k, v: [num_tokens, num_kv_heads, head_dim]`, tokens
    and heads may be strided; `q_weight, k_weight: [head_dim]`, or both None for a model without
    head norms; `cos_sin: [max_positions, rotary_dim]` float32 as in `rotate`;
    `positions: [num_tokens]` int32; `k_cache, v_cache: [num_pages, page_size, num_kv_heads,
    head_dim]`. The normed values stay in float32 until they are rotated.
    Returns the rotated `q`, contiguous.
    """
    angles = cos_sin[positions.long()]
    wide_q, wide_k = q.float(), k.float()
    if q_weight is not None and k_weight is not None:
        wide_q = rms_norm(wide_q, q_weight, eps, plus_one=plus_one)
        wide_k = rms_norm(wide_k, k_weight, eps, plus_one=plus_one)
    stored = slot_mapping >= 0
    slots = slot_mapping[stored].long()
    k_cache.flatten(0, 1)[slots] = rotate(wide_k, angles)[stored].to(k_cache.dtype)
    v_cache.flatten(0, 1)[slots] = v[stored].to(v_cache.dtype)
    return rotate(wide_q, angles).to(q.dtype)


def attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens: Tensor,
    context_lens: Tensor,
    max_query_len: int,
    scale: float,
    gate: Tensor | None = None,
) -> Tensor:
    """Causal attention of new tokens over their sequence's pages, the new tokens among them.

    `q: [num_tokens, num_heads, head_dim]`; the caches as in `rope_and_store`, and the new tokens
    are already in them. Query head `h` reads key head `h // (num_heads // num_kv_heads)`.
    With `gate`, shaped like `q` and possibly strided, the result is times `sigmoid(gate)`.
    Returns `[num_tokens, num_heads, head_dim]`, contiguous.
    """
    del max_query_len  # the kernel's grid
    page_size, groups = k_cache.shape[1], q.shape[1] // k_cache.shape[2]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for index in range(block_table.shape[0]):
        begin, end = int(cu_seqlens[index]), int(cu_seqlens[index + 1])
        past = int(context_lens[index])
        total = past + end - begin
        pages = block_table[index, : -(-total // page_size)].long()
        keys = k_cache[pages].flatten(0, 1)[:total].float().repeat_interleave(groups, dim=1)
        values = v_cache[pages].flatten(0, 1)[:total].float().repeat_interleave(groups, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q[begin:end].float(), keys) * scale
        order = torch.arange(total, device=q.device)
        later = order[None, :] > past + order[: end - begin, None]
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        out[begin:end] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
    if gate is not None:
        out = (out.float() * torch.sigmoid(gate.float())).to(q.dtype)
    return out


def attention_update(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    scale: float,
    gate: Tensor | None = None,
) -> Tensor:
    """`attention` of one new token for each sequence: `q: [num_seqs, num_heads, head_dim]`."""
    num_seqs = q.shape[0]
    cu_seqlens = torch.arange(num_seqs + 1, dtype=torch.int32, device=q.device)
    return attention(q, k_cache, v_cache, block_table, cu_seqlens, context_lens, 1, scale, gate)


def route(logits: Tensor, top_k: int, *, renormalize: bool) -> tuple[Tensor, Tensor]:
    """Softmax over all experts, the `top_k` most likely, renormalised to sum to 1 on request.

    `logits: [num_tokens, num_experts]`, rows may be strided. Returns `weights: [num_tokens,
    top_k]` float32, largest first, and `expert_ids: [num_tokens, top_k]` int32. Equal
    probabilities go to the lower expert.
    """
    probabilities = logits.float().softmax(-1)
    ordered, ids = probabilities.sort(dim=-1, descending=True, stable=True)
    weights = ordered[:, :top_k]
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights.contiguous(), ids[:, :top_k].to(torch.int32).contiguous()


def experts(
    x: Tensor,
    weights: Tensor,
    expert_ids: Tensor,
    gate_up: Tensor,
    down: Tensor,
    shared: Tensor | None = None,
    shared_gate: Tensor | None = None,
) -> Tensor:
    """The routed experts' SwiGLU networks, weighted and summed, with the shared expert's output.

    `x: [num_tokens, hidden]`; `weights, expert_ids: [num_tokens, top_k]` as `route` gives them;
    `gate_up: [num_experts, 2 * width, hidden]`, gate rows first; `down: [num_experts, hidden,
    width]`; `shared: [num_tokens, hidden]` is added times `sigmoid(shared_gate: [num_tokens])`,
    which may be strided. Returns `[num_tokens, hidden]`.
    """
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in expert_ids.unique().tolist():
        tokens, places = torch.where(expert_ids == expert)
        hidden = silu_and_mul(functional.linear(x[tokens], gate_up[expert]))
        result = functional.linear(hidden, down[expert]).float()
        out.index_add_(0, tokens, result * weights[tokens, places, None])
    if shared is not None and shared_gate is not None:
        out += shared.float() * torch.sigmoid(shared_gate.float())[:, None]
    return out.to(x.dtype)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> tuple[Tensor, Tensor]:
    """Draw a token for each row of `logits: [num_seqs, vocab_size]`, rows may be strided.

    `temperature, top_p, min_p: [num_seqs]` float32; `top_k: [num_seqs]` int32, 0 for all;
    `seeds: [num_seqs]` int64 and `positions: [num_seqs]` int32 choose the random numbers, so that
    a request's tokens don't depend on its neighbours. Temperature 0 takes the likeliest token, the
    lowest of equals. Otherwise, on logits divided by the temperature, in this order: the `top_k`
    likeliest, ties kept; of their distribution the likeliest that together reach `top_p`, ties
    kept; those at least `min_p` times as likely as the likeliest; one of these by the Gumbel trick
    with the noise of `engine.kernels.philox`.
    Returns the tokens `[num_seqs]` int64 and their log-probability under the unscaled logits,
    float32.
    """
    wide = logits.float()
    logprobs = wide.log_softmax(-1)
    tokens = wide.argmax(-1)
    for row in range(wide.shape[0]):
        if float(temperature[row]) > 0:
            scaled = wide[row] / temperature[row]
            kept = kept_tokens(scaled, int(top_k[row]), float(top_p[row]), float(min_p[row]))
            noise = uniform(int(seeds[row]), int(positions[row]), wide.shape[1], wide.device)
            gumbel = -torch.log(-torch.log(noise))
            tokens[row] = (scaled + gumbel).masked_fill(~kept, float("-inf")).argmax()
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def kept_tokens(scaled: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Which of `scaled: [vocab_size]` may be drawn, as `sample` describes it; bool."""
    kept = torch.ones_like(scaled, dtype=torch.bool)
    if 0 < top_k < scaled.numel():
        kept &= scaled >= scaled.topk(top_k).values[-1]
    if top_p < 1:
        probabilities = scaled.masked_fill(~kept, float("-inf")).double().softmax(-1)
        ordered, order = probabilities.sort(descending=True, stable=True)
        # A token is needed as long as the likelier ones have not reached top_p.
        needed = ordered.cumsum(-1) - ordered < top_p
        kept &= scaled >= scaled[order[needed]].min()
    if min_p > 0:
        kept &= scaled >= scaled.max() + torch.log(torch.tensor(min_p))
    return kept
