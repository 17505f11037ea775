"""Programs for tests of facts and of the search: the same product written in several ways, and others."""

from __future__ import annotations

from typing import Any

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.algebra.expr import as_expr
from tilewright.compiler.kernels import resolve
from tilewright.interpret.loops import accumulates_only
from tilewright.ir.core import MemoryType
from tilewright.plan.facts import Facts, facts_of

bf16, f32, i8 = tkl.bf16, tkl.f32, tkl.i8
B, M, N, K, D, E, U, KV, GQ, L, F = (
    getattr(tkl.sym, name) for name in ["B", "M", "N", "K", "D", "E", "U", "KV", "GQ", "L", "F"]
)
M1, M2, N1, N2, K1, K2 = (getattr(tkl.sym, name) for name in ["M1", "M2", "N1", "N2", "K1", "K2"])


def mem(*dims: Any) -> Any:
    return tkl.Memory[(*dims[:-1], tkl.GLOBAL_ADDRESS_SPACE, dims[-1])]


def facts(kernel: Any, **sizes: int) -> Facts:
    """The facts of a kernel as an author wrote it."""
    program = kernel.trace()
    known = resolve(program.bindings)
    every = {s for a in program.args if isinstance(a.type, MemoryType) for d in a.type.sizes for s in d.symbols}
    named = {**known, **{s: as_expr(sizes[s.name]) for s in every | set(known) if s.name in sizes}}
    numbers = {s: int(e) for s, e in resolve(named).items() if e.is_constant}
    free = [op for op in program.walk() if op.name == "iterate" and accumulates_only(op)]
    return facts_of(program, numbers, free)


@tkw.wave()
def looped(a: mem(M, K, bf16), b: mem(N, K, bf16), c: mem(M, N, bf16)):
    @tkw.iterate(K, init_args=[tkl.Register[M, N, f32](0)])
    def total(acc):
        return tkw.mma(tkw.read(a), tkw.read(b), acc)

    tkw.write(tkw.cast(total, bf16), c)


@tkw.wave()
def unlooped(a: mem(M, K, bf16), b: mem(N, K, bf16), c: mem(M, N, bf16)):
    tkw.write(tkw.cast(tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, f32](0)), bf16), c)


@tkw.wave()
def exchanged(a: mem(M, K, bf16), b: mem(N, K, bf16), c: mem(M, N, bf16)):
    @tkw.iterate(K, init_args=[tkl.Register[M, N, f32](0)])
    def total(acc):
        return tkw.mma(tkw.read(b), tkw.read(a), acc)

    tkw.write(tkw.cast(total, bf16), c)


@tkw.wave()
def renamed(x: mem(L, F, bf16), y: mem(D, F, bf16), z: mem(L, D, bf16)):
    tkw.write(tkw.cast(tkw.mma(tkw.read(x), tkw.read(y), tkl.Register[L, D, f32](0)), bf16), z)


@tkw.wave()
def split_m(a: mem(M1, M2, K, bf16), b: mem(N, K, bf16), c: mem(M1, M2, N, bf16)):
    tkw.write(tkw.cast(tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M1, M2, N, f32](0)), bf16), c)


@tkw.wave()
def split_n(a: mem(M, K, bf16), b: mem(N1, N2, K, bf16), c: mem(M, N1, N2, bf16)):
    tkw.write(tkw.cast(tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N1, N2, f32](0)), bf16), c)


@tkw.wave()
def split_k(a: mem(M, K1, K2, bf16), b: mem(N, K1, K2, bf16), c: mem(M, N, bf16)):
    tkw.write(tkw.cast(tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, f32](0)), bf16), c)


@tkw.wave()
def unit_batch(a: mem(U, M, K, bf16), b: mem(U, N, K, bf16), c: mem(U, M, N, bf16)):
    tkw.write(tkw.cast(tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[U, M, N, f32](0)), bf16), c)


def attention(causal: bool = True, window: int | None = None, tile: int = 128, head: int = 128) -> Any:
    """Grouped-query attention: GQ query heads share a head of keys."""

    @tkw.wave([tkw.TilingConstraint(N, tile)])
    def grouped(
        q: mem(B, KV, GQ, M, D, bf16),
        k: mem(B, KV, N, D, bf16),
        v: mem(B, KV, N, E, bf16),
        o: mem(B, KV, GQ, M, E, bf16),
    ):
        first = tkl.Register[B, KV, GQ, M, f32]

        @tkw.iterate(N, init_args=[first(-1e30), first(0), tkl.Register[B, KV, GQ, M, E, f32](0)])
        def walk(maximum, total, acc):
            scores = tkw.mma(tkw.read(q), tkw.read(k), tkl.Register[B, KV, GQ, M, N, f32](0)) * (head**-0.5)
            if causal:
                scores = tkw.select(tkw.self_index(N) <= tkw.self_index(M), scores, float("-inf"))
            if window:
                scores = tkw.select(tkw.self_index(N) > tkw.self_index(M) - window, scores, float("-inf"))
            larger = tkw.max(scores, maximum, dim=N)
            weights = tkw.exp(scores - larger)
            shrink = tkw.exp(maximum - larger)
            return (
                larger,
                tkw.sum(weights, total * shrink, dim=N),
                tkw.mma(tkw.cast(weights, bf16), tkw.read(v), acc * shrink),
            )

        _, total, acc = walk
        tkw.write(tkw.cast(acc / total, bf16), o)

    return grouped


@tkw.wave()
def gated(x: mem(M, K, bf16), w: mem(N, K, bf16), u: mem(N, K, bf16), y: mem(M, N, bf16)):
    @tkw.iterate(K, init_args=[tkl.Register[M, N, f32](0), tkl.Register[M, N, f32](0)])
    def totals(a, b):
        return tkw.mma(tkw.read(x), tkw.read(w), a), tkw.mma(tkw.read(x), tkw.read(u), b)

    a, b = totals
    tkw.write(tkw.cast(a * tkw.sigmoid(a) * b, bf16), y)


@tkw.wave()
def matrix_vector(w: mem(N, K, bf16), x: mem(K, bf16), y: mem(N, bf16)):
    tkw.write(tkw.cast(tkw.mma(tkw.read(w), tkw.read(x), tkl.Register[N, f32](0)), bf16), y)
