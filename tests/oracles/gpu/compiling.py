"""Compile kernels of the GPU for a GPU that need not be there: what Triton's interpreter accepts, its compiler may refuse.

``python tests/oracles/gpu/compiling.py linear_chain`` runs every operation of a structure with its launches replaced by compilations for
compute capability 9.0, and prints what each kernel takes. The results of the operations mean nothing.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature as signature_of
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import compiler as nvidia
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from structgrad.oracles import make_oracle
from structgrad.oracles.kernels import gpu
from structgrad.oracles.random_streams import SeedBlocks
from structgrad.suites.speed.device import popping

CAPABILITY = 90
SHARED = 227 * 1024
"""Bytes of shared memory that one program may take there."""

TYPES = {
    torch.float32: "*fp32", torch.float64: "*fp64", torch.bool: "*i1", torch.uint8: "*u8", torch.int32: "*i32", torch.int64: "*i64"
}  # fmt: skip

Record = dict[str, Any]


def programs(warps: int, registers: int, shared: int) -> int:
    """Programs that one multiprocessor of compute capability 9.0 holds at a time (CUDA's occupancy calculator)."""
    # Registers are given to warps by 256, and each of four schedulers has a quarter of them; a program takes 1 KiB of shared memory itself.
    held = 65536 // (-(-registers * 32 // 256) * 256) // 4 * 4
    return min(32, 64 // warps, held // warps, 228 * 1024 // (-(-(shared + 1024) // 128) * 128))


def signature(kernel: Any, arguments: dict[str, Any]) -> tuple[dict[str, Any], dict[tuple[int, ...], Any]]:
    """The types of a kernel's arguments, and the values of those that are constants; a plain 1 is one, as it is in a launch."""
    types: dict[str, Any] = {}
    constants: dict[tuple[int, ...], Any] = {}
    for place, parameter in enumerate(kernel.params):
        value = arguments[parameter.name]
        if parameter.is_constexpr:
            types[parameter.name], constants[(place,)] = "constexpr", value
        else:
            types[parameter.name] = type_of(value, (place,), constants)
    return types, constants


def type_of(value: Any, path: tuple[int, ...], constants: dict[tuple[int, ...], Any]) -> Any:
    """The type of an argument, or of each entry of a tuple; ``constants`` gets those that are constants."""
    if isinstance(value, tuple):
        return tuple(type_of(entry, (*path, place), constants) for place, entry in enumerate(value))
    if type(value) is int and value == 1:
        constants[path] = value
        return "constexpr"
    return TYPES[value.dtype] if isinstance(value, torch.Tensor) else {bool: "i1", int: "i32", float: "fp32"}[type(value)]


def resources(ptx: str) -> dict[str, int]:
    """Registers of a thread and the bytes that it spills, from the assembler that comes with Triton."""
    # Which one serves a capability, Triton knows; before 3.5 there was one for all.
    assembler = nvidia.get_ptxas(*[CAPABILITY] if signature_of(nvidia.get_ptxas).parameters else []).path
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        command = [assembler, f"-arch=sm_{CAPABILITY}a", "-v", str(source), "-o", str(Path(folder, "kernel.cubin"))]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr.replace(",", "").split()
    return {
        "registers": int(said[said.index("registers") - 1]),
        "spilled": int(said[said.index("spill") - 2]) if "spill" in said else 0,
    }


@contextmanager
def compiling() -> Iterator[list[Record]]:
    """Compile instead of launching, in this context; each kernel once for every signature."""
    records: list[Record] = []
    seen: set[str] = set()

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        options = {name: kwargs.pop(name) for name in ("num_warps", "num_stages", "maxnreg") if name in kwargs}
        bound = kernel.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        types, constants = signature(kernel, bound.arguments)
        key = f"{kernel.__name__} {types} {constants} {options}"
        if key in seen:
            return
        seen.add(key)
        start = time.perf_counter()
        made = triton.compile(ASTSource(fn=kernel, signature=types, constexprs=constants), GPUTarget("cuda", CAPABILITY, 32), options)
        spent = time.perf_counter() - start
        taken = resources(made.asm["ptx"])
        kinds = sorted({kind for kind in types.values() if isinstance(kind, str) and kind.startswith("*")})
        sizes = {kernel.params[path[0]].name: value for path, value in constants.items() if isinstance(value, int) and len(path) == 1}
        records.append(
            {"kernel": kernel.__name__, "types": kinds, "constants": sizes, **options, "shared": made.metadata.shared}
            | taken
            | {"programs": programs(made.metadata.num_warps, taken["registers"], made.metadata.shared), "seconds": round(spent, 2)}
        )

    original, JITFunction.run = JITFunction.run, run
    token = gpu._interpreting.set(True)
    try:
        yield records
    finally:
        JITFunction.run = original
        gpu._interpreting.reset(token)


RANKED: dict[str, tuple[int, ...]] = {
    "subset": (30,),
    "linear_chain": (8, 4, 4),
    "alignment": (8, 8),
    "constituency": (12, 12),
    "projective_tree": (9, 9),
    "spanning_tree": (9, 9),
    "assignment": (10, 10),
    "shift_reduce": (12, 12, 2),
}
"""Events whose structures can be ranked."""


def popped(oracle: Any, scores: torch.Tensor) -> Any:
    """The sampler beside the default one, which spanning trees alone have."""
    # With several roots: what the marginals say of one means nothing here.
    return popping(replace(oracle, single_root=False), scores, 2) if oracle.name == "spanning_tree" else None


Operation = Callable[[Any, torch.Tensor], Any]

OPERATIONS: dict[str, Operation] = {
    "argmax": lambda oracle, scores: oracle.argmax(scores),
    "log_partition": lambda oracle, scores: oracle.log_partition(scores),
    "marginals": lambda oracle, scores: oracle.marginals(scores),
    "covariance_product": lambda oracle, scores: oracle._compute_covariance_product(scores, scores),
    "sample": lambda oracle, scores: oracle.sample(scores, 2, generator=SeedBlocks((7,), len(scores))),
    "popping": popped,
    "project": lambda oracle, scores: oracle.project(scores).mean,
    "enumerate": lambda oracle, scores: oracle.enumerate(RANKED[oracle.name], 0, 256),
}

CASES: dict[str, tuple[str, tuple[int, ...]]] = {
    "subset": ("subset[k=10]", (100,)),
    "linear_chain": ("linear_chain", (128, 32, 32)),
    "alignment": ("alignment", (512, 512)),
    "constituency": ("constituency", (40, 40)),
    "projective_tree": ("projective_tree", (41, 41)),
    "spanning_tree": ("spanning_tree", (41, 41)),
    "assignment": ("assignment", (64, 64)),
    "assignment_large": ("assignment", (1000, 1000)),
    "assignment_sums": ("assignment", (16, 16)),
    "shift_reduce": ("shift_reduce", (41, 41, 2)),
}
"""A structure at a size that people have."""


def compile_all(case: str, dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64), only: str = "") -> Iterator[Record]:
    """Every kernel of a structure."""
    name, event = CASES[case]
    oracle = make_oracle(name)
    for dtype in dtypes:
        scores = torch.randn(2, *event, dtype=dtype).clamp(max=math.inf)
        for operation, call in OPERATIONS.items():
            if (only and only != operation) or (case == "assignment_large" and operation != "argmax"):
                continue
            if case == "assignment" and operation not in ("argmax", "enumerate"):  # sums take too long at this size
                continue
            with compiling() as records:
                call(oracle, scores)
            yield from ({"operation": operation, "dtype": str(dtype).removeprefix("torch."), **record} for record in records)


if __name__ == "__main__":
    for found in compile_all(sys.argv[1], only=sys.argv[2] if len(sys.argv) > 2 else ""):
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
