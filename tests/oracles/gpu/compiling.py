"""Launch kernels on a GPU that need not be there: what Triton's interpreter accepts, its binder, compiler or launcher may refuse.

``python tests/oracles/gpu/compiling.py constituency`` runs every operation of a structure at four sizes on the device of
`pretended_device`, and prints what each kernel takes: registers of a thread and bytes that it spills, shared memory, and how many programs
one multiprocessor holds. A second word names an operation, a third a size (``least``, ``small``, ``real`` or ``largest``). The results of
the operations mean nothing.

Another Triton than the installed one comes first on the path: ``pip install --no-deps --target DIR triton==3.6.0``, then the same with
``PYTHONPATH=DIR``. Compiled kernels are kept in Triton's cache, whose place is ``TRITON_CACHE_DIR``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from inspect import signature as signature_of
from itertools import product
from pathlib import Path
from typing import Any

import torch
from pretended_device import CAPABILITY, Launch, launched, set_up
from torch import Tensor
from triton.backends.nvidia import compiler as nvidia

from structgrad.oracles import make_oracle
from structgrad.oracles.derivations import device
from structgrad.oracles.random_streams import SeedBlocks

SIZES = ("least", "small", "real", "largest")
"""Where numbers are 1, which Triton makes constants of; where 16 does not divide them; where it often does, and people have such; and the
largest that are served."""

BATCHES = {"least": 1, "small": 3, "real": 16, "largest": 1}
SAMPLES = {"least": 1, "small": 3, "real": 64, "largest": 3}

MANY = 2**16 * 32 + 33
"""Samples; 16 does not divide them either."""


@dataclass(frozen=True)
class Case:
    """A structure.

    Attributes:
        events: of the sizes.
        only: operations, all where there are none.
        covers: whether it is among those that are always tested; others are like one of them but for their tiles.
    """

    events: tuple[tuple[int, ...], ...]
    only: tuple[str, ...] = ()
    covers: bool = True

    def scores(self, size: str, dtype: torch.dtype) -> Tensor:
        event = self.events[SIZES.index(size)]
        return torch.randn(BATCHES[size], *event, dtype=dtype)


Operation = Callable[[Any, Tensor, int], Any]
"""Of an oracle, scores and a number of samples."""


def _sampled(oracle: Any, scores: Tensor, number: int) -> None:
    oracle.sample(scores, number, generator=SeedBlocks((7,), len(scores)))


def _sampled_often(oracle: Any, scores: Tensor, number: int) -> None:
    """More samples of a row than a second dimension of a grid has programs for; none takes memory."""
    event = oracle._event(scores)
    rows, steps = torch.empty(len(scores), *event, dtype=scores.dtype, device="meta"), oracle._noise_size(event)
    uniforms = torch.empty(len(scores), MANY, steps, dtype=torch.float64, device="meta")
    sample = import_module("structgrad.oracles.derivations.gpu").sample
    sample(rows, uniforms, rows.new_empty(len(scores), MANY, *event), device.graph_of(oracle, event, scores.device))


def _differentiated(oracle: Any, scores: Tensor, _: int) -> None:
    leaf = scores.detach().requires_grad_()
    torch.autograd.grad(oracle.marginals(leaf).square().sum(), leaf)


OPERATIONS: dict[str, Operation] = {
    "argmax": lambda oracle, scores, _: oracle.argmax(scores),
    "log_partition": lambda oracle, scores, _: oracle.log_partition(scores),
    "marginals": lambda oracle, scores, _: oracle.marginals(scores),
    "covariance_product": _differentiated,
    "sample": _sampled,
    "sample_often": _sampled_often,
}

_SUMS = ("log_partition", "marginals", "covariance_product")

CASES: dict[str, Case] = {
    "linear_chain": Case(((1, 1, 1), (3, 3, 3), (128, 32, 32), (33, 64, 64)), only=("argmax", *_SUMS)),
    "alignment": Case(((1, 1), (3, 5), (128, 128), (512, 512))),
    "constituency": Case(((1, 1), (5, 5), (40, 40), (100, 100))),
    "projective_tree": Case(((2, 2), (5, 5), (41, 41), (65, 65)), covers=False),
    "shift_reduce": Case(((2, 2, 2), (5, 5, 2), (41, 41, 2), (257, 257, 2)), covers=False),
    "semi_markov": Case(((1, 1, 1, 1), (5, 3, 2, 2), (32, 4, 8, 8), (128, 8, 16, 16)), covers=False),
    "labelled_constituency": Case(((1, 1, 1), (5, 5, 2), (20, 20, 8), (64, 64, 16)), covers=False),
    "ctc": Case(((1, 3, 3), (6, 5, 3), (64, 33, 3), (512, 101, 3)), covers=False),
    "edit_alignment": Case(((2, 2, 5), (5, 4, 5), (33, 33, 5), (257, 257, 5)), covers=False),
    "tied_semi_markov": Case(((2, 1, 1), (6, 3, 2), (34, 4, 8), (129, 16, 16)), only=_SUMS, covers=False),
    "second_order_chain": Case(((1, 1, 1, 1), (5, 3, 3, 3), (32, 8, 8, 8), (33, 32, 32, 32)), covers=False),
}
"""Structures, whose tiles differ."""

Record = dict[str, Any]


def records(case: str, operation: str, size: str, dtype: torch.dtype) -> Iterator[tuple[Record, Launch | None]]:
    """What an operation launches, each program that Triton made once, and what goes wrong, which has no launch."""
    task = CASES[case]
    oracle, scores = make_oracle(case), task.scores(size, dtype)
    about = {"case": case, "operation": operation, "size": size, "dtype": str(dtype).removeprefix("torch.")}
    failure: Exception | None = None
    with launched() as launches:
        try:
            OPERATIONS[operation](oracle, scores, SAMPLES[size])
        except Exception as error:  # told with the others
            failure = error
    distinct = {launch.compiled.hash: launch for launch in reversed(launches) if launch.error is None}
    yield from ((about | described(launch), launch) for launch in reversed(distinct.values()))
    # A failed launch need not have come out of the operation.
    failures = [(called(launch.kernel), launch.error) for launch in launches if launch.error] or [("", failure)] * (failure is not None)
    yield from ((about | {"kernel": kernel, "error": f"{type(error).__name__}: {error}"}, None) for kernel, error in failures)


def called(kernel: Any) -> str:
    """The name of a kernel, with its module's."""
    return f"{kernel.__module__.partition('.oracles.')[2]}.{kernel.__name__}"


