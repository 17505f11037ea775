"""Programs that are done as two on a Hopper GPU, beside PyTorch's eager calls and what torch.compile makes of them.

`python benchmarks/gpu_chained.py [--plans 3] [--seconds 80] [--modes default max-autotune-no-cudagraphs]` prints, for a
layer of two products with gelu between and for a product with a softmax of its rows, microseconds of PyTorch's calls,
of the same calls compiled by torch.compile in each mode, and of ours, all in CUDA graphs, the medians of interleaved
replays, and the ratios; then the same of each program alone beside its call, and of the whole where the second
program is launched when the first has ended. With --plans, so many other plans of either program are measured too.
Results are compared with float64, and once, with small integers, exactly. Where torch.compile cannot compile, such as
without a C compiler or Triton, one line says why.

With --families it prints instead one line for each family that is one kernel (`gpu_families.py`): a product whose rows
are reduced, chained products, quantised products with scales, a convolution and a pointwise one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from gpu_families import Family, families
from gpu_shapes import MLP, PRODUCT_SOFTMAX
from hopper import difference, microseconds

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import compile_text
from tilewright.compiler.native import kernel_for
from tilewright.errors import TilewrightError
from tilewright.kernels.elementwise import gelu
from tilewright.plan.schedule import Schedule

M, N, K, F, SPACE = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.sym.F, tkl.GLOBAL_ADDRESS_SPACE
functional = torch.nn.functional


def by_tanh(x: Any) -> Any:
    """The usual approximation of gelu, as one would write it."""
    return 0.5 * x * (1.0 + tkw.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def layers(activation: Callable[[Any], Any]) -> Any:
    """y = activation(x w1) w2, the hidden layer rounded to bf16."""

    @tkw.wave()
    def mlp(
        x: tkl.Memory[M, K, SPACE, tkl.bf16],
        w1: tkl.Memory[F, K, SPACE, tkl.bf16],
        w2: tkl.Memory[N, F, SPACE, tkl.bf16],
        y: tkl.Memory[M, N, SPACE, tkl.bf16],
    ) -> None:
        hidden = activation(tkw.mma(tkw.read(x), tkw.read(w1), tkl.Register[M, F, tkl.f32](0.0)))
        total = tkw.mma(tkw.cast(hidden, tkl.bf16), tkw.read(w2), tkl.Register[M, N, tkl.f32](0.0))
        tkw.write(tkw.cast(total, tkl.bf16), y)

    return mlp


def weights(rounded: bool) -> Any:
    """y = softmax of the rows of a b, whose sums stay f32, or are rounded to bf16 as PyTorch's are."""

    @tkw.wave()
    def product_and_softmax(
        a: tkl.Memory[M, K, SPACE, tkl.bf16],
        b: tkl.Memory[N, K, SPACE, tkl.bf16],
        y: tkl.Memory[M, N, SPACE, tkl.bf16],
    ) -> None:
        c = tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0.0))
        c = tkw.cast(tkw.cast(c, tkl.bf16), tkl.f32) if rounded else c
        e = tkw.exp(c - tkw.max(c, dim=N))
        tkw.write(tkw.cast(e / tkw.sum(e, dim=N), tkl.bf16), y)

    return product_and_softmax


@dataclass(frozen=True)
class Case:
    """A program, its sizes, and PyTorch's calls: `calls` one by one, each of what the one before gives."""

    name: str
    kernel: Any
    sizes: dict[str, int]
    calls: tuple[Callable[..., Any], ...]
    largest: float
    """The relative difference from float64, by norms, that roundings to bf16 explain."""

    def inputs(self) -> list[Any]:
        """The first factor, and the weights of each product."""
        s = self.sizes
        forms = [(s["M"], s["K"]), (s.get("F", s["N"]), s["K"]), *([(s["N"], s["F"])] if "F" in s else [])]
        return [torch.randn(form, device="cuda", dtype=torch.bfloat16) / s["K"] ** 0.25 for form in forms]

    def eager(self, x: Any, *factors: Any) -> Any:
        """PyTorch's calls, one after the other."""
        left = list(factors)
        for call in self.calls:
            x = call(x, left.pop(0)) if call is product else call(x)
        return x


def product(x: Any, w: Any) -> Any:
    """x times w transposed."""
    return torch.mm(x, w.t())


def softmax(x: Any) -> Any:
    """Of each row."""
    return torch.softmax(x, -1)


def tanh_gelu(x: Any) -> Any:
    """gelu by tanh."""
    return functional.gelu(x, approximate="tanh")


