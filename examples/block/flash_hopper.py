"""flash_hopper.block in Python: attention for heads of 64 or 128 numbers, with or without a causal mask."""

import tilewright.block as tb
from tilewright.algebra import parse_layout
from tilewright.algebra.expr import as_expr

SWIZZLE = (3, 3, 3)
# one number a row: where C holds the row, in all four lanes that share it
ROW = parse_layout("((4,8,4,2),2):((0,1,16,64),8)")


@tb.kernel("hopper")
def flash_hopper(
    q: tb.In("bf16", "B", "T", "D"),
    k: tb.In("bf16", "B", "U", "D"),
    v: tb.In("bf16", "B", "U", "D"),
    o: tb.Out("bf16", "B", "T", "D"),
    *,
    B=2, T=256, U=256, D=128, BK=64, STAGES=2, CAUSAL=0,
):  # fmt: skip
    tb.require("D % 64 == 0 and T % 128 == 0 and U % BK == 0 and BK % 64 == 0 and (CAUSAL == 0 or T == U)")
    slabs = D // 64
    stage_q = tb.shared("bf16", (1, slabs, 128, 64), swizzle=SWIZZLE)
    stage_k = tb.shared("bf16", (STAGES, slabs, BK, 64), swizzle=SWIZZLE)
    stage_v = tb.shared("bf16", (STAGES, BK // 64, slabs, 64, 64), swizzle=SWIZZLE)
    queries = tb.ring(stage_q, producer="producer", consumer="consumer")
    keys = tb.ring(stage_k, producer="producer", consumer="consumer")
    values = tb.ring(stage_v, producer="producer", consumer="consumer")

    def blocks(t):
        """How many blocks of keys the rows of a task look at."""
        return tb.min(U // BK, (128 * t + 127) // BK + 1 + (1 - CAUSAL) * U)

    with tb.role("producer", waves=1, registers=40):
        for b, t in tb.tasks(B, T // 128):
            with queries.fill() as sq:
                for h in tb.steps(slabs, unroll=True):
                    gq = q.view((128, 64), lambda i, d: (b, 128 * t + i, 64 * h + d))
                    tb.copy(gq, sq.view((128, 64), lambda i, d: (h, i, d)), by="tma.load")
            for u in tb.steps(blocks(t)):
                with keys.fill() as sk:
                    for h in tb.steps(slabs, unroll=True):
                        gk = k.view((BK, 64), lambda j, d: (b, BK * u + j, 64 * h + d))
                        tb.copy(gk, sk.view((BK, 64), lambda j, d: (h, j, d)), by="tma.load")
                with values.fill() as sv:
                    for g, h in tb.steps(BK // 64, slabs, unroll=True):
                        gv = v.view((64, 64), lambda j, d: (b, BK * u + 64 * g + j, 64 * h + d))
                        tb.copy(gv, sv.view((64, 64), lambda j, d: (g, h, j, d)), by="tma.load")

    with tb.role("consumer", waves=8, registers=232):
        to_scores = tb.Mma(f"wgmma.m64n{BK}k16.bf16", waves=(2, 1))
        to_output = tb.Mma(f"wgmma.m64n{D}k16.bf16.ra.tb", waves=(2, 1))
        scores, weights, acc = to_scores.c(128, BK), to_output.a(128, BK), to_output.c(128, D)
        best, newbest = tb.registers("f32", (128,), ROW), tb.registers("f32", (128,), ROW)
        scale, rowsum = tb.registers("f32", (128,), ROW), tb.registers("f32", (128,), ROW)
        wide, scaled = to_scores.c(128, BK), to_output.c(128, D)
        stage_o = tb.shared("bf16", (1, slabs, 128, 64), swizzle=SWIZZLE)
        out = tb.ring(stage_o, producer="consumer", consumer="consumer")
        for b, t in tb.tasks(B, T // 128):
            tb.clear(acc)
            tb.clear(rowsum)
            tb.fill(best, -1e30)
            with queries.take() as mq:
                for u in tb.steps(blocks(t)):
                    with keys.take() as mk:
                        tb.clear(scores)
                        for h in tb.steps(slabs, unroll=True):
                            left = mq.view((128, 64), lambda i, d: (h, i, d))
                            to_scores(scores, left, mk.view((64, BK), lambda d, j: (h, j, d)))
                    # log2(e): exp2 below is exp
                    scores[...] = scores * (1.4426950408889634 / tb.sqrt(tb.cast(as_expr(D), "f32")))
                    with tb.if_(CAUSAL * (BK * u + BK - 1 - 128 * t) > 0):
                        tb.map(scores, lambda i, j: tb.select(128 * t + i >= BK * u + j, scores, -1e30))
                    tb.copy(best, newbest)
                    tb.reduce(scores, newbest, 1, "max", accumulate=True)
                    scale[...] = tb.exp2(best - newbest)
                    tb.copy(newbest, best)
                    tb.broadcast(best, wide, 1)
                    scores[...] = tb.exp2(scores - wide)
                    rowsum[...] = rowsum * scale
                    tb.reduce(scores, rowsum, 1, "sum", accumulate=True)
                    weights[...] = scores.to("bf16")
                    tb.broadcast(scale, scaled, 1)
                    acc[...] = acc * scaled
                    with values.take() as mv:
                        to_output(acc, weights, mv.view((BK, D), lambda j, d: (j // 64, d // 64, j % 64, d % 64)))
            tb.broadcast(rowsum, scaled, 1)
            with out.fill() as free:
                rows = free.view((128, D), lambda i, d: (d // 64, i, d % 64))
                rows[...] = (acc / scaled).to("bf16")
            with out.take() as ready:
                for h in tb.steps(slabs, unroll=True):
                    slab = ready.view((128, 64), lambda i, d: (h, i, d))
                    tb.copy(slab, o.view((128, 64), lambda i, d: (b, 128 * t + i, 64 * h + d)), by="tma.store")
