"""Uniform, size-proportional and bandit mixing at equal tokens: held-out bits per byte, mean over sources.

    python benchmarks/firehose_policies.py --corpus DIR --engine cuda --steps 4000 --json results.json

DIR is what firehose_data.py leaves, or any project folder with one experiment whose data stages have run and which has
the bandit's section. A model is trained from scratch for each policy and seed, by the engine alone: no checkpoints, no
samples. A policy may change settings of the bandit: `bandit:background=0.1:focus_sources=[1,4]`. What `--leave-out`
names is trained on and printed, and counts in no mean: text that nobody can learn says nothing about a mix.
"""

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from andrea.batches import Batches
from andrea.engine import Engine, open_engine
from andrea.engine.layout import initial_weights
from andrea.evaluate import HeldOut, evaluate, hold_out
from andrea.experiment import SUFFIX, Experiment, load
from andrea.files import write_json
from andrea.firehose import open_firehose
from andrea.schedule import lrs
from andrea.training.data import TrainingData, open_data

# model, rows, learning rate and the deviation of first weights
SIZES: dict[str, tuple[dict[str, int], int, float, float]] = {
    "tiny": ({"d_model": 128, "n_heads": 4, "n_layers": 2, "context": 256}, 4, 3e-3, 0.09),
    "small": ({"d_model": 256, "n_heads": 8, "n_layers": 4, "context": 512}, 8, 1.5e-3, 0.04),
    "12m": ({"d_model": 384, "n_heads": 12, "n_layers": 6, "context": 1024}, 8, 6e-4, 0.02),
}
QUARTERS = 4  # held-out text is read at the end of each
Row = dict[str, Any]


def variant(base: Experiment, args: argparse.Namespace, policy: str, seed: int, tokens: dict[str, int]) -> Experiment:
    """The base experiment at the wanted size, under one policy: weights by tokens, or all equal."""
    value = base.to_json()
    model, rows, lr, std = SIZES[args.model]
    stds = dict.fromkeys(("embedding_std", "position_std", "matrix_std", "head_std"), std)
    value["model"] |= model | {"init": value["model"]["init"] | stds}
    value["train"] |= {"engine": args.engine, "precision": args.precision, "seed": seed, "lr": lr, "batch_size": rows}
    value["train"] |= {"steps": args.steps, "horizon": args.steps, "warmup_steps": args.steps // 20, "microbatches": 1}
    kind, *changes = policy.split(":")
    most = max(tokens.values())
    weights = {name: count / most if kind == "size" else 1.0 for name, count in tokens.items()}
    value["firehose"] |= {"policy": "bandit" if kind == "bandit" else "fixed", "weights": weights}
    for change in changes:
        (*within, key), text = change.split("=")[0].split("."), change.split("=")[1]
        bandit = value["firehose"]["bandit"]
        (bandit["reward"] if within == ["reward"] else bandit)[key] = json.loads(text)
    return Experiment.from_json(value, base.path)


def run(engine: Engine, e: Experiment, data: TrainingData, held: dict[str, HeldOut]) -> Row:
    """Train one model; its held-out rates at the end of each quarter, and what it has read."""
    train, began = e.train, time.perf_counter()
    batches = Batches(data.train, e.model.context, train.batch_size, train.seed)
    firehose = open_firehose(e, batches, polished=False)
    weights = initial_weights(e.shape, e.model.init, train.seed)
    engine.load(weights, np.zeros_like(weights), np.zeros_like(weights), 0)
    pulls: Counter[str] = Counter()
    step = number = 0
    curve: list[dict[str, float]] = []
    while step < train.steps:
        window = firehose.plan(number, step).until(train.steps)
        rates = lrs(step, len(window.sources), train)
        losses, norms = engine.run(batches.draw_steps(window.sources, pulls), rates)
        assert np.isfinite(losses + norms).all(), f"the loss went astray at step {step}"
        firehose.credit(window, losses.tolist())
        pulls.update(window.sources)
        step, number = step + len(window.sources), number + 1
        while step * QUARTERS >= train.steps * (len(curve) + 1):
            found = evaluate(engine, held, train.batch_size, lambda: False)
            assert found is not None
            curve.append({source: row["bits_per_byte"] for source, row in found.items()})
    epochs = {source: batches.epochs(source, pulls[source]) for source in e.sources}
    return {"curve": curve, "pulls": dict(pulls), "epochs": epochs, "seconds": time.perf_counter() - began}


def mean(rates: dict[str, float], left_out: list[str]) -> float:
    return statistics.fmean(rate for source, rate in rates.items() if source not in left_out)


def cell(values: list[float], digits: int = 3) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.{digits}f} ± {spread:.{digits}f}"


