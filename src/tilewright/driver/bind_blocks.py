"""Binding of CPU plans with one MMA in accumulator tiles that stay in registers over all of K."""

from __future__ import annotations

from tilewright.driver.bound_plan import OneKernel
from tilewright.driver.request import Request, SizedProgram
from tilewright.driver.request_facts import facts_of_request
from tilewright.errors import ArgumentError
from tilewright.plan.bound import BoundKernel
from tilewright.plan.contraction import dimension, size
from tilewright.plan.cutting import digits_of, in_lines, plan_over_digits
from tilewright.plan.kernel import KernelProgram
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import Schedule
from tilewright.plan.search import blocking_of_plan, product_space
from tilewright.rewrite.contraction import over_digits


def bind_blocks(request: Request, plan: Schedule) -> OneKernel:
    """Bind (apply) a CPU plan with axes `rows`, `columns` and `depth`; return its kernel.

    The kernel's program is the request's, rewritten to digits (mixed-radix parts) of its dimensions in the plan's loop
    order. Raise an ArgumentError on a machine with lanes (a GPU), for a program that is not one product, for an
    argument longer than its dimensions say, and for a plan that marks other sizes as open (known only at the call) than
    the program has.
    """
    line = f"atom {plan.atom}"
    if request.machine.lanes is not None:
        raise refused(line, "axes of rows, columns and depth are for machines with one thread per core")
    if (longer := request.longer()) is not None:
        raise refused(line, f"the argument {longer} is longer than its dimensions say")
    facts = facts_of_request(request)
    space = product_space(facts, request.machine)
    if isinstance(space, str):
        raise refused(line, f"axes of rows, columns and depth are those of one product, and {space}")
    names = {digit.name for digit in space.open}
    if plan.open and not names:
        raise ArgumentError(f"plan: {', '.join(sorted(plan.open))}: no size is open here")
    if plan.open != names:
        raise ArgumentError(f"plan: open here are {', '.join(sorted(names))}, marked as in `m_0 56?`")
    variant, blocking = blocking_of_plan(facts, space, request.machine, plan)
    walked = in_lines(variant.space, blocking)
    program, extents, shapes = over_digits(walked, digits_of(walked, blocking))
    sized = SizedProgram(program, {**request.sizes, **extents}, shapes)
    numbers = {**request.sizes, **{dimension(d): size(d) for d in digits_of(walked, blocking)}}
    kernel = KernelProgram(program, numbers, request.machine)
    bound = BoundKernel(kernel, plan_over_digits(plan, variant.space, blocking))
    unpadded = {operand.name: operand.unpadded for operand in (walked.a, walked.b) if operand.unpadded}
    return OneKernel(sized, bound, dims=space.dims, unpadded=unpadded)