def described(launch: Launch) -> Record:
    """Names and numbers of a kernel, as its launch needs them."""
    compiled = launch.compiled
    kinds = sorted({kind for kind in compiled.src.signature.values() if isinstance(kind, str) and kind.startswith("*")})
    constants = {path[0]: value for path, value in compiled.src.constants.items() if len(path) == 1 and isinstance(value, int)}
    return {
        "kernel": called(launch.kernel),
        "types": kinds,
        "constants": {launch.kernel.arg_names[place]: value for place, value in constants.items()},
        "grid": launch.grid,
        "warps": compiled.metadata.num_warps,
        "shared": compiled.metadata.shared,
        "seconds": round(launch.seconds, 2),
    }


def assembled(launch: Launch) -> Record:
    """Registers of a thread and bytes that it spills, from the assembler that comes with Triton, and programs of a multiprocessor."""
    # Which one serves a capability, Triton knows; before 3.5 there was one for all.
    assembler = nvidia.get_ptxas(*[CAPABILITY] if signature_of(nvidia.get_ptxas).parameters else []).path
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(launch.compiled.asm["ptx"])
        command = [assembler, f"-arch=sm_{CAPABILITY}a", "-v", str(source), "-o", str(Path(folder, "kernel.cubin"))]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr.replace(",", "").split()
    registers = int(said[said.index("registers") - 1])
    spilled = int(said[said.index("spill") - 2]) if "spill" in said else 0
    taken = launch.compiled.metadata
    return {"registers": registers, "spilled": spilled, "programs": programs(taken.num_warps, registers, taken.shared)}


def programs(warps: int, registers: int, shared: int) -> int:
    """Programs that one multiprocessor of compute capability 9.0 holds at a time (CUDA's occupancy calculator)."""
    # Registers are given to warps by 256, and each of four schedulers has a quarter of them; a program takes 1 KiB of shared memory itself.
    held = 65536 // (-(-registers * 32 // 256) * 256) // 4 * 4
    return min(32, 64 // warps, held // warps, 228 * 1024 // (-(-(shared + 1024) // 128) * 128))


DTYPES = (torch.float32, torch.float64)
Task = tuple[str, str, str, torch.dtype]


def everything(case: str) -> Iterator[Task]:
    """All of a structure."""
    return ((case, *rest) for rest in product(CASES[case].only or OPERATIONS, SIZES, DTYPES))


def covering() -> Iterator[Task]:
    """Every operation of some structures at their small size, in one dtype: every kernel."""
    for place, case in enumerate(name for name, task in CASES.items() if task.covers):
        yield from ((case, operation, "small", DTYPES[place % 2]) for operation in CASES[case].only or OPERATIONS)


def main(words: list[str]) -> None:
    """Print what is launched, each kernel once."""
    set_up()
    seen: set[str] = set()
    for task in covering() if words[0] == "covering" else everything(words[0]):
        if all(word in task for word in words[1:]):
            for record, launch in records(*task):
                if launch is None or launch.compiled.hash not in seen:
                    seen |= {launch.compiled.hash} if launch else set()
                    # The covering part is run by every test run: it tells what fails.
                    more = assembled(launch) if launch and words[0] != "covering" else {}
                    sys.stdout.write(json.dumps(record | more) + "\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
