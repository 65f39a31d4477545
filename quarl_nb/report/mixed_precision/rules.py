"""What decides the claim about half-precision training."""

from __future__ import annotations

import pandas as pd

from quarl_nb.report.findings import (
    NOT_MEASURED,
    ONE_PROCESS,
    Finding,
    decided,
    keys_of,
    measured,
)
from quarl_nb.report.mixed_precision.rewards import TRAINED, gains, trainings
from quarl_nb.report.mixed_precision.speedups import POLICIES, PUBLISHED, speedups
from quarl_nb.report.pvalues import holm
from quarl_nb.report.qat.gains import of_learned_seeds
from quarl_nb.report.seeds import MIN_SEEDS
from quarl_nb.report.stats import ALPHA, Interval
from quarl_nb.report.untrained import fp32_never_learned


def half_precision_speedup(records: pd.DataFrame) -> Finding:
    """Reproduced when a policy trains `PUBLISHED` times as fast as in float32 or faster (95 %,
    training step), and its return is without loss (Student's t over training seeds): either
    corrected for all that were tried, of which one is enough (Bonferroni over what was timed, Holm
    over what was trained). The return of a policy whose fp32 never learned counts as not measured,
    as does that of fewer than `MIN_SEEDS` seeds that learned in either precision.

    Not reproduced when none can be that fast, or each that is loses more than 5 %; and the
    preprint's policies were all timed in float16 on a GPU, as it trained them: what a processor
    without units for half precision takes says nothing of those.
    """
    records = measured(records)
    table = speedups(records)
    if table.empty:
        return NOT_MEASURED
    unlearned = fp32_never_learned(records)
    kinds = table[TRAINED].drop_duplicates()
    trained = [trainings(records, kind) for _, kind in kinds.iterrows()]
    found = [None if policy in unlearned else gains(of_learned_seeds(runs))
             for policy, runs in zip(kinds["policy"], trained, strict=True)]  # fmt: skip
    p_values = [gain.p_values() if gain and len(gain.gain) >= MIN_SEEDS else None for gain in found]
    compared = [p is not None for p in p_values]
    kinds["kept"] = False
    kinds.loc[compared, "kept"] = holm([p["p_no_loss"] for p in p_values if p]) <= ALPHA
    kinds["lost"] = [p is not None and p["p_loss"] <= ALPHA for p in p_values]
    # Each was timed on one machine or on several, and trained once for all of them.
    kept, lost = table[TRAINED].merge(kinds, "left")[["kept", "lost"]].to_numpy().T
    fast = (table["training_least"] >= PUBLISHED).to_numpy()
    slow = (table["training_high"] < PUBLISHED).to_numpy()
    best = table.loc[table["training"].idxmax()]
    interval = Interval.of(best, "training")
    as_published = table[(table["device"] == "cuda") & (table["precision"] == "fp16")]
    all_timed = {*as_published["policy"]} >= {*POLICIES}
    verdict = decided((fast & kept).any(), all_timed and (slow | lost).all())
    text = (f"training steps {interval} times as fast, policy {best['policy']} in "
            f"{best['precision']} on {best['device']} ({best['machine']}), interval {ONE_PROCESS}")
    text += (f"; reward compared for {sum(compared)} of {len(kinds)}, without loss in "
             f"{kinds['kept'].sum()}")  # fmt: skip
    text += f" (never learned: {', '.join(sorted(unlearned))})" if unlearned else ""
    keys = (*keys_of(table), *(key for runs in trained for key in runs["key"]))
    return Finding(verdict, text, interval, tuple(dict.fromkeys(keys)))
