"""Where stable-baselines3 and the RL Zoo keep the normalization statistics of a model's zip."""

from __future__ import annotations

import re
from pathlib import Path

from quarl_nb.errors import QuarlError

STATISTICS = ("vecnormalize.pkl", "vec_normalize.pkl")
SETTINGS = "config.yml"
YAML_FALSE = ("false", "no", "off", "null", "~", "0")
ANY_STATISTICS = "*vec*normalize*.pkl"


def find_normalization(path: Path) -> Path | None:
    """The file of statistics that belongs to a zip; None where it acts on raw observations.

    Raises:
        QuarlError: the zip was trained on normalized observations, by its settings or by what
            lies beside it, and its statistics are not found.
    """
    checkpoint = re.fullmatch(r"(.+)_(\d+_steps)", path.stem)
    candidates = []
    if checkpoint:  # SB3's `CheckpointCallback`: rl_model_200_steps.zip
        candidates.append(path.with_name(f"{checkpoint[1]}_vecnormalize_{checkpoint[2]}.pkl"))
    # The RL Zoo: CartPole-v1_1/CartPole-v1.zip and CartPole-v1_1/CartPole-v1/vecnormalize.pkl.
    folders = [path.with_suffix(""), path.parent]
    if checkpoint or path.stem == "best_model":
        folders += _settings_of_run(path.absolute().parent)
    candidates += [folder / name for folder in folders for name in STATISTICS]
    found = next((file for file in candidates if file.is_file()), None)
    if found is not None:
        return found
    settings = next((file for folder in folders if _normalizes(file := folder / SETTINGS)), None)
    if settings is not None:
        raise QuarlError(f"'{path}' was trained on normalized observations, as '{settings}' says: "
                         "give vecnormalize=..., or move that file away")
    others = sorted(path.parent.glob(ANY_STATISTICS))
    if others:
        raise QuarlError(
            f"'{others[0].name}' beside '{path}' may be its normalization: "
            "give vecnormalize=..., or move it away"
        )
    return None


def _settings_of_run(run: Path) -> list[Path]:
    """The RL Zoo's settings of a run `CartPole-v1_1`: its subfolder `CartPole-v1`.

    In a run that was renamed: the only subfolder that looks like settings.
    """
    found = {file.parent for name in (*STATISTICS, SETTINGS) for file in run.glob(f"*/{name}")}
    named = run / re.sub(r"_\d+$", "", run.name)
    return [named] if named in found else list(found) if len(found) == 1 else []


def _normalizes(settings: Path) -> bool:
    text = settings.read_text(errors="replace") if settings.is_file() else ""
    text = re.sub(r"(?m)(^|\s)#.*", "", text)
    # The RL Zoo's settings, as YAML pairs: `- normalize` and on the next line `- true`.
    stated = re.search(r"(?m)^[\s-]*normalize(?::[ \t]*|[ \t]*\n\s*-\s*)(\S.*)", text)
    if not stated or stated[1].strip().lower() in YAML_FALSE:
        return False
    return "'norm_obs': False" not in stated[1].replace("''", "'")
