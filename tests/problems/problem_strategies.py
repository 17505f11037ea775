"""Random problems for the property tests."""

from hypothesis import strategies as st

from tilewright.errors import ProblemError
from tilewright.problems import ConvProblem, MatmulProblem

names = st.none() | st.text(st.characters(exclude_categories=("C", "Z")), max_size=12)


@st.composite
def conv_problems(draw, largest=9, max_rank=3, max_batch=3):
    """Convolutions of all kinds; on every axis anything that can be written, most of it sensible."""
    rank = draw(st.integers(1, max_rank))
    axes = 1 if draw(st.booleans()) else rank  # equal axes, or each its own

    def numbers(low, high):
        values = [draw(st.integers(low, high)) for _ in range(axes)]
        return tuple(values if axes == rank else values * rank)

    g = draw(st.none() | st.integers(1, 3))
    fields = {
        "mb": draw(st.integers(0, max_batch)),
        "ic": draw(st.integers(1, 3)) * (g or 1),
        "oc": draw(st.integers(1, 3)) * (g or 1),
        "g": g,
        "i": numbers(1, largest),
        "k": numbers(1, 4),
        "s": numbers(1, 4),
        "d": numbers(0, 2),
        "name": draw(names),
    }
    if draw(st.booleans()):
        fields["p"] = numbers(0, 3)
    if draw(st.booleans()):
        fields["o"] = numbers(1, largest)
    try:
        return ConvProblem(**fields)
    except ProblemError:  # no output fits: say how many there are instead
        return ConvProblem(**fields, o=(1,) * rank)


@st.composite
def matmul_problems(draw, largest=6):
    batch = draw(st.lists(st.integers(0, 3), max_size=3))
    m, n, k = (draw(st.integers(0, largest)) for _ in range(3))
    src = [1 if draw(st.booleans()) else extent for extent in batch]
    wei = [1 if draw(st.booleans()) else extent for extent in batch]
    dst = (*batch, m, n) if draw(st.booleans()) else ()
    return MatmulProblem((*src, m, k), (*wei, k, n), dst, draw(names))