def table(results: dict[str, list[Row]], tokens: dict[str, int], left_out: list[str]) -> str:
    """Rates, shares of the steps and epochs by source; the course of the mean; differences seed by seed."""
    head = [f"| source | tokens | {' | '.join(results)} |", "|---|--:|" + "--:|" * len(results)]
    lines = ["held-out bits per byte, mean ± standard deviation over the seeds:", *head]
    for source, count in tokens.items():
        cells = [cell([row["curve"][-1][source] for row in rows]) for rows in results.values()]
        lines.append(f"| {source} | {count:,} | {' | '.join(cells)} |")
    for quarter in reversed(range(QUARTERS)):
        cells = [cell([mean(row["curve"][quarter], left_out) for row in rows]) for rows in results.values()]
        without = f" without {', '.join(left_out)}" if left_out else ""
        lines.append(f"| mean{without}, after {quarter + 1}/{QUARTERS} of the steps | | {' | '.join(cells)} |")
    lines += ["", "share of the steps, and epochs:", *head]
    for source, count in tokens.items():
        shares = [
            f"{statistics.fmean(row['pulls'].get(source, 0) / sum(row['pulls'].values()) for row in rows):.3f}, "
            f"{statistics.fmean(row['epochs'][source] for row in rows):.1f}"
            for rows in results.values()
        ]
        lines.append(f"| {source} | {count:,} | {' | '.join(shares)} |")
    first, *others = results
    for other in others:
        pairs = zip(results[other], results[first], strict=True)
        differences = [mean(a["curve"][-1], left_out) - mean(b["curve"][-1], left_out) for a, b in pairs]
        lines.append(f"{other} - {first}, seed by seed: {cell(differences, 4)}  {differences}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--engine", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), help="bf16 on the GPU, fp32 on the CPU")
    parser.add_argument("--model", choices=SIZES, default="12m")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--policies", nargs="+", default=["uniform", "size", "bandit"])
    parser.add_argument("--leave-out", nargs="*", default=["static"])
    parser.add_argument("--blocks", type=int, default=64, help="of held-out text a source")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write everything there, after every run")
    args = parser.parse_args(arguments)
    args.precision = args.precision or ("bf16" if args.engine == "cuda" else "fp32")
    found = sorted((args.corpus / "experiments").glob(f"*{SUFFIX}.json"))
    if len(found) != 1:
        parser.error(f"{args.corpus}/experiments must hold one experiment, not {len(found)}")
    base = load(found[0])
    data = open_data(base, args.corpus)
    tokens = {source: len(data.train[source].tokens) for source in base.sources}
    first = variant(base, args, "uniform", args.seeds[0], tokens)
    lengths, context = data.tokenizer.token_bytes, first.model.context
    held = {source: hold_out(source, t, context, args.blocks, lengths) for source, t in data.heldout.items()}
    engine = open_engine(first, args.threads)
    print(engine.describe(), flush=True)
    results: dict[str, list[Row]] = {policy: [] for policy in args.policies}
    for seed in args.seeds:
        for policy, rows in results.items():
            row = run(engine, variant(base, args, policy, seed, tokens), data, held)
            rows.append(row | {"seed": seed})
            score = mean(row["curve"][-1], args.leave_out)
            each = 1e3 * row["seconds"] / args.steps
            print(
                f"seed {seed} {policy}: {score:.4f} bits per byte, {row['seconds']:.1f} s, {each:.2f} ms a step",
                flush=True,
            )
            if args.json:
                facts = {"engine": engine.describe(), "tokens": tokens, "left_out": args.leave_out, "steps": args.steps}
                write_json(args.json, facts | {"model": args.model, "results": results})
    print(table(results, tokens, args.leave_out))


if __name__ == "__main__":
    main()
