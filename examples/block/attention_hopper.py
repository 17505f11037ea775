"""attention_hopper.block in Python: O = softmax(Q * K^T / 8) * V for each head, online; bf16, f32 between."""

import tilewright.block as tb
from tilewright.algebra import parse_layout

SWIZZLE = (3, 3, 3)
# one number a row: where C holds the row, in all four lanes that share it
ROW = parse_layout("((4,8,4),2):((0,1,16),8)")
# one row a thread in the first two waves, for the last store
STORED = parse_layout("((32,2,2),1):((1,32,0),0)")


@tb.kernel("hopper")
def attention_hopper(
    q: tb.In("bf16", "B", "T", 64),
    k: tb.In("bf16", "B", "U", 64),
    v: tb.In("bf16", "B", "U", 64),
    o: tb.Out("bf16", "B", "T", 64),
    lse: tb.Out("f32", "B", "T"),
    *,
    B=2, T=128, U=192, BK=64, STAGES=2,
):  # fmt: skip
    tb.require("T % 64 == 0 and U % BK == 0")
    stage_q = tb.shared("bf16", (1, 64, 64), swizzle=SWIZZLE)
    stage_k = tb.shared("bf16", (STAGES, BK, 64), swizzle=SWIZZLE)
    stage_v = tb.shared("bf16", (STAGES, BK, 64), swizzle=SWIZZLE)
    queries = tb.ring(stage_q, producer="producer", consumer="consumer")
    pairs = tb.ring(stage_k, stage_v, producer="producer", consumer="consumer")

    with tb.role("producer", waves=1, registers=40):
        for b, t in tb.tasks(B, T // 64):
            with queries.fill() as sq:
                tb.copy(q.view((64, 64), lambda i, d: (b, 64 * t + i, d)), sq, by="tma.load")
            for u in tb.steps(U // BK):
                with pairs.fill() as (sk, sv):
                    tb.copy(k.view((BK, 64), lambda j, d: (b, BK * u + j, d)), sk, by="tma.load")
                    tb.copy(v.view((BK, 64), lambda j, d: (b, BK * u + j, d)), sv, by="tma.load")

    with tb.role("consumer", waves=4, registers=240):
        to_scores = tb.Mma(f"wgmma.m64n{BK}k16.bf16")
        to_output = tb.Mma("wgmma.m64n64k16.bf16.ra.tb")
        scores, weights, acc = to_scores.c(64, BK), to_output.a(64, BK), to_output.c(64, 64)
        best, newbest = tb.registers("f32", (64,), ROW), tb.registers("f32", (64,), ROW)
        scale, rowsum = tb.registers("f32", (64,), ROW), tb.registers("f32", (64,), ROW)
        wide, scaled = to_scores.c(64, BK), to_output.c(64, 64)
        rows = tb.registers("f32", (64,), STORED)
        stage_o = tb.shared("bf16", (1, 64, 64), swizzle=SWIZZLE)
        out = tb.ring(stage_o, producer="consumer", consumer="consumer")
        for b, t in tb.tasks(B, T // 64):
            tb.clear(acc)
            tb.clear(rowsum)
            tb.fill(best, -1e30)
            with queries.take() as tq:
                for u in tb.steps(U // BK):
                    with pairs.take() as (tk, tv):
                        tb.clear(scores)
                        to_scores(scores, tq, tk.view((64, BK), lambda d, j: (j, d)))
                        scores[...] = scores * 0.18033688011112042  # log2(e) / 8: exp2 below is exp
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
                        to_output(acc, weights, tv)
            tb.broadcast(rowsum, scaled, 1)
            with out.fill() as free:
                free[...] = (acc / scaled).to("bf16")
            with out.take() as ready:
                tb.copy(ready, o.view((64, 64), lambda i, d: (b, 64 * t + i, d)), by="tma.store")
            rowsum[...] = tb.log2(rowsum) + best
            tb.convert_layout(rowsum, rows)
            tb.copy(rows, lse.view((64,), lambda i: (b, 64 * t + i)))