CASES = (
    Case("mlp 8192x1024-4096-1024, gelu", layers(gelu), MLP, (product, functional.gelu, product), 1e-2),
    Case("mlp 8192x1024-4096-1024, gelu by tanh", layers(by_tanh), MLP, (product, tanh_gelu, product), 1e-2),
    Case("gemm + softmax 4096x4096x1024, f32", weights(rounded=False), PRODUCT_SOFTMAX, (product, softmax), 1e-2),
    Case("gemm + softmax 4096x4096x1024, bf16", weights(rounded=True), PRODUCT_SOFTMAX, (product, softmax), 3e-2),
)


def variants(plan: Schedule, parts: Any, count: int) -> Iterator[tuple[str, Schedule]]:
    """Plans that differ in one of the two programs, or in when one of them is launched."""
    assert plan.then is not None
    for place, program in enumerate((plan, plan.then)):
        other = replace(program, early=not program.early)
        said = f"{('first', 'second')[place]}: {'launch early' if other.early else 'launch plain'}"
        yield said, other if place == 0 else replace(plan, then=other)
    for place, part in enumerate(parts):
        own = replace(plan, split_after=None, then=None) if place == 0 else plan.then
        assert own is not None
        others = [x.plan for x in part.candidates if x.plan != own]
        turns = [x for x in others if x.pipeline and own.pipeline and x.pipeline.pingpong != own.pipeline.pingpong]
        others = list(dict.fromkeys([*others[:count], *turns[:1]]))
        if not part.candidates:
            others = [replace(own, waves=waves) for waves in (4, 16) if waves != own.waves]
            others.append(replace(own, order="cyclic" if own.order == "reversed" else "reversed"))
        for other in others:
            whole = replace(plan, then=other)
            if place == 0:
                whole = replace(other, apart=plan.split_after, then=plan.then)
            yield f"{('first', 'second')[place]}: {other.difference(own)}", whole


def bound(executable: Any, tensors: dict[str, Any]) -> Callable[[], None]:
    """A kernel bound to tensors by the names of its arguments."""
    found: Callable[[], None] = executable.bind(tensors)
    return found


def compiled_calls(case: Case, given: list[Any], modes: list[str]) -> dict[str, Callable[[], Any]]:
    """What torch.compile makes of a case's calls, by mode, warmed up; a refusal is printed, and left out."""
    found: dict[str, Callable[[], Any]] = {}
    for mode in modes:
        torch._dynamo.reset()
        call = partial(torch.compile(case.eager, mode=mode, dynamic=False), *given)
        try:
            microseconds(call)
        except Exception as fault:  # whatever it is that the machine lacks, ours are measured all the same
            said = next((line.strip() for line in str(fault).splitlines() if line.strip()), "")
            print(f"torch.compile, {mode}: {type(fault).__name__}: {said[:200]}", flush=True)
            continue
        found[mode] = call
    return found


def measured(case: Case, count: int, until: float, modes: list[str]) -> None:
    """The lines of a case."""
    found = kernel_for(case.kernel, case.sizes, target="gpu")
    given = case.inputs()
    names = [a.name for a in found.module.host.args]
    result = torch.full((case.sizes["M"], case.sizes["N"]), torch.nan, device="cuda", dtype=torch.bfloat16)
    tensors = dict(zip(names, [*given, result], strict=True))
    launch = bound(found, tensors)
    launch()
    exact = case.eager(*(x.double() for x in given))
    errors = difference(result, exact), difference(case.eager(*given), exact)
    calls = compiled_calls(case, given, modes)
    theirs, *compiled, ours = microseconds(lambda: case.eager(*given), *calls.values(), launch)
    wrong = "" if errors[0] <= case.largest else " WRONG"
    print(
        f"{case.name:40} theirs {theirs:7.1f} us  ours {ours:7.1f} us  ratio {theirs / ours:5.2f}  "
        f"error {errors[0]:.1e} (theirs {errors[1]:.1e}){wrong}",
        flush=True,
    )
    for mode, time_of, call in zip(calls, compiled, calls.values(), strict=True):
        said = f"torch.compile, {mode}:"
        print(
            f"    {said:36} theirs {time_of:7.1f} us  ours {ours:7.1f} us  ratio {time_of / ours:5.2f}  "
            f"(theirs {difference(call(), exact):.1e})",
            flush=True,
        )
    print("    predicted " + found.explain().splitlines()[0].partition("predicted ")[2])
    _alone(case, found, tensors)
    if found.plan.then is None:
        return
    for said, plan in variants(found.plan, found.choice.parts, count):
        if time.perf_counter() > until:
            print("    no time for other plans")
            return
        try:
            other = bound(kernel_for(case.kernel, case.sizes, target="gpu", plan=plan), tensors)
        except TilewrightError as fault:
            print(f"    {said}: {str(fault).splitlines()[0]}")
            continue
        print(f"    {microseconds(launch, other)[1]:7.1f} us  {said}", flush=True)


