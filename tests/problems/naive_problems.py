"""Convolution and matrix product as they are written in a textbook: plain loops over plain numbers."""

from itertools import product

import numpy as np


def triples(problem):
    """Every (index of x, index of w, index of y) whose product is added up; w as [g, o, i, filter]."""
    for n, g, o, c in product(
        range(problem.mb), range(problem.groups), range(problem.oc_per_group), range(problem.ic_per_group)
    ):
        for pixel in product(*map(range, problem.o)):
            for tap in product(*map(range, problem.k)):
                at = tuple(
                    pixel[a] * problem.s[a] + tap[a] * (problem.d[a] + 1) - problem.p[a] for a in range(problem.rank)
                )
                if all(0 <= at[a] < problem.i[a] for a in range(problem.rank)):
                    x = (n, g * problem.ic_per_group + c, *at)
                    w = (g, o, c, *tap)
                    y = (n, g * problem.oc_per_group + o, *pixel)
                    yield x, w, y


def grouped_shape(problem):
    return (problem.groups, problem.oc_per_group, problem.ic_per_group, *problem.k)


def forward(problem, x, w):
    w = w.reshape(grouped_shape(problem))
    y = np.zeros(problem.y_shape, object)
    for at_x, at_w, at_y in triples(problem):
        y[at_y] += int(x[at_x]) * int(w[at_w])
    return y


def dgrad(problem, y, w):
    w = w.reshape(grouped_shape(problem))
    x = np.zeros(problem.x_shape, object)
    for at_x, at_w, at_y in triples(problem):
        x[at_x] += int(y[at_y]) * int(w[at_w])
    return x


def wgrad(problem, x, y):
    w = np.zeros(grouped_shape(problem), object)
    for at_x, at_w, at_y in triples(problem):
        w[at_w] += int(x[at_x]) * int(y[at_y])
    return w.reshape(problem.w_shape)


def matmul(problem, a, b):
    c = np.zeros(problem.dst, object)
    for at in np.ndindex(*problem.dst):
        *batch, row, column = at
        left = [place if extent > 1 else 0 for place, extent in zip(batch, problem.src[:-2], strict=True)]
        right = [place if extent > 1 else 0 for place, extent in zip(batch, problem.wei[:-2], strict=True)]
        c[at] = sum(int(a[(*left, row, k)]) * int(b[(*right, k, column)]) for k in range(problem.k))
    return c
