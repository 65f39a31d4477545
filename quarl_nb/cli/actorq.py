"""The command `actorq`: one run of the actor-learner loop from a shell."""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quarl_nb.cli.arguments import add_settings, parse_settings, place
from quarl_nb.errors import INTERRUPTED, QuarlError, check_choice, same_type
from quarl_nb.processes import holding_interrupts
from quarl_nb.writing import folder_to_fill, make_file_writable, write_atomically

if TYPE_CHECKING:
    from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

    from quarl_nb.actorq import ActorQ, Result
    from quarl_nb.energy import EnergyMeter

SETTINGS = ("precision", "communication", "runtime", "n_actors", "envs_per_actor", "pull_period",
            "samples_per_insert", "ez_greedy", "seed")  # fmt: skip
RECORDED = ("env", "algo", "engine", "steps", "width", "device", "autocast", *SETTINGS)
# Of an environment, or an algorithm in it, that is no task of the studies: the paper's.
DEFAULTS = {"steps": 40_000, "width": 2048, "pull_period": 1000, "samples_per_insert": 16.0}
EPISODES_TOLD = 10


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    actorq = command(
        actorq_command, "--env dm:cartpole-balance --algo d4pg --precision int8 --to my_policy"
    )
    actorq.add_argument("--env", required=True, metavar="ID", help="CartPole-v1, dm:walker-stand")
    actorq.add_argument("--algo", required=True, help="d4pg, ddpg, dqn, sac or td3")
    actorq.add_argument("--precision", default="int8", help="of the actors (default: int8): fp32, "
                        "int8 or int4, with --runtime torch fp32, fp16 or bf16")
    actorq.add_argument("--communication", metavar="PRECISION",
                        help="of weights on the wire: fp32, fp16, bf16, int8 or affine2 to "
                             "affine16 (default: the actors' own)")
    actorq.add_argument("--runtime", default="onnxruntime", help="onnxruntime or torch")
    actorq.add_argument("--engine", default="process", help="process, serial or ray")
    actorq.add_argument("--n-actors", type=int, default=4, metavar="N", help="default: 4")
    actorq.add_argument("--envs-per-actor", type=int, default=1, metavar="N", help="default: 1")
    for name, kind, text in (
        ("steps", int, "of environments, in whole messages"), ("width", int, "of the policy"),
        ("pull-period", int, "steps of an actor between two pulls"),
        ("samples-per-insert", float, "how often each transition is learned from"),
    ):  # fmt: skip
        default = DEFAULTS[name.replace("-", "_")]
        actorq.add_argument(f"--{name}", type=kind, metavar="N",
                            help=f"{text} (default: as the study has this task, else {default:g})")
    actorq.add_argument("--ez-greedy", action=argparse.BooleanOptionalAction, help="random actions "
                        "of DQN go on for a while (default: as the study has this task, else not)")
    actorq.add_argument("--device", default="cpu", help="of the learner: cpu or cuda")
    actorq.add_argument("--autocast", default="", help="bf16: of a D4PG or DQN learner")
    add_settings(actorq, "an option of the algorithm, as v_max=1000 (an unknown one lists them; "
                         "default: as the study has this task, else its own; repeatable)")
    actorq.add_argument("--seed", type=int, default=0, help="default: 0")
    actorq.add_argument("--checkpoint", type=place, metavar="FILE",
                        help="written every minute, and gone on from where there is one")
    actorq.add_argument("--to", type=place, metavar="DIR",
                        help="save the policy there, in place of one that is there")
    actorq.add_argument("--record", type=place, metavar="FILE",
                        help="write what was measured there, as JSON: returns, clocks, energy "
                             "(none of --engine ray: the meter sees no cluster)")


