"""Every claim of the seed documents and its verdict from the records."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from quarl_nb.errors import QuarlError, check_choice
from quarl_nb.paths import published_folder
from quarl_nb.report import actorq, carbon, edge, mixed_precision, ptq, qat
from quarl_nb.report.artefacts import joined
from quarl_nb.report.findings import NOT_MEASURED, Finding, Rule

RULES: Mapping[str, Rule] = {
    rule.__name__: rule
    for rule in (
        ptq.rules.similar_rewards,
        ptq.rules.no_loss,
        ptq.rules.hardness_differs,
        ptq.rules.wider_weights_lose_more,
        ptq.sweet_spot_rules.sweet_spot_exists,
        ptq.sweet_spot_rules.fewer_bits_beat_more,
        ptq.sweet_spot_rules.sweet_spots_differ,
        qat.rules.qat_no_loss,
        qat.rules.qat_kept_until,
        qat.rules.qat_beats_ptq,
        qat.rules.qat_beats_fp32,
        qat.rules.qat_sometimes_beats_fp32,
        mixed_precision.rules.half_precision_speedup,
        actorq.rules.speedup_above,
        actorq.rules.speedup_range,
        actorq.rules.as_slow_as_fp32,
        actorq.rules.returns_kept,
        actorq.rules.returns_gained_somewhere,
        actorq.rules.fewer_steps,
        actorq.rules.fewer_steps_somewhere,
        actorq.staleness_rules.rare_pulls_harm,
        actorq.staleness_rules.rare_pulls_slower,
        actorq.communication_rules.messages_smaller,
        actorq.communication_rules.policy_smaller,
        actorq.communication_rules.communication_helps,
        actorq.communication_rules.communication_matters_little,
        actorq.communication_rules.gains_by_scenario,
        actorq.runtime_rules.inference_dominates,
        actorq.runtime_rules.actors_faster,
        actorq.runtime_rules.transfers_faster,
        actorq.runtime_rules.computation_and_communication,
        actorq.runtime_rules.learner_waits_more,
        actorq.variant_rules.variants_equal,
        actorq.variant_rules.variant_keeps_return,
        actorq.variant_rules.variant_loses,
        actorq.variant_rules.noise_helps,
        actorq.variant_rules.needs_help,
        actorq.age_rules.lower_spi_fresher,
        actorq.age_rules.rare_pulls_staler,
        actorq.inference_rules.int8_inference_faster,
        actorq.inference_rules.alone_takes_longer,
        actorq.loading.takes_longer,
        actorq.loading.state_dict_most_compact,
        actorq.loading.packing_takes,
        carbon.rules.carbon_range,
        carbon.rules.carbon_mean,
        carbon.rules.carbon_follows_speed,
        edge.rules.int8_speedup,
        edge.rules.larger_int8_faster,
        edge.rules.resident_memory_smaller,
        edge.rules.fp32_exceeds_memory,
        edge.success_rules.success_falls,
        edge.success_rules.few_bits_pay,
    )
}
# A claim about PTQ rests on our own policies, the public agents, and the statistics of both; one
# about a board on times here, on boards, and on how the policies fly.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "ptq": ptq.site.STUDIES,
    "edge": edge.site.STUDIES,
}
# The papers in `shared/seeds`.
DOCUMENTS = {"000": "QuaRL 2022", "001": "QuaRL 2019", "002": "ActorQ blog", "003": "ActorQ 2021",
             "004": "publication list"}  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """One published sentence and what decides whether it holds.

    Args:
        sentence: quoted.
        source: seed document and place; `also` lists those that say it too, in other words or not.
        metric: what is measured.
        decision: the rule in words.
        study: whose records decide; `FAMILIES` says which others are read with them.
        rule: name in `RULES`.
        arguments: keyword arguments of the rule.

    Raises:
        QuarlError: unknown rule.
    """

    id: str
    sentence: str
    source: str
    metric: str
    decision: str
    study: str
    rule: str
    also: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice(f"rule of claim {self.id!r}", self.rule, RULES)


def named_source(source: str) -> str:
    """"003, Section 2" with the seed document by its name: "ActorQ 2021, Section 2"."""
    name, place = DOCUMENTS[source[:3]], source[3:].lstrip(", ")
    return f"{name}, {place}" if place else name


def load_claims(path: Path | None = None) -> list[Claim]:
    """The claims of data/paper/claims.toml, in its order.

    Raises:
        QuarlError: the file cannot be read, a field is unknown, or an id appears twice.
    """
    path = path or published_folder() / "claims.toml"
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))["claim"]
        claims = [Claim(**{**entry, "also": tuple(entry.get("also", ()))}) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise QuarlError(f"claims '{path}' cannot be read: {error}") from error
    ids = [claim.id for claim in claims]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise QuarlError(f"claims '{path}' name twice: {', '.join(twice)}")
    return claims


def studies(claims: Iterable[Claim] | None = None) -> list[str]:
    """The studies whose records decide these claims, by default all of them."""
    asked = load_claims() if claims is None else claims
    return [*dict.fromkeys(name for claim in asked
                           for name in FAMILIES.get(claim.study, (claim.study,)))]  # fmt: skip


def family_frame(frame_of: Callable[[str], pd.DataFrame], study: str) -> pd.DataFrame:
    """The records of a study and of those read with it, in one frame; empty if there are none."""
    names = FAMILIES.get(study, (study,))
    return joined({name: frame_of(name) for name in names}, names)


def judge(claim: Claim, records: pd.DataFrame) -> Finding:
    """The verdict of one claim over the records of its study (an empty frame: not measured)."""
    if records.empty:
        return NOT_MEASURED
    return RULES[claim.rule](records, **claim.arguments)


def verdicts(
    frame_of: Callable[[str], pd.DataFrame], claims: Iterable[Claim] | None = None
) -> pd.DataFrame:
    """Every claim with its verdict.

    Args:
        frame_of: records of a study by name, e.g. `store.frame`; an empty frame if it has none.

    Returns:
        One row a claim: id, verdict, measured (words), value, low, high, keys (tuple of record
        keys), profile, sentence, source, also, metric, decision, rule, study.
    """
    frames: dict[str, pd.DataFrame] = {}
    rows = []
    for claim in load_claims() if claims is None else claims:
        if claim.study not in frames:
            frames[claim.study] = family_frame(frame_of, claim.study)
        records = frames[claim.study]
        found = judge(claim, records)
        interval = found.interval
        rows.append({
            "id": claim.id, "verdict": found.verdict, "measured": found.measured,
            "value": interval.value if interval else None,
            "low": interval.low if interval else None,
            "high": interval.high if interval else None,
            "keys": found.keys,
            "profile": _profiles(records, found.keys),
            "sentence": claim.sentence, "source": claim.source, "also": "; ".join(claim.also),
            "metric": claim.metric, "decision": claim.decision, "rule": claim.rule,
            "study": claim.study,
        })
    return pd.DataFrame(rows)


def _profiles(records: pd.DataFrame, keys: tuple[str, ...]) -> str:
    return "+".join(sorted(set(records["profile"][records["key"].isin(keys)]))) if keys else ""
