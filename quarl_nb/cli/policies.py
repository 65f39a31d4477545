"""Commands on policies: train, evaluate, quantize."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from quarl_nb.cli.arguments import named, place
from quarl_nb.errors import QuarlError, check_choice, check_counts, check_episode_seeds
from quarl_nb.paths import entries, policies_folder
from quarl_nb.processor import usable_cores
from quarl_nb.writing import folder_to_fill, make_file_writable, write_atomically


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    train = command(train_command, "--missing --hours 2")
    train.add_argument("names", nargs="*", metavar="NAME", help="policies, <algo>-<environment>")
    train.add_argument("--missing", action="store_true", help="every policy not trained yet")
    train.add_argument("--retrain", action="store_true",
                       help="also named policies that are trained (delete runs/NAME to begin anew)")
    train.add_argument("--hours", type=float, help="stop in time; the same command goes on")
    train.add_argument("--workers", type=int, metavar="N",
                       help="how many at once (default: the cores there are; a large network "
                            "alone takes two while that is faster, unless OMP_NUM_THREADS=1)")
    train.add_argument("--list", action="store_true",
                       help="list the policies, or those named, and stop (with --missing: those of "
                            "them that are not trained)")

    evaluate = command(evaluate_command, "ppo-CartPole-v1 --precision int8 --episodes 20")
    quantize = command(quantize_command, "my_sb3_model.zip --bits 8 --env CartPole-v1")
    for reads_policy in (evaluate, quantize):
        reads_policy.add_argument("policy", type=named,
                                  help="an SB3 zip, a policy's folder or name, hub:...")
        reads_policy.add_argument("--env", type=named, metavar="ID", help="default: what the "
                                  "policy says; one of your own: MODULE:ID")
        reads_policy.add_argument("--vecnormalize", type=place, metavar="FILE",
                                  help="vecnormalize.pkl of an SB3 zip (read, never executed)")
        reads_policy.add_argument("--activation", metavar="NAME",
                                  help="of the hidden layers of an SB3 zip that does not tell it: "
                                       "tanh, relu, ...")
        reads_policy.add_argument("--ranges", default="minmax",
                                  help="minmax, per_channel, percentile or mse")
    evaluate.add_argument("--episodes", type=int, default=20, help="default: 20")
    evaluate.add_argument("--precision", default="fp32", help="fp32, fp16, int8, affine4, ...")
    evaluate.add_argument("--seed", type=int, default=0, help="of the first episode (default: 0)")
    quantize.add_argument("--episodes", type=int,
                          help="of each precision (default: 100, on Atari 30)")
    quantize.add_argument("--bits", type=int, nargs="+", default=[8], help="widths (default: 8)")
    quantize.add_argument("--out", type=place, metavar="DIR", help="also write the table as CSV")


def train_command(options: argparse.Namespace) -> int:
    """Train policies with stable-baselines3, going on where an earlier call stopped."""
    from quarl_nb.cli.training import list_policies, train_all
    from quarl_nb.rl.zoo import wanted_policies

    if options.list:
        list_policies(options.names, options.missing)
        return 0
    if options.hours is not None and not 0 < options.hours < math.inf:
        raise QuarlError(f"--hours must be finite and above 0, not {options.hours}")
    if options.workers is not None:
        check_counts(1, **{"--workers": options.workers})
    names = wanted_policies(options.names, options.missing, options.retrain)
    workers = options.workers or usable_cores()
    return train_all(names, options.hours, min(workers, len(names)))


def evaluate_command(options: argparse.Namespace) -> int:
    """Run a policy for some episodes, in any precision (simulated)."""
    from quarl_nb.inference import fast_policy
    from quarl_nb.quant import parse_precision
    from quarl_nb.rl.evaluate import evaluate
    from quarl_nb.rl.ptq import quantize_policy
    from quarl_nb.studies.policies import load_acting

    precision = parse_precision(options.precision, options.ranges)
    check_episode_seeds(options.seed, options.episodes)
    subject = load_acting(policy_source(options.policy), options.env,
                          options.vecnormalize, options.activation)
    env_id, make = subject.env_id, subject.make
    quantized = quantize_policy(subject.net, precision, env_id, make)
    seeds = range(options.seed, options.seed + options.episodes)
    result = evaluate(fast_policy(quantized), env_id, seeds, make=make)
    share = result.random_actions
    drawn = f" with {share:.0%} of actions at random" if share else ""
    speed = sum(result.lengths) / result.wall_s
    print(f"{options.policy} in {env_id}, {options.precision}: return {result.mean:.2f} "
          f"(std {result.std:.2f}, min {min(result.returns):.2f}, max {max(result.returns):.2f}) "
          f"over {options.episodes} episodes{drawn}, {speed:.0f} steps/s")
    return 0


def quantize_command(options: argparse.Namespace) -> int:
    """Show what each precision costs a policy of your own: return, loss and bytes."""
    from quarl_nb.quantize import quantize_table

    with folder_to_fill(options.out):
        if options.out:
            make_file_writable(options.out / "quantize.csv")
        table = quantize_table(
            policy_source(options.policy), options.env, options.bits,
            options.episodes, options.ranges, options.vecnormalize, options.activation,
        )
        try:
            if options.out:  # before it is told: who reads that may be gone
                write_atomically(options.out / "quantize.csv", table.to_csv(index=False).encode())
        finally:  # its disk may be full
            print(table.to_string(index=False, float_format=lambda value: f"{value:.4g}"))
    if table["loss"].isna().any():
        print("loss is undefined: the mean fp32 return is 0")
    return 0


def policy_source(text: str) -> str:
    """A policy of the suite by its name, a file, a folder or another source as it is.

    Raises:
        QuarlError: it is none of these.
    """
    folder = policies_folder()
    if text.startswith(("hub:", "public/")) or text.endswith(".zip"):
        return text
    if Path(text).exists():
        return text
    if Path(f"{text}.zip").exists():
        raise QuarlError(f"'{text}' is no policy; did you mean '{text}.zip'?")
    names = [path.name for path in entries(folder, "*") if path.is_dir()]
    check_choice("policy", text, ["an SB3 zip", "a policy's folder", "hub:owner/name", *names])
    return str(folder / text)