def actorq_command(options: argparse.Namespace) -> int:
    """Train with quantized actors (ActorQ); --to saves the policy, --record what was measured."""
    from quarl_nb import provenance
    from quarl_nb.actorq import ActorQ, Saving
    from quarl_nb.actorq.algorithms import make_algorithm
    from quarl_nb.energy import EnergyMeter
    from quarl_nb.studies.tasks import TASKS, split_options

    # Before the learner is made: its country may be unknown.
    meter = EnergyMeter(gpus=options.device != "cpu")
    # Now, since by the end the code may be another.
    origin = provenance.collect() if options.record else {}
    task = TASKS.get(options.env)
    task = task.on(options.device) if task and task.algo == options.algo else None
    for name, default in DEFAULTS.items():
        if getattr(options, name) is None:
            setattr(options, name, getattr(task, name, default))
    of_algorithm, of_actors = split_options(task.options if task else {})
    options.set = of_algorithm | _options_set(options)
    if options.ez_greedy is None:
        options.ez_greedy = of_actors.get("ez_greedy", False)
    learner = make_algorithm(
        options.algo, options.env, options.width, options.seed, options.device, options.autocast,
        **options.set,
    )  # fmt: skip
    settings: dict[str, Any] = {name: getattr(options, name) for name in SETTINGS}
    saving = Saving(checkpoint=options.checkpoint)
    actorq = ActorQ(learner, options.env, options.engine, saving, **settings)
    _check_apart(options)
    with folder_to_fill(options.to):
        if options.record:
            make_file_writable(options.record)
        return _learn(actorq, meter, origin, options)


def _options_set(options: argparse.Namespace) -> dict[str, Any]:
    """The algorithm's options that `--set` sets, each of the type that it has by default."""
    from quarl_nb.actorq.algorithms import RATES, options_of

    known = options_of(options.algo)
    given = parse_settings(options.set, known)
    for name, value in given.items():
        if name in RECORDED:
            raise QuarlError(f"--set {name}: the command has --{name.replace('_', '-')} for that")
        check_choice(f"option of {options.algo}", name, known)
        schedule = name in RATES and isinstance(value, str)  # "lin_3e-4"
        if not schedule and not isinstance(known[name], str):  # SAC's ent_coef: "auto", or a number
            given[name] = same_type(f"option {name}", value, known[name])
    return given


def _check_apart(options: argparse.Namespace) -> None:
    """Refuse a file that one of the options would write over another's."""
    from quarl_nb.rl.policies import DESCRIPTION, TENSORS

    policy = [options.to / name for name in (DESCRIPTION, TENSORS)] if options.to else []
    files = [path for path in (options.record, options.checkpoint, *policy) if path]
    places = [os.path.realpath(path) for path in files]
    for i, path in enumerate(files):
        if places[i] in places[:i]:
            raise QuarlError(f"'{path}' is named twice: --record, --checkpoint and --to write "
                             "files of their own")  # fmt: skip


def _learn(
    actorq: ActorQ, meter: EnergyMeter, origin: dict[str, Any], options: argparse.Namespace
) -> int:
    """Train, tell, save: the exit status."""
    learner = actorq.algorithm
    try:
        with meter:
            actorq.learn(options.steps)
    except QuarlError:
        # What was done until then is kept; the error itself is the last line, Ctrl-C or not.
        if actorq.result.went_on:
            # Of a GPU that failed every tensor raises a RuntimeError.
            with suppress(KeyboardInterrupt, RuntimeError), holding_interrupts():
                _keep(actorq, meter, origin, options, failed=True)
        raise
    result = actorq.result
    with holding_interrupts():  # else Ctrl-C would lose what is yet to be saved
        if result.went_on:
            _keep(actorq, meter, origin, options)
        elif result.stopped == "interrupted":
            print("interrupted before the first step: nothing to save")
        else:
            print(f"nothing was left to do: {result.steps:,} steps were made before")
            if options.to and not _lies_in(options.to, learner):
                print(*_save_policy(learner, result, options), sep="\n")
    return INTERRUPTED if result.stopped == "interrupted" else 0