def _alone(case: Case, found: Any, tensors: dict[str, Any]) -> None:
    """Each program by itself, and each of PyTorch's calls."""
    ours, (x, *left) = [], list(tensors.values())[: 1 + case.calls.count(product)]
    tensors = dict(tensors)
    for program in found.module.programs.values():
        for arg in program.args:
            if arg.name not in tensors:
                kind = {"f32": torch.float32, "bf16": torch.bfloat16}[str(arg.type.dtype)]
                tensors[arg.name] = torch.zeros([int(n) for n in arg.type.shape], device="cuda", dtype=kind)
        executable = compile_text(str(program), "gpu")
        ours.append(executable.bind(*(tensors[a.name] for a in program.args)))
    theirs: list[Callable[[], Any]] = []
    for call in case.calls:
        more = (left.pop(0),) if call is product else ()
        theirs.append(partial(call, x, *more))
        x = call(x, *more)
    times = [f"{t:.1f}" for t in microseconds(*ours, *theirs)]
    print(f"    alone: ours {' + '.join(times[: len(ours)])}; theirs {' + '.join(times[len(ours) :])}")


def exact() -> None:
    """Small integers through a layer with relu: every element is as it must be."""
    sizes = {"M": 1000, "N": 1032, "K": 520, "F": 2056}
    found = kernel_for(layers(tkw.relu), sizes, target="gpu")
    forms = [(sizes[a], sizes[b]) for a, b in (("M", "K"), ("F", "K"), ("N", "F"))]
    given = [torch.randint(-1, 2, form, device="cuda").to(torch.bfloat16) for form in forms]
    result = torch.full((sizes["M"], sizes["N"]), torch.nan, device="cuda", dtype=torch.bfloat16)
    bound(found, dict(zip([a.name for a in found.module.host.args], [*given, result], strict=True)))()
    x, w1, w2 = (t.double() for t in given)
    wanted = (torch.relu(x @ w1.t()).to(torch.bfloat16).double() @ w2.t()).to(torch.bfloat16)
    print(f"small integers, {'two programs' if found.plan.split_after else 'one'}: {torch.equal(result, wanted)}")


def family(case: Family) -> None:
    """The line of a family, or why there is none."""
    found = kernel_for(case.kernel, case.sizes, target="gpu")
    names = [a.name for a in found.module.host.args]
    result = torch.full([int(n) for n in found.module.host.args[-1].type.shape], torch.nan, device="cuda")
    tensors = dict(zip(names, [*case.given, result.to(torch.bfloat16)], strict=True))
    launch = bound(found, tensors)
    launch()
    wide = [x.double() if x.is_floating_point() else x for x in case.given]
    exact = (case.exact or case.eager)(*wide)
    error = difference(tensors[names[-1]], exact)
    try:
        theirs, ours = microseconds(lambda: case.eager(*case.given), launch)
        said = f"theirs {theirs:7.1f} us  ours {ours:7.1f} us  ratio {theirs / ours:5.2f}"
    except RuntimeError as fault:  # a call that this PyTorch does not have
        said = f"theirs: {str(fault).splitlines()[0][:60]}  ours {microseconds(launch)[0]:7.1f} us"
    choice, count = found.choice, len(found.module.programs)
    print(
        f"{case.name:38} {said}  predicted {choice.cycles / choice.machine.limits.clock_ghz / 1000:6.1f}  "
        f"{count} program{'s' * (count > 1)}  error {error:.1e}{'' if error <= case.largest else ' WRONG'}",
        flush=True,
    )


def main() -> None:
    """All cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=80)
    parser.add_argument("--modes", nargs="*", default=["default"], help="of torch.compile; none: it is left out")
    parser.add_argument("--families", action="store_true", help="what is one kernel, instead")
    options = parser.parse_args()
    if options.families:
        for case in families():
            family(case)
        return
    begun = time.perf_counter()
    exact()
    for number, case in enumerate(CASES, 1):
        measured(case, options.plans, begun + options.seconds * number / len(CASES), options.modes)


if __name__ == "__main__":
    main()
