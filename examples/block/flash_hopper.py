"""flash_hopper.block in Python: attention for heads of 64 or 128 numbers, with or without a causal mask."""

import tilewright.block as tb
from tilewright.algebra import Layout
from tilewright.algebra.expr import as_expr
from tilewright.block import cdiv

SWIZZLE = (3, 3, 3)
MASKED = -(2.0**100)


@tb.kernel("hopper")
def flash_hopper(
    q: tb.In("bf16", "B", "T", "D"),
    k: tb.In("bf16", "B", "U", "D"),
    v: tb.In("bf16", "B", "U", "D"),
    o: tb.Out("bf16", "B", "T", "D"),
    *,
    B=2, T=256, U=256, D=128, BK=64, STAGES=2, CAUSAL=0,
    WG=2,  # warpgroups that multiply, each 64 rows; for heads of 64 numbers three are faster
    GROUP=1,  # heads that are walked together, for the second-level cache
):  # fmt: skip
    tb.require("D % 64 == 0 and U % BK == 0 and BK % 64 == 0 and (CAUSAL == 0 or T == U) and B % GROUP == 0")
    slabs, rows = D // 64, 64 * WG
    held = tb.min(1, 2 // WG)  # with three warpgroups there is no room for Q in registers
    spare = max(24, 8 * WG + 8)  # registers of who brings; those who multiply have the others
    own = min(240, (512 - spare) // WG // 8 * 8)
    stage_q = tb.shared("bf16", (1, slabs, rows, 64), swizzle=SWIZZLE)
    stage_k = tb.shared("bf16", (STAGES, slabs, BK, 64), swizzle=SWIZZLE)
    stage_v = tb.shared("bf16", (STAGES, BK // 64, slabs, 64, 64), swizzle=SWIZZLE)
    queries = tb.ring(stage_q, producer="producer", consumer="consumer")
    keys = tb.ring(stage_k, producer="producer", consumer="consumer")
    values = tb.ring(stage_v, producer="producer", consumer="consumer")

    def place(group, back, head):
        """A task: its head, its rows, and how many blocks of keys these look at; the longest tasks come first."""
        t = cdiv(T, rows) - 1 - back
        blocks = tb.min(U // BK, (rows * t + rows - 1) // BK + 1 + (1 - CAUSAL) * U)
        return GROUP * group + head, t, blocks

    with tb.role("producer", waves=1, registers=spare):
        for group, back, head in tb.tasks(B // GROUP, cdiv(T, rows), GROUP, schedule="dynamic"):
            b, t, blocks = place(group, back, head)
            with queries.fill() as sq:
                for h in tb.steps(slabs, unroll=True):
                    gq = q.view((rows, 64), lambda i, d: (b, tb.maybe(rows * t + i), 64 * h + d))
                    tb.copy(gq, sq.view((rows, 64), lambda i, d: (h, i, d)), otherwise=0, by="tma.load")
            for s in tb.steps(blocks):
                with keys.fill() as sk:
                    for h in tb.steps(slabs, unroll=True):
                        gk = k.view((BK, 64), lambda j, d: (b, BK * (blocks - 1 - s) + j, 64 * h + d))
                        tb.copy(gk, sk.view((BK, 64), lambda j, d: (h, j, d)), by="tma.load")
                with values.fill() as sv:
                    for g, h in tb.steps(BK // 64, slabs, unroll=True):
                        gv = v.view((64, 64), lambda j, d: (b, BK * (blocks - 1 - s) + 64 * g + j, 64 * h + d))
                        tb.copy(gv, sv.view((64, 64), lambda j, d: (g, h, j, d)), by="tma.load")

    with tb.role("consumer", waves=4 * WG, registers=own):
        from_registers = tb.Mma(f"wgmma.m64n{BK}k16.bf16.ra", waves=(WG, 1))
        from_memory = tb.Mma(f"wgmma.m64n{BK}k16.bf16", waves=(WG, 1))
        to_output = tb.Mma(f"wgmma.m64n{D}k16.bf16.ra.tb", waves=(WG, 1))
        query, scores = from_registers.a(rows, D), from_memory.c(rows, BK)
        weights, acc = to_output.a(rows, BK), to_output.c(rows, D)
        # one number a row: where C holds the row, in all four lanes that share it
        row = Layout(((4, 8, 4, WG), 2), ((0, 1, 16, 64), 8))
        best, last = tb.registers("f32", (rows,), row), tb.registers("f32", (rows,), row)
        scale, total = tb.registers("f32", (rows,), row), tb.registers("f32", (rows,), row)
        # a row's sum, each lane's part by itself: they are added up at the end
        part = Layout(((4, 8, 4, WG), 2), ((rows, 1, 16, 64), 8))
        sums, four = tb.registers("f32", (rows, 4), part), tb.registers("f32", (rows, 4), part)
        parts = scores.view((rows, 4, BK // 4), lambda i, l, c: (i, 8 * (c // 2) + 2 * l + c % 2))
        early = scores.view((rows, BK // 2), lambda i, j: (i, j))
        wide, scaled = from_memory.c(rows, BK), to_output.c(rows, D)
        stage_o = tb.shared("bf16", (1, slabs, rows, 64), swizzle=SWIZZLE)
        out = tb.ring(stage_o, producer="consumer", consumer="consumer", apart=True)

        def steepness(sign):
            """log2(e) by the root of the head's length: exp2 of so much is exp."""
            return sign * 1.4426950408889634 / tb.sqrt(tb.cast(as_expr(D), "f32"))

        def product(left, block):
            """The scores of a block of keys are started."""
            tb.clear(scores)
            right = block.view((D, BK), lambda d, j: (d // 64, j, d % 64))
            with tb.if_(held > 0):
                from_registers(scores, query, right)
            with tb.else_():
                from_memory(scores, left, right)

        def weigh(block):
            """The block of values, by the weights, is started."""
            to_output(acc, weights, block.view((BK, D), lambda j, d: (j // 64, d // 64, j % 64, d % 64)))

        def exponentials():
            """Scores become weights, which are not rounded yet."""
            scale[...] = best * steepness(-1)
            tb.broadcast(scale, wide, 1)
            scores[...] = tb.exp2(tb.fma(scores, steepness(1), wide))

        for group, back, head in tb.tasks(B // GROUP, cdiv(T, rows), GROUP, schedule="dynamic"):
            b, t, blocks = place(group, back, head)

            def mask(s):
                """Keys past the diagonal do not count."""
                seen = lambda i, j: rows * t + i >= BK * (blocks - 1 - s) + j  # noqa: E731
                tb.map(scores, lambda i, j: tb.select(seen(i, j), scores, MASKED))

            left = queries.wait().view((rows, D), lambda i, d: (d // 64, i, d % 64))
            with tb.if_(held > 0):
                tb.copy(left, query)
                queries.release()
            product(left, keys.wait())
            keys.release()
            with tb.if_(CAUSAL > 0):
                mask(0)
            tb.reduce(scores, best, 1, "max")
            exponentials()
            tb.reduce(parts, sums, 2, "sum")
            weights[...] = scores.to("bf16")
            tb.clear(acc)
            for s in tb.steps((1, blocks), overlap="turns"):
                product(left, keys.wait())
                weigh(values.wait())
                keys.release()
                with tb.if_(CAUSAL * (BK * (blocks - s) - 1 - rows * t) > 0):
                    mask(s)
                tb.copy(best, last)
                tb.reduce(scores, best, 1, "max", accumulate=True)
                last[...] = tb.exp2((last - best) * steepness(1))
                exponentials()
                tb.broadcast(last, four, 1)
                sums[...] = sums * four
                tb.reduce(parts, sums, 2, "sum", accumulate=True)
                with tb.if_(held > 0):
                    tb.edge(early)  # the second product goes on until here; of three groups another one multiplies
                values.release()
                tb.broadcast(last, scaled, 1)
                acc[...] = acc * scaled
                weights[...] = scores.to("bf16")
            with tb.if_(held < 1):
                queries.release()
            weigh(values.wait())
            values.release()
            tb.reduce(sums, total, 1, "sum")
            total[...] = 1 / total
            tb.broadcast(total, scaled, 1)
            with out.fill() as free:
                to = free.view((rows, D), lambda i, d: (d // 64, i, d % 64))
                to[...] = (acc * scaled).to("bf16")
            with out.take() as ready:
                for h in tb.steps(slabs, unroll=True):
                    slab = ready.view((rows, 64), lambda i, d: (h, i, d))
                    there = o.view((rows, 64), lambda i, d: (b, tb.maybe(rows * t + i), 64 * h + d))
                    tb.copy(slab, there, by="tma.store")
