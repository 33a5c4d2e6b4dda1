# mypy: ignore-errors
"""Sampling a row a program, in passes over logits that the cache holds.

Thresholds of top-k and top-p are searched for on the logits' bits, ordered as integers, four ways
a pass, until no or one candidate lies between the bounds.
"""

import triton
import triton.language as tl


@triton.jit
def _order(x):
    """float32 → int32 in the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _scaled(raw, counts, prompt, at, mask, repetition, frequency, presence, factor):
    """Logits after penalties, times 1 / temperature."""
    x = raw
    if counts is not None:
        count = tl.load(counts + at, mask=mask, other=0)
        seen = (count > 0) | (tl.load(prompt + at, mask=mask, other=0) > 0)
        divided = tl.where(x > 0, x / repetition, x * repetition)
        x = tl.where(seen, divided, x)
        x = x - frequency * count.to(tl.float32)
        x = tl.where(count > 0, x - presence, x)
    return x * factor


@triton.jit
def _search(
    logits, counts, prompt, row_at, V, repetition, frequency, presence, factor, top,
    low, high, least, mass,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The highest key whose set {x ≥ key} has at least `least` tokens and weighs at least `mass`:
    (key, the set's mass). low: a key for which that holds; high: one for which it does not."""
    lane = tl.arange(0, BLOCK)
    low_count = V
    high_count = 0
    low_mass = 0.0
    going = 1
    while going == 1:
        step = (high - low + 3) // 4
        t1 = low + step
        t2 = tl.minimum(t1 + step, high)
        t3 = tl.minimum(t2 + step, high)
        k1, k2, k3 = t1.to(tl.int32), t2.to(tl.int32), t3.to(tl.int32)
        n1 = tl.zeros((BLOCK,), tl.int32)
        n2 = tl.zeros((BLOCK,), tl.int32)
        n3 = tl.zeros((BLOCK,), tl.int32)
        m1 = tl.zeros((BLOCK,), tl.float32)
        m2 = tl.zeros((BLOCK,), tl.float32)
        m3 = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, V, BLOCK):
            column = first + lane
            mask = column < V
            at = row_at + column
            raw = tl.load(logits + at, mask=mask, other=float("-inf")).to(tl.float32)
            x = _scaled(raw, counts, prompt, at, mask, repetition, frequency, presence, factor)
            key = _order(x)
            weight = tl.exp(x - top)
            n1 += (mask & (key >= k1)).to(tl.int32)
            n2 += (mask & (key >= k2)).to(tl.int32)
            n3 += (mask & (key >= k3)).to(tl.int32)
            m1 += tl.where(key >= k1, weight, 0.0)
            m2 += tl.where(key >= k2, weight, 0.0)
            m3 += tl.where(key >= k3, weight, 0.0)
        c1, c2, c3 = tl.sum(n1, axis=0), tl.sum(n2, axis=0), tl.sum(n3, axis=0)
        w1, w2, w3 = tl.sum(m1, axis=0), tl.sum(m2, axis=0), tl.sum(m3, axis=0)
        ok1 = (c1 >= least) & (w1 >= mass) & (t1 < high)
        ok2 = (c2 >= least) & (w2 >= mass) & (t2 < high)
        ok3 = (c3 >= least) & (w3 >= mass) & (t3 < high)
        new_low = tl.where(ok3, t3, tl.where(ok2, t2, tl.where(ok1, t1, low)))
        new_high = tl.where(ok3, high, tl.where(ok2, t3, tl.where(ok1, t2, t1)))
        high_count = tl.where(ok3, high_count, tl.where(ok2, c3, tl.where(ok1, c2, c1)))
        low_count = tl.where(ok3, c3, tl.where(ok2, c2, tl.where(ok1, c1, low_count)))
        low_mass = tl.where(ok3, w3, tl.where(ok2, w2, tl.where(ok1, w1, low_mass)))
        low = new_low
        high = new_high
        done = (high - low <= 1) | (low_count - high_count <= 1) | (low_count <= least)
        going = tl.where(done, 0, 1)
    return low, low_mass


