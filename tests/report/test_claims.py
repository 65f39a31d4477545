"""Claims: the data file against the seeds, and verdicts where the truth is known."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from quarl_nb.errors import QuarlError
from quarl_nb.notebook import quote_claims
from quarl_nb.report import claims
from quarl_nb.report.ptq import rules

SEEDS = Path(__file__).resolve().parents[3] / "shared" / "seeds"


@pytest.mark.skipif(not SEEDS.is_dir(), reason="the seed documents are not beside the repository")
def test_every_sentence_is_in_the_document_it_is_quoted_from() -> None:
    def flat(text: str) -> str:
        return re.sub(r"\s+", " ", text)

    documents = {path.name[:3]: flat(path.read_text()) for path in SEEDS.glob("*.txt")}
    missing = [c.id for c in claims.load_claims()
               if flat(c.sentence) not in documents[c.source[:3]]]
    assert not missing


def test_all_five_documents_have_claims() -> None:
    found = claims.load_claims()
    places = {c.source[:3] for c in found} | {a[:3] for c in found for a in c.also}
    assert places == {"000", "001", "002", "003", "004"}
    assert all(c.metric and c.decision and c.study for c in found)


def test_the_studies_of_claims_are_those_that_decide_them() -> None:
    by_id = {claim.id: claim for claim in claims.load_claims()}
    asked = [by_id[name] for name in ("qat-8-bits", "ptq-6-8-bits", "ptq-int8-ppo")]
    assert claims.studies(asked) == ["qat", "ptq", "ptq_public", "weights", "weights_public"]
    assert {"actorq", "edge", "loading", "mixed_precision"} < {*claims.studies()}


def test_without_records_nothing_is_measured() -> None:
    found = claims.verdicts(lambda study: pd.DataFrame())
    assert set(found["verdict"]) == {"not measured"}
    assert len(found) == len(claims.load_claims())


def test_bad_claims_are_named(tmp_path: Path) -> None:
    entry = '[[claim]]\nid="a"\nsentence=""\nsource=""\nmetric=""\ndecision=""\nstudy="ptq"\n'
    file = tmp_path / "claims.toml"
    file.write_text(entry + 'rule="no_los"\n')
    with pytest.raises(QuarlError, match="rule of claim 'a' 'no_los'; did you mean 'no_loss'"):
        claims.load_claims(file)
    entry += 'rule="no_loss"\n'
    file.write_text(entry + entry)
    with pytest.raises(QuarlError, match="name twice: a"):
        claims.load_claims(file)
    file.write_text(entry + "colour=1\n")
    with pytest.raises(QuarlError, match="colour"):
        claims.load_claims(file)


# Table 4 has eight environments of DQN.
DQN_GAMES = ("Breakout", "SpaceInvaders", "BeamRider", "MsPacman", "Qbert", "Seaquest", "Pong")

DQN_TABLE4 = {
    **{f"dqn-{game}": ("dqn", f"{game}NoFrameskip-v4", 2000.0) for game in DQN_GAMES},
    "dqn-CartPole-v1": ("dqn", "CartPole-v1", 500.0),
}


def test_claims_of_table_4_are_decided_by_its_environments(records) -> None:
    policies = DQN_TABLE4 | {
        "public/dqn-CartPole-v1": ("dqn", "CartPole-v1", 500.0),
        "dqn-BipedalWalker-v3": ("dqn", "BipedalWalker-v3", 200.0),  # in the table, not of DQN
        "public/dqn-Acrobot-v1": ("dqn", "Acrobot-v1", -100.0),
    }
    frame = records(lambda _, __, ways: 0.0, ("affine8",), policies)
    elsewhere = ("dqn-BipedalWalker-v3", "public/dqn-Acrobot-v1")
    lost = records(lambda policy, *_: 0.5 * (policy in elsewhere), ("affine8",), policies)
    for rule in (rules.similar_rewards, rules.no_loss):
        assert rule(frame, ["affine8"]).verdict == "reproduced"
        found = rule(lost, ["affine8"])
        assert found.verdict == "not reproduced" and "2 lose more than 5 %;" in found.measured
        found = rule(lost, ["affine8"], algos=["dqn"], in_table4=True)
        assert found.verdict == "reproduced" and found.measured.startswith("9 of 9 policies")
    theirs = lost[lost["policy"] != "dqn-BipedalWalker-v3"]
    told = rules.no_loss(theirs, ["affine8"]).measured
    assert "1 loses more than 5 %, public agents all;" in told


def test_some_of_table_4_is_not_every_policy_in_it(records) -> None:
    seven = {policy: DQN_TABLE4[policy] for policy in DQN_TABLE4 if "Pong" not in policy}
    frame = records(lambda *_: 0.0, ("affine8",), seven)
    lost = records(lambda policy, *_: 0.5 * ("Qbert" in policy), ("affine8",), seven)
    for rule in (rules.similar_rewards, rules.no_loss):
        found = rule(frame, ["affine8"], algos=["dqn"], in_table4=True)
        assert found.verdict == "inconclusive" and found.measured.startswith("7 of 7 policies")
        assert found.measured.endswith(" (a selection: 7 of 8 in Table 4)")
        # 36 of A2C, DQN, PPO and DDPG together; and one that loses refutes "every".
        assert "7 of 36 in Table 4" in rule(frame, ["affine8"], in_table4=True).measured
        assert rule(lost, ["affine8"], ["dqn"], in_table4=True).verdict == "not reproduced"
        assert rule(frame, ["affine8"], algos=["dqn"]).verdict == "reproduced"  # whatever is here
        # Nor is one of them that never learned (with no better return than random actions).
        with_idle = seven | {"dqn-Pong": ("dqn", "PongNoFrameskip-v4", -21.0)}
        idle = records(lambda *_: 0.0, ("affine8",), with_idle)
        found = rule(idle, ["affine8"], algos=["dqn"], in_table4=True)
        assert found.verdict == "inconclusive" and "(a selection: 7 of 8" in found.measured


def test_the_numbers_of_a_rule_stand_in_its_claim() -> None:
    for claim in claims.load_claims():
        told = f"{claim.sentence} {claim.metric} {claim.decision}"
        for name, value in claim.arguments.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                number = rf"(?<![\d.])({value:g}|{100 * value:g})(?![\d.]*\d)"  # or as percent
                assert re.search(number, told), (claim.id, name)


def test_verdicts_read_the_public_agents_too(records) -> None:
    frame = records(lambda *_: 0.0, ("affine8",), DQN_TABLE4)
    theirs = frame["policy"] == "dqn-CartPole-v1"
    public = frame[theirs].assign(policy="public/dqn-CartPole-v1")
    frames = {"ptq": frame[~theirs], "ptq_public": public}
    found = claims.verdicts(lambda study: frames.get(study, pd.DataFrame())).set_index("id")
    assert found.loc["ptq-int8-dqn", "verdict"] == "reproduced"
    assert found.loc["ptq-int8-dqn", "measured"].startswith("8 of 8 policies")
    assert found.loc["ptq-int8-dqn", "profile"] == "quick"
    assert found.loc["edge-18x", "verdict"] == "not measured"


def test_a_verdict_has_the_interval_and_the_profiles_of_its_own_records(records) -> None:
    frame = records(lambda *_: 0.2, ("affine8",))
    frame["profile"] = frame["algo"].map({"dqn": "full", "a2c": "smoke"}).fillna("quick")
    claim = {claim.id: claim for claim in claims.load_claims()}["ptq-int8-dqn"]
    (row,) = claims.verdicts(
        lambda study: frame if study == "ptq" else pd.DataFrame(), [claim]).to_dict("records")
    found = claims.judge(claim, frame)
    assert found.interval is not None and found.interval.low < found.interval.high
    assert (row["value"], row["low"], row["high"]) == tuple(vars(found.interval).values())
    assert row["profile"] == "full"
    both = claims.verdicts(lambda study: frame if study == "ptq" else pd.DataFrame())
    assert both.set_index("id").loc["ptq-8-bits-limited-impact", "profile"] == "full+quick+smoke"
    assert claims.verdicts(lambda study: frame, []).empty and claims.studies([]) == []


def test_documents_are_called_by_their_names() -> None:
    assert claims.named_source("003, Section 2") == "ActorQ 2021, Section 2"
    by_id = {claim.id: claim for claim in claims.load_claims()}
    told = quote_claims([by_id["qat-beats-ptq"], by_id["qat-beats-ptq"]]).data
    assert told.count("quantization aware training consistently") == 1
    assert told.endswith("— QuaRL 2019, abstract. Also, in these words or others: ActorQ 2021, "
                         "Appendix B.2; publication list")  # fmt: skip
    assert quote_claims([by_id["qat-8-bits"]]).data.endswith("— ActorQ 2021, Appendix B.2")
