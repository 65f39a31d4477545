"""Sweet spots of post-training quantization, corrected for having looked at every bit width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from quarl_nb.report.compare import BestOfMany, best_of_many
from quarl_nb.report.findings import MIN_EPISODES
from quarl_nb.report.losses import episode_weights, paired_returns
from quarl_nb.report.policy_records import bits_of, ptq_records
from quarl_nb.report.pvalues import fixed_signs, holm
from quarl_nb.report.stats import ALPHA, MARGIN, Floats

MIN_WIDTHS = 3


@dataclass(frozen=True)
class Widths:
    """Returns of one policy at fp32 (shape [episodes]) and at every width [widths, episodes].

    `name` is that of one training of the policy, by which its bootstrap is seeded.
    """

    policy: str
    name: str
    algo: str
    env_id: str
    bits: tuple[int, ...]
    reference: Floats
    returns: Floats
    keys: tuple[str, ...]

    @property
    def weights(self) -> Floats:
        """Those of the episodes' bootstrap, shape [resamples, episodes]."""
        return episode_weights(self.name, len(self.reference))

    @property
    def signs(self) -> Floats:
        """Those of the episodes' sign flips, shape [vectors, episodes]."""
        return fixed_signs(len(self.reference))

    def gains(self) -> BestOfMany:
        """What every width gains over fp32, corrected for looking at all."""
        return best_of_many(self.reference, self.returns, self.signs)


def widths_of(
    records: pd.DataFrame, algos: Sequence[str] = (), env_ids: Sequence[str] = (),
) -> list[Widths]:
    """Policies with fp32 and three affine widths at least, min-max ranges, over common episodes.

    Args:
        records: as `losses.paired_losses` takes them.

    Raises:
        QuarlError: a width and fp32 are no pair (`losses.paired_returns`).
    """
    rows = ptq_records(records, (), algos, env_ids, ["minmax"])
    if rows.empty:
        return []
    found = []
    for (policy, seed), group in rows.groupby(["policy", "seed"], dropna=False, sort=True):
        reference = group[group["precision"] == "fp32"]
        widths = group[group["precision"].str.startswith("affine")]
        if len(reference) and len(widths) >= MIN_WIDTHS:
            found.append(_widths(f"{policy}/{float(seed)}", str(policy), reference.iloc[0], widths))
    return found


def _widths(name: str, policy: str, reference: pd.Series, widths: pd.DataFrame) -> Widths:
    widths = widths.assign(bits=widths["precision"].map(bits_of)).sort_values("bits")
    pairs = [paired_returns(reference, row) for _, row in widths.iterrows()]
    n = min(len(base) for base, _ in pairs)
    return Widths(
        policy, name, str(reference["algo"]), str(reference["env_id"]),
        tuple(int(bits) for bits in widths["bits"]), pairs[0][0][:n],
        np.stack([returns[:n] for _, returns in pairs]),
        (str(reference["key"]), *widths["key"].astype(str)),
    )


def sweet_spot_table(records: pd.DataFrame) -> pd.DataFrame:
    """Every policy's surest width against fp32: policy, bits, episodes, fp32, gain, low, high,
    p_value, p_holm, sweet_spot; and the width that gains most, sure or not: most_bits, most,
    most_low. The surest is the most certain of those that gain enough, and where none does that of
    the largest lower bound (`BestOfMany.best`): a certain but tiny gain of another width hides no
    sweet spot, but it is often a copy of fp32, of which no gain at all is certain.

    `low` and `high` hold for all widths of the policy at once (95 %); `p_holm` is corrected over
    policies as well. A sweet spot needs low > 0, p_holm <= 5 %, and a gain that is not within
    the 5 % of |fp32| that count as no difference everywhere else.
    """
    return table_of(widths_of(records))


def table_of(policies: Sequence[Widths]) -> pd.DataFrame:
    """`sweet_spot_table` of these policies."""
    rows = []
    for widths in policies:
        best = widths.gains()
        at = best.best(MARGIN * abs(widths.reference.mean()))
        most = int(np.lexsort((-best.low, -best.gain))[0])
        rows.append({
            "policy": widths.policy, "bits": widths.bits[at], "episodes": len(widths.reference),
            "fp32": widths.reference.mean(), "gain": best.gain[at], "low": best.low[at],
            "high": best.high[at], "p_value": best.p_values[at],
            "most_bits": widths.bits[most], "most": best.gain[most], "most_low": best.low[most],
        })
    table = pd.DataFrame(rows)
    if len(table):
        table["p_holm"] = holm(table["p_value"].tolist())
        certain = (table["low"] > 0) & (table["p_holm"] <= ALPHA)
        # Of a return of 0 no gain is a share.
        large = (table["gain"] >= MARGIN * table["fp32"].abs()) & (table["fp32"] != 0)
        table["sweet_spot"] = certain & large & (table["episodes"] >= MIN_EPISODES)
    return table