@triton.jit
def sample_rows(
    logits,
    temperature,
    seeds,
    positions,
    top_k,
    top_p,
    min_p,
    counts,
    prompt,
    repetition,
    frequency,
    presence,
    tokens,
    logprobs,
    V,
    logits_stride,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    row_at = row.to(tl.int64) * logits_stride
    lane = tl.arange(0, BLOCK)
    factor = 1.0
    heat = 0.0
    if temperature is not None:
        heat = tl.load(temperature + row)
        factor = tl.where(heat > 0, 1.0 / heat, 1.0)
    rep, freq, pres = 1.0, 0.0, 0.0
    if counts is not None:
        rep = tl.load(repetition + row)
        freq = tl.load(frequency + row)
        pres = tl.load(presence + row)
    # Maxima, and the raw logits' sum of exponentials, lane by lane.
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    where = tl.zeros((BLOCK,), tl.int32)
    raw_top = tl.full((BLOCK,), -3.0e38, tl.float32)
    raw_sum = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, V, BLOCK):
        column = first + lane
        mask = column < V
        at = row_at + column
        raw = tl.load(logits + at, mask=mask, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(raw_top, raw)
        raw_sum = raw_sum * tl.exp(raw_top - higher) + tl.exp(raw - higher)
        raw_top = higher
        x = _scaled(raw, counts, prompt, at, mask, rep, freq, pres, factor)
        better = mask & (x > best)
        best = tl.where(better, x, best)
        where = tl.where(better, column, where)
    top = tl.max(best, axis=0)
    token = tl.min(tl.where(best == top, where, V - 1), axis=0)
    peak = tl.max(raw_top, axis=0)
    log_sum = tl.log(tl.sum(raw_sum * tl.exp(raw_top - peak), axis=0))
    if temperature is not None:
        if heat > 0:
            lowest = tl.full((), -2147483647, tl.int64)
            low = lowest
            high = _order(top).to(tl.int64) + 1
            if top_k is not None:
                k = tl.load(top_k + row)
                if (k > 0) & (k < V):
                    low, _kept = _search(
                        logits, counts, prompt, row_at, V, rep, freq, pres, factor, top,
                        low, high, k, -1.0, BLOCK,
                    )  # fmt: skip
            if top_p is not None:
                p = tl.load(top_p + row)
                if p < 1:
                    whole = tl.zeros((BLOCK,), tl.float32)
                    for first in range(0, V, BLOCK):
                        column = first + lane
                        mask = column < V
                        at = row_at + column
                        raw = tl.load(logits + at, mask=mask, other=float("-inf")).to(tl.float32)
                        x = _scaled(raw, counts, prompt, at, mask, rep, freq, pres, factor)
                        whole += tl.where(_order(x) >= low.to(tl.int32), tl.exp(x - top), 0.0)
                    low, _kept = _search(
                        logits, counts, prompt, row_at, V, rep, freq, pres, factor, top,
                        low, high, 1, p * tl.sum(whole, axis=0), BLOCK,
                    )  # fmt: skip
            if min_p is not None:
                least = tl.load(min_p + row)
                if least > 0:
                    low = tl.maximum(low, _order(top + tl.log(least)).to(tl.int64))
            # The kept tokens' mass in the order of the draw, then the draw.
            floor = low.to(tl.int32)
            total = 0.0
            for first in range(0, V, BLOCK):
                column = first + lane
                mask = column < V
                at = row_at + column
                raw = tl.load(logits + at, mask=mask, other=float("-inf")).to(tl.float32)
                x = _scaled(raw, counts, prompt, at, mask, rep, freq, pres, factor)
                total += tl.sum(tl.where(_order(x) >= floor, tl.exp(x - top), 0.0), axis=0)
            counter = tl.load(positions + row).to(tl.int32)
            bits, _, _, _ = tl.philox(
                tl.load(seeds + row), counter, counter * 0, counter * 0, counter * 0
            )
            uniform = (bits >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08
            target = uniform * total
            before = 0.0
            for first in range(0, V, BLOCK):
                column = first + lane
                mask = column < V
                at = row_at + column
                raw = tl.load(logits + at, mask=mask, other=float("-inf")).to(tl.float32)
                x = _scaled(raw, counts, prompt, at, mask, rep, freq, pres, factor)
                weight = tl.where(_order(x) >= floor, tl.exp(x - top), 0.0)
                amount = tl.sum(weight, axis=0)
                if (amount > 0) & (before <= target):
                    running = before + tl.cumsum(weight, axis=0) - weight
                    fits = (weight > 0) & (running <= target)
                    last = tl.max(tl.where(fits, column, -1), axis=0)
                    token = tl.where(last >= 0, last, token)
                before += amount
    chosen = tl.load(logits + row_at + token).to(tl.float32)
    tl.store(tokens + row, token)
    tl.store(logprobs + row, chosen - peak - log_sum)
