"""Commands on boards: export a policy to one, import what it measured."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from quarl_nb.cli.arguments import named, place
from quarl_nb.cli.policies import policy_source
from quarl_nb.errors import QuarlError
from quarl_nb.writing import folder_to_fill

if TYPE_CHECKING:
    import numpy as np


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    export = command(export_command, "ppo-CartPole-v1 --precision int8 --to exported/cartpole")
    export.add_argument("policy", type=named, help="an SB3 zip, a policy's folder or name, hub:... "
                                                   "(MLPs of relu or tanh)")
    export.add_argument("--precision", default="int8", help="fp32, int8 or int4 (default: int8)")
    export.add_argument("--to", type=place, required=True, metavar="DIR", help="folder to write")
    export.add_argument("--ranges", default="minmax", help="minmax, per_channel, percentile or mse")
    export.add_argument("--env", type=named, metavar="ID", help="default: what the policy says")
    export.add_argument("--observations", type=place, metavar="FILE",
                        help=".npy of raw observations (default: recorded in the environment)")
    export.add_argument("--vecnormalize", type=place, metavar="FILE",
                        help="vecnormalize.pkl of an SB3 zip (read, never executed)")
    export.add_argument("--activation", metavar="NAME",
                        help="of the hidden layers of an SB3 zip that does not tell it: tanh, ...")

    edge = command(edge_command, "import exported/cartpole/result.json")
    edge.add_argument("action", choices=["import"], help="put a board's result into the records")
    edge.add_argument("result", type=place, help="result.json, as benchmark.py wrote it")
    edge.add_argument("--records", type=place, help="folder (default: data/records)")


def export_command(options: argparse.Namespace) -> int:
    """Write a folder that runs a policy on a board: ONNX, plain C and a benchmark."""
    from quarl_nb.edge.export import check_exportable, export_policy
    from quarl_nb.rl.fits import check_fits
    from quarl_nb.rl.observations import CALIBRATION_STEPS, collect_observations
    from quarl_nb.rl.policies import load_policy
    from quarl_nb.studies.policies import load_acting

    source = policy_source(options.policy)
    with folder_to_fill(options.to):  # or it would be told after calibration
        if options.observations is None:
            subject = load_acting(source, options.env, options.vecnormalize, options.activation)
            net = subject.net
            check_exportable(net, options.precision, options.ranges)
            obs = collect_observations(net, subject.env_id, CALIBRATION_STEPS, seed=0,
                                       make=subject.make)
        else:  # no environment is needed
            net = load_policy(source, env_id=options.env, vecnormalize=options.vecnormalize,
                              activation=options.activation)  # fmt: skip
            if options.env:
                check_fits(net, options.env)
            obs = _read_observations(options.observations)
        name = os.path.basename(os.path.abspath(options.policy))  # "." has one, too
        folder = export_policy(net, options.precision, options.to, obs,
                               name=name, ranges=options.ranges, env_id=options.env)  # fmt: skip
    print(f"{folder}: on the board, `make` and then `python3 benchmark.py`")
    return 0


def _read_observations(path: Path) -> np.ndarray:
    import numpy as np

    try:
        with path.open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise QuarlError(f"cannot read '{path}': {error.strerror}") from error
    except Exception as error:  # numpy parses the header as Python, which fails in many ways
        raise QuarlError(f"'{path}' is not a .npy of observations") from error


def edge_command(options: argparse.Namespace) -> int:
    """Put what a board measured into the records."""
    from quarl_nb.edge.result import import_result
    from quarl_nb.store import ResultStore

    for path in import_result(options.result, ResultStore(options.records)):
        print(path)
    folder = f" --set records={shlex.quote(str(options.records))}" if options.records else ""
    print(f"to see it: quarl-nb render 10_pi_deployment --out my_notebooks{folder}")
    return 0
