"""Integer expressions: soundness by brute force, the simplifications that accesses rely on, text, errors."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import threading

import numpy as np
import pytest
from expr_fuzz import Generator, concrete_symbols, random_values, symbolic_symbols

from tilewright.algebra import (
    all_of,
    any_of,
    as_expr,
    ceildiv,
    eq,
    evaluate,
    extent,
    has_division,
    index,
    is_nonneg,
    linear_form,
    maximum,
    minimum,
    ne,
    negate,
    parse_expr,
    substitute,
    symbol,
)
from tilewright.algebra import expr as nodes
from tilewright.algebra.expr_sample import refuted
from tilewright.errors import ExpressionError, NotExact, ParseError


def drawn(seed):
    rng = random.Random(seed)
    symbols = concrete_symbols() if seed % 2 else symbolic_symbols()
    generator = Generator(rng, symbols)
    pair = generator.number(rng.randint(1, 4)) if rng.random() < 0.8 else generator.condition(3)
    return rng, symbols, pair


@pytest.mark.sampled(12)
@pytest.mark.parametrize("block", range(20))
def test_simplified_expressions_keep_their_value_range_divisor_and_text(block):
    for seed in range(block * 150, block * 150 + 150):
        rng, symbols, pair = drawn(seed)
        e = pair.expr
        for _ in range(10):
            values = random_values(rng, symbols)
            wanted = pair.meaning(values)
            assert e(values) == wanted, (seed, str(e), values)
            assert e.lo <= wanted <= e.hi, (seed, str(e), values)
            assert wanted % e.multiple == 0 if e.multiple else wanted == 0, (seed, str(e))
        assert parse_expr(str(e), symbols) is e, (seed, str(e))


def test_every_node_is_in_its_canonical_form():
    plain = (nodes.Sum, nodes.Const)
    for seed in range(2000):
        for node in drawn(seed)[2].expr.walk():
            if isinstance(node, nodes.Sum):
                assert all(c != 0 and not isinstance(t, plain) for t, c in node.terms), (seed, str(node))
                assert [t.key for t, _ in node.terms] == sorted(t.key for t, _ in node.terms)
                assert len(node.terms) > 1 or node.constant or node.terms[0][1] != 1
            if isinstance(node, nodes.Product):
                assert not any(isinstance(f, (*plain, nodes.Product)) for f in node.factors), (seed, str(node))
                assert len(node.factors) > 1
            if isinstance(node, nodes.FloorDiv | nodes.Mod) and node.right.is_constant:
                assert int(node.right) > 1, (seed, str(node))


def test_arrays_give_what_numbers_give():
    for seed in range(200):
        rng, symbols, pair = drawn(2 * seed + 1)
        rows = [random_values(rng, symbols) for _ in range(16)]
        stacked = {s.name: np.array([row[s.name] for row in rows]) for s in symbols}
        found = np.broadcast_to(evaluate(pair.expr, stacked), (16,))
        assert found.tolist() == [pair.meaning(row) for row in rows], (seed, str(pair.expr))


def test_substitution_is_evaluation_in_steps():
    for seed in range(300):
        rng, symbols, pair = drawn(seed)
        values = random_values(rng, symbols)
        chosen = {s: values[s.name] for s in symbols if s.definition is None and rng.random() < 0.5}
        partly = substitute(pair.expr, chosen)
        assert partly(values) == pair.meaning(values), (seed, str(pair.expr), chosen)


def test_linear_forms_add_up():
    a, b, W = index("a", 9), symbol("b", -4, 4), extent("W")
    for seed in range(200):
        rng = random.Random(seed)
        coefficients = {a: rng.randint(-3, 3) * W + rng.randint(-2, 2), b: as_expr(rng.randint(-5, 5))}
        rest = 3 * W - rng.randint(0, 9)
        form = linear_form(sum((c * s for s, c in coefficients.items()), rest), [a, b])
        assert form is not None
        assert form[1] is rest
        assert form[0] == {s: c for s, c in coefficients.items() if c is not as_expr(0)}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("(k//16)%9", "k//16"),  # k < 144
        ("k//16//3", "k//48"),
        ("16*(k//16) + k%16", "k"),
        ("48*(k//48) + 16*((k//16)%3) + k%16", "k"),
        ("5*W*(k//16)*16 + 5*W*(k%16)", "5*W*k"),
        ("(16*b + t)//16", "b"),  # t < 16
        ("(16*b + t)%32", "16*(b%2) + t"),
        ("(16*b + t)//32", "b//2"),
        ("(k%48)//16", "(k//16)%3"),
        ("(k%48)%16", "k%16"),
        ("min(k, 200)", "k"),
        ("max(k, 3, 1)", "max(3, k)"),
        ("(P*Q*n + Q*p + q)//(P*Q)", "n"),
        ("(P*Q*n + Q*p + q)%(P*Q)", "Q*p + q"),
        ("((P*Q*n + Q*p + q)//Q)%P", "p"),
        ("(Q*x + q)//(P*Q)", "x//P"),
        ("(Q*x + q)%(P*Q)", "Q*(x%P) + q"),
        ("(m//Q)%P", "(m//Q)%P"),
        ("m//(P*Q)", "m//(P*Q)"),
        ("(m//(P*Q))%4", "m//(P*Q)"),  # m < 4*P*Q
        ("P*Q*(m//(P*Q)) + Q*((m//Q)%P) + m%Q", "m"),
        ("C%32", "0"),
        ("32*(C//32)", "C"),
        ("(C + k)//32", "C//32 + k//32"),
        ("((W+1)*p + q)//(W+1)", "p + q//(W + 1)"),  # q < Q says nothing of W
        ("((W+1)*p + w)//(W+1)", "p"),
        ("0 <= k < 144", "1"),
        ("2*b >= 5", "b >= 3"),
        ("4*b == 6", "0"),
        ("x*x >= 0", "1"),
        ("P*Q >= Q", "1"),
        ("n*P*Q + p*Q + q < 4*P*Q", "1"),
        ("(-1)//(P*Q)", "-1"),
        ("b ^ 0", "b"),
        ("b ^ b", "0"),
    ],
)
def test_what_accesses_need_is_simplified(text, wanted):
    P, Q, W = extent("P"), extent("Q"), extent("W")
    C = extent("C", multiple_of=32)
    names = [index("k", 144), index("b", 9), index("t", 16), index("n", 4), index("p", P), index("q", Q), P, Q, W, C]
    names += [index("m", 4 * P * Q), symbol("x"), index("w", W)]
    assert str(parse_expr(text, names)) == wanted


def test_equal_expressions_are_one_object_and_are_forgotten_when_unused():
    a, b = index("a", 10), index("b", 1000003)
    assert (a + 1) * b is b * a + b
    assert a - b is -(b - a)
    assert (a < b) is (b > a)
    assert index("a", 10) is a
    assert index("a", 11) is not a
    from tilewright.algebra import expr_divide

    for table in (expr_divide._quotients, expr_divide._remainders):  # what other tests left there
        table.clear()

    def count() -> int:
        """The nodes of these symbols: other threads may make others meanwhile."""
        return sum(b in node.symbols for node in list(nodes._nodes.values()))

    nodes.forget_unused()
    before = count()
    big = sum((a * (b + i) // (i + 7) for i in range(500)), as_expr(0))
    assert count() > before + 400
    del big
    expr_divide._quotients.clear()
    expr_divide._remainders.clear()
    nodes.forget_unused()
    assert count() <= before
    assert index("a", 10) is a


def test_sweeping_at_any_moment_keeps_equal_expressions_one_object(monkeypatch):
    monkeypatch.setattr(nodes, "_SWEEP_EVERY", 7)
    monkeypatch.setattr(nodes, "_next_sweep", 0)
    for seed in range(300):
        rng, symbols, pair = drawn(seed)
        values = random_values(rng, symbols)
        assert pair.expr(values) == pair.meaning(values), seed
        assert parse_expr(str(pair.expr), symbols) is pair.expr, seed
        assert all(nodes._nodes[name] is node for name, node in list(nodes._nodes.items())[:50])
    assert index("a", 7) is concrete_symbols()[0]


def test_shared_parts_cost_nothing():
    e = index("a", 1 << 40)
    for i in range(60):  # as a tree this has 2**60 nodes
        e = minimum(e + i, e // 2 + 5) + maximum(e, 7 - e)
    assert len(list(e.walk())) < 2000
    assert e({"a": 12345}) == e({"a": 12345})


def test_order_does_not_depend_on_the_process():
    program = (
        (
            "from tilewright.algebra import *;"
            "a, b, P = index('a', 9), symbol('b', -4, 4), extent('P');"
            "e = 3*a + (a*P)//7 - b%3 + min_ * 2 if (min_ := minimum(a, b, P)) else 0;"
            "print([str(t) for t, _ in e.terms], e.key, [str(x) for x in min_.args])"
        )
        .replace(" if (min_ := minimum(a, b, P)) else 0", "")
        .replace("e = 3", "min_ = minimum(a, b, P); e = 3")
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1


def test_exact_division():
    M, B = extent("M"), extent("B")
    assert 6 * M / 3 is 2 * M
    assert M * B / B is M
    assert (M / B) * B is M
    assert (M / 4) / B is M / (4 * B)
    assert (M / 4)({"M": 12}) == 3
    with pytest.raises(NotExact, match="13 / 4"):
        (M / 4)({"M": 13})
    with pytest.raises(ExpressionError, match="not an integer"):
        as_expr(7) / 2
    for m in range(1, 40):
        assert math.floor(M / 8)({"M": m}) == m // 8
        assert math.ceil(M / 8)({"M": m}) == -(-m // 8)
        assert math.floor(M / 8 + M / 3 - 1)({"M": m}) == math.floor(m / 8 + m / 3 - 1 + 1e-9)
        assert ceildiv(M, 8)({"M": m}) == -(-m // 8)


def test_floor_semantics_for_negative_numbers():
    a = symbol("a", -20, 20)
    for divisor in (-7, -2, 1, 3, 8):
        for value in range(-20, 21):
            assert (a // divisor)({"a": value}) == value // divisor
            assert (a % divisor)({"a": value}) == value % divisor


def test_conditions_combine():
    a = index("a", 10)
    assert all_of(a >= 2, a < 12) is (a >= 2)
    assert all_of(a >= 2, a < 2) is as_expr(0)
    assert any_of(a >= 2, a < 2) is as_expr(1)
    assert negate(all_of(a >= 2, a < 5)) is any_of(a < 2, a >= 5)
    assert ne(a, 3) is negate(eq(a, 3))
    assert eq(a, 3) is eq(3, a)
    assert all_of() is as_expr(1)


def test_facts_of_definitions_and_of_the_caller():
    W, s, d = extent("W"), 3, 2
    Q = extent("Q", definition=(W - d * 4 - 1) // s + 1)
    q, t = index("q", Q), index("t", 5)
    assert (s * q + d * t < W) is as_expr(1)
    assert (s * q + d * t < W - 1) is not as_expr(1)
    assert not is_nonneg(W - 2 * Q - 40)
    H, P = extent("H"), extent("P")
    assert is_nonneg(H - 2 * P, facts=[H - 3 * P])
    assert not is_nonneg(H - 3 * P, facts=[H - 2 * P])
    lower = symbol("z", P, 3 * P)
    assert (lower >= P) is as_expr(1)
    assert (lower <= 3 * P) is as_expr(1)
    assert (lower > P) is not as_expr(1)


def test_substituting_a_size_reaches_what_depends_on_it():
    W = extent("W")
    Q = extent("Q", definition=(W - 3) // 2 + 1)
    m = index("m", 4 * Q)
    bound = substitute(m // Q + Q, {W: 57})
    assert str(bound) == "m//28 + 28"
    assert bound.hi == 31
    with pytest.raises(ExpressionError, match="W = 0 is outside its range: 1 to inf"):
        substitute(Q, {"W": 0})


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda a: bool(a > 3), "whether a >= 4 holds depends on a"),
        (lambda a: int(a), "a is not a number"),
        (lambda a: a + 1.5, "1.5 is neither an integer nor an expression"),
        (lambda a: a + True, "True is neither"),
        (lambda a: a({}), "no value is given for the symbol a"),
        (lambda a: a({"a": 10}), "a = 10 is outside its range: 0 to 9"),
        (lambda a: a({"a": np.array([0, 10])}), "outside its range: 0 to 9"),
        (lambda a: all_of(a, a >= 2), "a is not a condition: it takes values from 0 to 9"),
        (lambda a: symbol("x", 3, 2), "symbol x: no integer lies between 3 and 2"),
        (lambda a: symbol("1x"), "'1x' is not"),
        (lambda a: symbol("x", multiple_of=0), "multiple_of=0"),
        (lambda a: minimum(), "min of nothing"),
    ],
)
def test_bad_input_is_refused_by_name(action, message):
    with pytest.raises(ExpressionError, match=message):
        action(index("a", 10))


def test_division_by_zero_is_refused():
    with pytest.raises(ZeroDivisionError):
        index("a", 10) // 0
    with pytest.raises(ZeroDivisionError):
        index("a", 10) % 0


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("a + b", 4, "there is no symbol b; known: a"),
        ("a + )", 4, "not an expression"),
        ("a + 1.5", 4, "no meaning"),
        ("2*sin(a)", 2, "there is no function sin"),
        ("a // 0", 0, "// 0"),
        ("a << 2", 0, "no meaning"),
    ],
)
def test_parse_errors_point_at_the_fault(text, column, message):
    with pytest.raises(ParseError, match=message) as caught:
        parse_expr(text, [index("a", 10)])
    assert caught.value.position == column
    assert str(caught.value).splitlines()[-1] == " " * (column + 2) + "^"


def test_has_division_of_chosen_symbols():
    a, Q = index("a", 10), extent("Q")
    assert has_division(a % 3 + 1)
    assert not has_division(a + Q // 3, over=[a])


def test_threads_that_make_the_same_expression_get_the_same_object():
    """Of expressions that six threads made at once, some were two objects, which no rule takes for equal."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for r in range(12):
            found = [[] for _ in range(6)]
            start = threading.Barrier(6)

            def work(n, r=r, found=found, start=start):
                start.wait()
                found[n] += [
                    symbol(f"s{r}_{i}", 0, i + 5) * 3 + i * 7919 + symbol(f"t{r}_{i}", 0) // 3 for i in range(150)
                ]
                nodes.forget_unused()

            threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert all(a is b for a, *rest in zip(*found, strict=True) for b in rest)
    finally:
        sys.setswitchinterval(before)


def test_an_empty_text_was_invalid_syntax():
    with pytest.raises(ParseError, match="not an expression: the text holds nothing"):
        parse_expr(" ", {})


def test_a_symbol_without_a_multiple_in_its_range_is_refused():
    """It was made, with a range that ends before it begins."""
    with pytest.raises(ExpressionError, match="no multiple of 8 lies between 1 and 3"):
        symbol("without_a_multiple", 1, 3, multiple_of=8)


def test_a_fact_that_is_zero_refutes_too():
    """A fact counted as unknown at the points at which it is 0."""
    x = symbol("refuted_by_zero", 0, 10)
    assert refuted(x - 1, (x,))
    assert not refuted(x - 1, (x - 1,))
