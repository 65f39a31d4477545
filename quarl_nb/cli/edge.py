"""Commands on boards: export a policy to one, import what it measured."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from quarl_nb.errors import QuarlError


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    export = command(export_command, "ppo-CartPole-v1 --precision int8 --to exported/cartpole")
    export.add_argument("policy", help="an SB3 zip, a policy's folder or name, hub:...")
    export.add_argument("--precision", default="int8", help="fp32, int8 or int4 (default: int8)")
    export.add_argument("--to", type=Path, required=True, metavar="DIR", help="folder to write")
    export.add_argument("--ranges", default="minmax", help="minmax, per_channel, percentile or mse")
    export.add_argument("--env", metavar="ID", help="default: what the policy says")
    export.add_argument("--observations", type=Path, metavar="FILE",
                        help=".npy of raw observations (default: recorded in the environment)")
    export.add_argument("--vecnormalize", type=Path, metavar="FILE",
                        help="vecnormalize.pkl of an SB3 zip (read, never executed)")
    export.add_argument("--activation", metavar="NAME",
                        help="of the hidden layers of an SB3 zip that does not tell it: tanh, ...")

    edge = command(edge_command, "import exported/cartpole/result.json")
    edge.add_argument("action", choices=["import"], help="put a board's result into the records")
    edge.add_argument("result", type=Path, help="result.json, as benchmark.py wrote it")
    edge.add_argument("--records", type=Path, help="folder (default: data/records)")


def export_command(options: argparse.Namespace) -> int:
    """Write a folder that runs a policy on a board: ONNX, plain C and a benchmark."""
    import numpy as np

    from quarl_nb.cli.policies import policy_source
    from quarl_nb.edge.export import export_policy, record_observations
    from quarl_nb.quantize import check_fits
    from quarl_nb.rl.envs import named_by_file
    from quarl_nb.rl.observations import CALIBRATION_STEPS
    from quarl_nb.rl.policies import load_policy

    net = load_policy(policy_source(options.policy), env_id=options.env,
                      vecnormalize=options.vecnormalize, activation=options.activation)
    env_id = options.env or net.spec.env_id
    if options.observations is not None:
        if options.env:
            check_fits(net, options.env)
        try:
            with options.observations.open("rb") as file:
                obs = np.lib.format.read_array(file, allow_pickle=False)
        except OSError as error:
            raise QuarlError(f"cannot read '{options.observations}': {error.strerror}") from error
        except Exception as error:  # numpy parses the header as Python, which fails in many ways
            raise QuarlError(f"'{options.observations}' is not a .npy of observations") from error
    elif env_id is None:
        raise QuarlError(
            f"{options.policy!r} does not say where it acts: give --env or --observations"
        )
    else:
        if not options.env:
            named_by_file(env_id)
        check_fits(net, env_id)
        obs = record_observations(net, env_id, CALIBRATION_STEPS)
    name = os.path.basename(os.path.abspath(options.policy))  # "." has one, too
    folder = export_policy(net, options.precision, options.to, obs,
                           name=name, ranges=options.ranges, env_id=env_id)
    print(f"{folder}: on the board, `make` and then `python3 benchmark.py`")
    return 0


def edge_command(options: argparse.Namespace) -> int:
    """Put what a board measured into the records."""
    from quarl_nb.edge.result import import_result
    from quarl_nb.store import ResultStore

    for path in import_result(options.result, ResultStore(options.records)):
        print(path)
    print("notebook 10 shows it beside the others")
    return 0