def _lies_in(folder: Path, learner: OffPolicyAlgorithm) -> bool:
    """Whether the policy in `folder` is the learner's."""
    from quarl_nb.rl.policies import digest_of, load_digest
    from quarl_nb.rl.sb3.convert import policy_from_model

    try:
        return load_digest(folder) == digest_of(policy_from_model(learner))
    except QuarlError:  # none that can be read
        return False


def _keep(
    actorq: ActorQ, meter: EnergyMeter, origin: dict[str, Any], options: argparse.Namespace,
    failed: bool = False,
) -> None:  # fmt: skip
    """Save record and policy, each whatever becomes of the other, and only then tell of them.

    Who reads what is told may be gone, and a failed run's policy may hold NaN: that is not saved.
    """
    from quarl_nb.rl.checkpoint import has_finite_weights

    learner, result, saved = actorq.algorithm, actorq.result, list[str]()
    try:
        saved += _write_record(result, meter, origin, options)
    finally:
        try:
            if not failed or has_finite_weights(learner):
                saved += _save_policy(learner, result, options)
        finally:
            _print_result(result)
            print(*saved, sep="\n", end="\n" if saved else "")


def _print_result(result: Result) -> None:
    busy = {name: f"{seconds:.1f}" for name, seconds in result.actor_s.items() if seconds >= 0.05}
    print(f"{result.steps:,} steps and {result.updates:,} updates in {result.wall_s:.1f} s")
    if not result.updates:
        print("nothing was learned: the warm-up and the first batch take more steps")
    told = min(len(result.episodes), EPISODES_TOLD)
    print(f"mean return of the last {told} episodes: {result.recent_return(told):.1f}" if told
          else "no episode ended")
    if busy:
        print(f"actors' seconds: {', '.join(f'{k} {v}' for k, v in busy.items())}")
    print(f"{result.pulls} pulls of {result.payload_bytes:,} bytes, {result.restarts} restarts")


def _write_record(
    result: Result, meter: EnergyMeter, origin: dict[str, Any], options: argparse.Namespace
) -> list[str]:
    """Write the record, if one is asked for: what there is to tell of it."""
    from quarl_nb.record import to_json

    if options.record is None:
        return []
    # Of Ray's actors the meter knows nothing: what it read would pass for the whole run's.
    energy = {} if options.engine == "ray" else meter.as_record()
    settings = {name: getattr(options, name) for name in RECORDED} | {"options": options.set}
    record = {"settings": settings, "measured": result.as_measured(), "source": "measured",
              "energy": energy, "provenance": origin}  # fmt: skip
    told = [f"record: {options.record}"]
    if result.resumed_at and options.record.exists():
        # What was measured before the run was resumed is in no other place.
        earlier = _unused(options.record, f"until-{result.resumed_at}")
        write_atomically(earlier, options.record.read_bytes())
        told.insert(0, f"record until then: {earlier}")
    write_atomically(options.record, (json.dumps(to_json(record), indent=1) + "\n").encode())
    return told


def _unused(path: Path, label: str) -> Path:
    """`run.json` as `run.label.json`, or `run.label-2.json` where that exists, and so on."""
    for n in itertools.count(1):
        found = path.with_name(f"{path.stem}.{label}{f'-{n}' if n > 1 else ''}{path.suffix}")
        if not found.exists():
            break
    return found


def _save_policy(
    learner: OffPolicyAlgorithm, result: Result, options: argparse.Namespace
) -> list[str]:
    """Save the policy, if a folder is named: what there is to tell of it."""
    from quarl_nb.rl.policies import save_policy
    from quarl_nb.rl.sb3.convert import policy_from_model

    if options.to is None:
        return []
    net = policy_from_model(learner, env_id=options.env)
    trained = {"trained_with": "quarl-nb actorq", "timesteps": result.steps}
    if result.resumed_at:  # the steps before may have been made by other settings
        trained["resumed_at"] = result.resumed_at
    if result.steps > result.resumed_at:  # else by settings that nobody knows
        trained |= {name: getattr(options, name) for name in SETTINGS}
    return [f"policy: {save_policy(net, options.to, trained)}"]
