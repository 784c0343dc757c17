"""What one client round costs, and how much of it the shortcuts save.

    python benchmarks/step.py                      # ViT-Tiny and ViT-Small, one thread and two
    python benchmarks/step.py --json               # one line of JSON per model
    python benchmarks/step.py --models vit_tiny_patch16_224 --threads 1 --samples 16 --repeats 2

Times are CPU seconds of this process, the best of several repetitions, so that other programs on the machine
disturb little. A round is two epochs of query, prompted forward and backward pass, then the prototypes.
The plain implementation computes a query in each of these passes. The fast one looks it up: that of the
deterministic view of an image is computed once in a run ("first round"). "No query cached" counts as many
queries as the plain one computes: the same work, pass for pass.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

# Threads that wait must sleep: by default they spin, which counts as CPU seconds. Read once, on import.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from benchmarks.client_round import EPOCHS, FastRound, PlainRound, random_backbone  # noqa: E402
from pip_flower.models.backbone import Backbone  # noqa: E402

MODELS = "vit_tiny_patch16_224,vit_small_patch16_224"
KINDS = {"fast": FastRound, "plain": PlainRound}


def cpu_seconds(function: Callable[[], Any]) -> float:
    """CPU time of one call, over all threads."""
    began = time.process_time()
    function()
    return time.process_time() - began


def gemm_flops(backbone: Backbone, repeats: int = 12) -> float:
    """Floating-point operations per CPU second of the machine's matrix product, at its best: a square one and
    those that the ViT's widest layer makes."""
    dim, tokens = backbone.dim, 16 * 197
    best = 0.0
    for rows, inner, columns in ((1024, 1024, 1024), (tokens, dim, 4 * dim), (tokens, 4 * dim, dim)):
        left, right = torch.randn(rows, inner), torch.randn(columns, inner)
        F.linear(left, right)
        seconds = min(cpu_seconds(partial(F.linear, left, right)) for _ in range(repeats))
        best = max(best, 2 * rows * inner * columns / seconds)
    return best


def round_flops(work: FastRound) -> float:
    """Operations of the matrix products that the fast path's round executes."""
    # torch has formulas for fused attention, but does not list the operators that a CPU runs.
    aten = torch.ops.aten
    formulas = {
        aten._scaled_dot_product_flash_attention_for_cpu: lambda *given, **_: sdpa_flop_count(*given[:3]),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda *given, **_: sdpa_backward_flop_count(*given[:4])
        ),
    }
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        trainer = work.start()
        for _ in range(EPOCHS):
            work.train(trainer)
        work.prototypes(trainer)
    return float(counter.get_total_flops())


def measure(model: str, threads: int, samples: int, batch: int, repeats: int) -> dict[str, float]:
    """Milliseconds per sample of both implementations, taken in turns."""
    torch.set_num_threads(threads)
    backbone = random_backbone(model)
    rounds = {name: kind(backbone, samples, batch) for name, kind in KINDS.items()}
    best: dict[str, float] = {}
    throughput = gemm_flops(backbone)
    for _ in range(repeats):
        for name, work in rounds.items():
            trainer = work.start()
            taken = {"train": cpu_seconds(partial(work.train, trainer))}
            taken["prototype"] = cpu_seconds(partial(work.prototypes, trainer))
            for part, seconds in taken.items():
                key = f"{name}_{part}_ms"
                best[key] = min(best.get(key, float("inf")), 1e3 * seconds / samples)
        query = 1e3 * cpu_seconds(rounds["fast"].compute_queries) / samples
        best["fast_query_ms"] = min(best.get("fast_query_ms", float("inf")), query)
        throughput = max(throughput, gemm_flops(backbone))
    return _derived(best, throughput, round_flops(rounds["fast"]) / samples)


def _derived(best: dict[str, float], throughput: float, flops: float) -> dict[str, float]:
    whole = {
        name: EPOCHS * best[f"{name}_train_ms"] + best[f"{name}_prototype_ms"] for name in ("fast", "plain")
    }
    return best | {
        "ratio_train": best["plain_train_ms"] / best["fast_train_ms"],
        "ratio_prototype": best["plain_prototype_ms"] / best["fast_prototype_ms"],
        "ratio_round": whole["plain"] / whole["fast"],
        "ratio_first_round": whole["plain"] / (whole["fast"] + best["fast_query_ms"]),
        "ratio_uncached": whole["plain"] / (whole["fast"] + (EPOCHS + 1) * best["fast_query_ms"]),
        "gemm_gflops": throughput / 1e9,
        "gemm_share": flops / (whole["fast"] / 1e3) / throughput,
    }


