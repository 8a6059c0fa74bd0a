"""Uniform, size-proportional and bandit mixing at equal tokens: held-out bits per byte, mean over sources.

    python benchmarks/firehose_policies.py ANDREA-MINE --seeds 2 3 4

takes an experiment with the bandit's section whose data stages have run, trains it under the three policies with each
seed, one run after the other, and prints a table. Tokenizer and tokens are shared; runs that are finished are not done
again. The experiments and runs are named ANDREA-MINE-UNIFORM-2 and so on. Run it in a project folder of its own.
"""

import argparse
import copy
import json
import statistics
from pathlib import Path
from typing import Any

from andrea.cli import find_experiment
from andrea.experiment import SUFFIX, load
from andrea.files import read_json, write_json
from andrea.proxy import train

POLICIES = ("SIZE", "UNIFORM", "BANDIT")


def variant(base: dict[str, Any], policy: str, seed: int, tokens: dict[str, int]) -> dict[str, Any]:
    """The experiment under one policy: weights by tokens, or all equal."""
    value = copy.deepcopy(base)
    value["name"] = f"{base['name']}-{policy}-{seed}"
    value["train"]["seed"] = seed
    most = max(tokens.values())
    weights = {name: count / most if policy == "SIZE" else 1.0 for name, count in tokens.items()}
    value["firehose"] |= {"policy": "bandit" if policy == "BANDIT" else "fixed", "weights": weights}
    return value


def run(value: dict[str, Any], data: str, threads: int) -> dict[str, float]:
    """Train one variant on the data of the experiment `data`; bits per byte by source, and their mean."""
    name = value["name"]
    path = Path("experiments") / f"{name}{SUFFIX}.json"
    write_json(path, value)
    shared = Path("data") / name
    if not shared.exists():
        shared.symlink_to(data)
    result = Path("runs") / name / "archive" / str(value["train"]["steps"]) / "final_evaluation.json"
    if not result.exists():
        assert train(path, root=Path(), threads=threads) == 0, f"{name} was stopped"
    found = read_json(result, "the final evaluation")
    rates = {source: row["model"]["bits_per_byte"] for source, row in found["sources"].items()}
    return rates | {"mean": found["mean"]["model"]["bits_per_byte"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    base = load(find_experiment(args.experiment)).to_json()
    manifest = json.loads((Path("data") / base["name"] / "tokens" / "manifest.json").read_text())
    tokens = {source: manifest["sources"][source]["train"]["tokens"] for source in base["sources"]}
    results: dict[str, list[dict[str, float]]] = {policy: [] for policy in POLICIES}
    for seed in args.seeds:
        for policy in POLICIES:
            results[policy].append(run(variant(base, policy, seed, tokens), base["name"], args.threads))
    print("| source | tokens |", " | ".join(POLICIES), "|")
    for source in [*base["sources"], "mean"]:
        cells = []
        for policy in POLICIES:
            rates = [rates[source] for rates in results[policy]]
            spread = statistics.stdev(rates) if len(rates) > 1 else 0.0
            cells.append(f"{statistics.mean(rates):.3f} ± {spread:.3f}")
        print(f"| {source} | {tokens.get(source, sum(tokens.values())):,} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
