"""The pass that gives programs which mean the same one writing, so that they get the same plan."""

from __future__ import annotations

from dataclasses import replace

from tilewright.passes.request import Request, SizedProgram
from tilewright.passes.tile.dim_order import in_dim_order
from tilewright.passes.tile.equal_reads import with_equal_reads_once
from tilewright.passes.tile.merging import Sized, merged
from tilewright.plan.general import dims_of


def canonical(request: Request) -> Request:
    """Return the request with its program in the canonical form, so that programs that mean the same get the same plan.

    Equal reads are one; tiles are in the order of results; on GPUs, dimensions of MMAs and reductions are merged if
    they are contiguous in memory. Programs with logs and grid programs stay: they are over the author's dimensions.
    """
    if request.logs or request.workgroups is not None:
        return request
    request = request.rewritten(*in_dim_order(*with_equal_reads_once(request.program, request.free)))
    if request.machine.lanes is None or request.opened or request.longer() is not None or _names_dims(request):
        return request
    shapes = {a: tuple(int(n) for n in shape) for a, shape in request.sized.shapes.items()}
    form = merged(Sized(request.program, request.sizes, shapes, request.free))
    return replace(request, sized=SizedProgram(form.program, form.sizes, form.shapes, form.free))


def _names_dims(request: Request) -> bool:
    """True if the pinned plan names every dimension of the program: its axes are the author's, so none is merged."""
    named = set() if request.pinned is None else {axis.name for axis in request.pinned.axes}
    return bool(named) and {str(d) for d in dims_of(request.program)} <= named