def peak_megabytes(model: str, kind: str, samples: int, batch: int) -> float:
    """Peak memory of a round beyond the process with its ViT and images, in a process of its own."""
    command = [sys.executable, str(Path(__file__)), "--peak-of", kind, "--models", model]
    command += ["--samples", str(samples), "--batch", str(batch)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def print_peak(model: str, kind: str, samples: int, batch: int) -> None:
    """The child's side of `peak_megabytes`."""
    torch.set_num_threads(1)
    work = KINDS[kind](random_backbone(model), samples, batch)
    trainer = work.start()
    before = _highest_kilobytes()
    work.train(trainer)
    work.prototypes(trainer)
    print((_highest_kilobytes() - before) / 1024)


def _highest_kilobytes() -> int:
    """Peak resident memory of this process; getrusage would count that of the parent, too."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0])


def growth(model: str, batch: int) -> dict[str, dict[str, float]]:
    """Milliseconds of the fast path on one thread as one quantity grows: training of all images (images),
    training of an image (prompt length), prediction of an image (tasks)."""
    torch.set_num_threads(1)
    backbone = random_backbone(model)
    found: dict[str, dict[str, float]] = {"images": {}, "prompt length": {}, "tasks": {}}
    for count in (8, 16, 32):
        found["images"][str(count)] = 1e3 * _epoch_seconds(FastRound(backbone, count, batch))
    for length in (5, 10, 20, 40):
        work = FastRound(backbone, 8, batch, prompt_length=length)
        found["prompt length"][str(length)] = 1e3 * _epoch_seconds(work) / 8
    for tasks in (1, 5, 10, 20):
        found["tasks"][str(tasks)] = 1e3 * _prediction_seconds(FastRound(backbone, 8, batch), tasks) / 8
    return found


def _epoch_seconds(work: FastRound) -> float:
    trainer = work.start()
    work.train(trainer)
    return min(cpu_seconds(lambda: work.train(trainer)) for _ in range(3))


@torch.inference_mode()
def _prediction_seconds(work: FastRound, tasks: int) -> float:
    work.start()
    state, generator = dict(work.work.state), torch.Generator().manual_seed(1)
    for task in range(1, tasks):
        state |= work.structure.start_task(task, state, generator)

    def predict() -> None:
        work.structure.forward(state, work.work.images, work.queries, task=None, tasks=tasks)

    predict()
    return min(cpu_seconds(predict) for _ in range(3))


def table_of(results: dict[int, dict[str, float]], model: str, batch: int) -> Table:
    """One row per part of the round and number of threads."""
    table = Table(title=f"{model}, batches of {batch}: CPU milliseconds per sample")
    for title in ("threads", "part", "plain", "fast", "ratio"):
        table.add_column(title, justify="left" if title == "part" else "right")
    for threads, r in results.items():
        for part in ("train", "prototype"):
            cells = (r[f"plain_{part}_ms"], r[f"fast_{part}_ms"], r[f"ratio_{part}"])
            table.add_row(str(threads), part, *(f"{cell:.1f}" for cell in cells[:2]), f"{cells[2]:.2f}")
        table.add_row(str(threads), "whole round, queries cached", "", "", f"{r['ratio_round']:.2f}")
        first = f"first round of an image (query {r['fast_query_ms']:.1f} ms)"
        table.add_row(str(threads), first, "", "", f"{r['ratio_first_round']:.2f}")
        table.add_row(str(threads), "whole round, no query cached", "", "", f"{r['ratio_uncached']:.2f}")
        share = f"matrix-multiply share of {r['gemm_gflops']:.0f} GFLOP per CPU second"
        table.add_row(str(threads), share, "", f"{100 * r['gemm_share']:.0f} %", "", end_section=True)
    return table


def report(model: str, options: argparse.Namespace, console: Console) -> None:
    """Measure one model and print what was found."""
    threads = [int(count) for count in options.threads.split(",")]
    results = {
        count: measure(model, count, options.samples, options.batch, options.repeats) for count in threads
    }
    peak = {kind: peak_megabytes(model, kind, options.samples, options.batch) for kind in KINDS}
    if options.json:
        first = results[threads[0]]
        by_threads = {str(count): result for count, result in results.items()}
        line = {"model": model, **first, "threads": by_threads, "peak_mb": peak}
        print(json.dumps(line | {"growth_ms": growth(model, options.batch)}), flush=True)
        return
    console.print(table_of(results, model, options.batch))
    console.print(f"peak memory of a round: plain {peak['plain']:.0f} MB, fast {peak['fast']:.0f} MB")
    for quantity, row in growth(model, options.batch).items():
        cells = ", ".join(f"{value}: {milliseconds:.1f} ms" for value, milliseconds in row.items())
        console.print(f"growth with {quantity}: {cells}", highlight=False)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default=MODELS, help="timm ViTs, separated by commas")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, separated by commas")
    parser.add_argument("--samples", type=int, default=32, help="images of the client")
    parser.add_argument("--batch", type=int, default=32, help="images of a training batch")
    parser.add_argument("--repeats", type=int, default=4, help="repetitions; the best counts")
    parser.add_argument("--json", action="store_true", help="one line of JSON per model")
    parser.add_argument("--peak-of", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak_of:
        print_peak(options.models, options.peak_of, options.samples, options.batch)
        return
    for model in options.models.split(","):
        report(model, options, Console(soft_wrap=True))


if __name__ == "__main__":
    main()
