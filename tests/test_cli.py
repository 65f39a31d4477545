from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from quarl_nb import studies
from quarl_nb.cli import main
from quarl_nb.cli.arguments import parse_settings, records_in
from quarl_nb.errors import QuarlError, UnavailableError, check_choice
from quarl_nb.runner import RunSummary
from quarl_nb.store import ResultStore
from quarl_nb.testing import FakeStudy

COMMANDS = ("run", "render", "draw", "status", "claims", "reproduce", "train", "evaluate",
            "quantize", "actorq", "export", "edge")  # fmt: skip
POLICIES = Path(__file__).resolve().parents[1] / "data" / "policies"
# A module that leaves a trace where it is imported, and has an environment of short episodes.
OWN_ENVIRONMENT = """import gymnasium
open("ran", "w").close()
gymnasium.register("Own-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=20)
"""


@pytest.fixture
def fakes(monkeypatch):
    """The studies, replaced by fakes: `fake`, and `failing` whose cell 1 fails."""
    found = {"fake": FakeStudy(), "failing": FakeStudy({1: "raise"}, name="failing")}
    monkeypatch.setattr(studies, "STUDIES", tuple(found))
    monkeypatch.setattr(studies, "get_study", lambda n: found[check_choice("study", n, found)])


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_shows_an_example(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"example: quarl-nb {command} " in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_parse(command, capsys):
    from quarl_nb.cli import build_parser

    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    example = shown.partition("example: quarl-nb ")[2].split()
    assert build_parser().parse_args(example).command.__name__ == f"{command}_command"


def test_help_imports_nothing_heavy():
    code = """
import sys
from quarl_nb.cli import main
try:
    main(["--help"])
except SystemExit:
    heavy = {"torch", "numpy", "pandas", "matplotlib", "papermill"} & set(sys.modules)
    assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert all(command in done.stdout for command in COMMANDS)


def test_run_writes_records_with_the_settings(fakes, tmp_path):
    settings = ["--set", "n_cells=2", "--set", "algos=ppo,dqn"]
    run = ["run", "fake", "--profile", "smoke", "--records", str(tmp_path)]
    assert main([*run, *settings, "--workers", "2"]) == 0
    frame = ResultStore(tmp_path).frame("fake", "smoke")
    assert sorted(zip(frame["algo"], frame["number"], strict=True)) == [
        ("dqn", 0), ("dqn", 1), ("ppo", 0), ("ppo", 1),
    ]  # fmt: skip


def test_a_run_with_settings_does_not_hide_what_the_profile_measured(fakes, tmp_path):
    run = ["run", "fake", "--profile", "smoke", "--records", str(tmp_path)]
    assert main([*run, "--set", "episodes=3"]) == 0
    assert set(records_in(tmp_path).frame("fake")["budget.episodes"]) == {3}
    assert main([*run, "--set", "n_cells=2"]) == 0  # planned cells, whatever was set
    assert main([*run, "--set", "episodes=3", "--recompute"]) == 0
    frame = records_in(tmp_path).frame("fake").set_index("number")
    assert dict(frame["budget.episodes"]) == {0: 2, 1: 2, 2: 3}


def test_what_cannot_be_planned_has_no_planned_keys(fakes, monkeypatch):
    assert len(studies.planned_keys("fake", "quick")) == 4
    assert not studies.planned_keys("edge_board", "full")  # imported from boards
    assert not studies.planned_keys("fake", "full")

    for error in (UnavailableError("no public agents"), QuarlError("unknown policy 'ppo-X-v0'")):
        monkeypatch.setattr(FakeStudy, "cells", Mock(side_effect=error))
        assert not studies.planned_keys("fake", "quick")


def test_run_takes_a_shard(fakes, tmp_path):
    run = ["run", "fake", "--records", str(tmp_path)]
    assert main([*run, "--shard", "2/3"]) == 0
    assert list(ResultStore(tmp_path).frame("fake", "quick")["number"]) == [1]
    with pytest.raises(SystemExit) as stop:
        main([*run, "--shard", "half"])
    assert stop.value.code == 2


def test_a_failed_cell_exits_with_1_and_status_counts_it(fakes, tmp_path, capsys):
    records = ["--records", str(tmp_path)]
    assert main(["run", "failing", "--profile", "smoke", *records]) == 1
    assert main(["status", *records]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["study", "profile", "cells", "done", "failed", "missing", "other"],
        ["fake", "smoke", "3", "0", "0", "3", "0"],
        ["fake", "quick", "4", "0", "0", "4", "0"],
        ["failing", "smoke", "3", "2", "1", "1", "0"],
        ["failing", "quick", "4", "0", "0", "4", "0"],
    ]
    done = next((tmp_path / "failing" / "smoke").glob("*.json"))
    done.with_name(f"{done.stem}.error.txt").touch()  # as of another run: the cell is done
    assert main(["status", "failing", *records]) == 0
    smoke = capsys.readouterr().out.splitlines()[1].split()
    assert smoke == ["failing", "smoke", "3", "2", "1", "1", "0"]
    (tmp_path / "fake" / "quick").mkdir(parents=True)
    (tmp_path / "fake" / "quick" / "own.json").touch()  # of a policy that no profile names
    assert main(["status", "fake", *records]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[2:] == ["4", "0", "0", "4", "1"]


def test_status_goes_on_where_a_study_cannot_be_planned(fakes, monkeypatch, tmp_path, capsys):
    """As PTQ in a folder of one's own, where data/policies lacks what its profiles name."""
    def cells(study, parameters):
        raise QuarlError(f"{study.name}: unknown policy 'ppo-CartPole-v1'")

    monkeypatch.setattr(FakeStudy, "cells", cells)
    assert main(["status", "--records", str(tmp_path)]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert len(rows) == 4 and all("unknown policy 'ppo-CartPole-v1'" in row for row in rows)


@pytest.mark.parametrize("name", ["x", "a_study_with_quite_a_long_name"])
def test_columns_fit_the_longest_name(monkeypatch, tmp_path, capsys, name):
    import pandas as pd

    monkeypatch.setattr(studies, "STUDIES", (name,))
    monkeypatch.setattr(studies, "get_study", lambda _: FakeStudy(name=name))
    assert main(["status", "--records", str(tmp_path)]) == 0
    header, smoke, _ = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["study", "profile"] and smoke.split()[:2] == [name, "smoke"]
    assert header.index("profile") == smoke.index("smoke")
    found = pd.DataFrame([{"verdict": "reproduced", "id": id, "measured": "12 of 13"}
                          for id in ("short", 3 * name)])  # fmt: skip
    monkeypatch.setattr("quarl_nb.report.claims.verdicts", lambda _: found)
    assert main(["claims", "--records", str(tmp_path)]) == 0
    *rows, _ = capsys.readouterr().out.splitlines()
    assert [row.split()[1] for row in rows] == list(found["id"])
    assert len({row.index("12 of 13") for row in rows}) == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run", "fak"], "unknown study 'fak'; did you mean 'fake'? allowed: fake, failing"),
        (["run", "fake", "--profile", "fast"],
         "unknown profile of study 'fake' 'fast'; allowed: smoke, quick"),
        (["run", "fake", "--set", "episode=3"],
         "unknown parameter of study 'fake' 'episode'; did you mean 'episodes'? "
         "allowed: n_cells, delay_s, algos, episodes"),
        (["run", "fake", "--set", "episodes"], "--set 'episodes' is not NAME=VALUE"),
        (["run", "fake", "--set", "episodes=many"],
         "parameter 'episodes' must be int, not 'many'"),
        (["run", "fake", "--set", "algos=sac"], "unknown algorithm 'sac'; allowed: ppo, dqn"),
        (["status", "fak"], "unknown study 'fak'; did you mean 'fake'? allowed: fake, failing"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_2(fakes, arguments, line, tmp_path, capsys):
    assert main([*arguments, "--records", str(tmp_path / "records")]) == 2
    assert capsys.readouterr().err == f"error: {line}\n"
    assert not (tmp_path / "records").exists()


def test_ctrl_c_exits_with_130(fakes, monkeypatch, capsys):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(studies, "get_study", interrupt)
    assert main(["run", "fake"]) == 130
    told = "interrupted: what was finished is kept, the same command goes on\n"
    assert capsys.readouterr().err == told
    for command in ("evaluate", "quantize"):  # which keep nothing
        monkeypatch.setattr("quarl_nb.cli.policies.policy_source", interrupt)
        assert main([command, "ppo-CartPole-v1"]) == 130
        assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(("command", "asked"), [
    (["render"], "cli.results.project_root"),
    (["reproduce"], "cli.results.project_root"),
    (["train", "--list"], "cli.training.list_policies"),
])  # fmt: skip
def test_a_command_that_goes_on_where_it_was_says_so_on_ctrl_c(command, asked, monkeypatch, capsys):
    monkeypatch.setattr(f"quarl_nb.{asked}", Mock(side_effect=KeyboardInterrupt))
    assert main(command) == 130
    told = "interrupted: what was finished is kept, the same command goes on\n"
    assert capsys.readouterr().err == told


ENDINGS = ["raise KeyboardInterrupt", "os.kill(os.getpid(), signal.SIGTERM)",
           "return 130"]  # as actorq's does  # fmt: skip


@pytest.mark.parametrize("again", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_after_ctrl_c_or_sigterm_another_changes_nothing(ending, again):
    code = f"""if True:
        import os, signal, sys
        from quarl_nb.cli import main, policies

        def interrupted(_):
            import os, signal
            {ending}

        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
        policies.evaluate_command.__code__ = interrupted.__code__
        sys.argv[1:] = ["evaluate", "ppo-CartPole-v1"]
        status = main()
        os.kill(os.getpid(), signal.{again})
        sys.exit(status)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    told = "" if ending == "return 130" else "interrupted\n"
    assert (done.returncode, done.stdout, done.stderr) == (130, "", told)


def test_settings_follow_the_type_of_the_default():
    defaults = {"n": 1, "yes": False, "no": True,
                "names": ["a"], "one": ["a"], "all": [], "name": "x", "quoted": "x",
                "widths": [1], "seeds": [], "years": ["a"], "mixed": ["a"]}  # fmt: skip
    texts = ["n=2", "yes=True", "no=False",
             "names=b,c", "one=b", "all=null", "name=3", 'quoted="y"', "widths=[4, 5]",
             "seeds=1,2", "years=2024", 'mixed=1,"b",true', "other=true"]  # fmt: skip
    assert parse_settings(texts, defaults) == {
        "n": 2, "yes": True, "no": False,
        "names": ["b", "c"], "one": ["b"], "all": None, "name": "3", "quoted": "y",
        "widths": [4, 5], "seeds": [1, 2], "years": ["2024"], "mixed": ["1", "b", "true"],
        "other": True,
    }  # fmt: skip
    with pytest.raises(QuarlError, match="'=3' is not NAME=VALUE"):
        parse_settings(["=3"], {})


def test_lists_of_notebooks_are_split_as_those_of_studies(monkeypatch):
    given = []
    monkeypatch.setattr("quarl_nb.render.render_all", lambda *a: given.append(a[2]) or [])
    assert main(["render", "00_tour", "--set", "bits=8,4", "--set", "policy=my,net"]) == 0
    assert main(["render", "01_ptq_tables", "--set", "policies=2024"]) == 0
    assert main(["render", "01_ptq_tables", "--set", "policies=null"]) == 0
    assert given == [{"bits": [8, 4], "policy": "my,net"}, {"policies": ["2024"]},
                     {"policies": None}]  # fmt: skip


@pytest.mark.parametrize(("failures", "status"), [([], 0), (["00_tour"], 1)])
def test_a_notebook_that_fails_is_the_exit_status(failures, status, monkeypatch):
    monkeypatch.setattr("quarl_nb.render.render_all", lambda *_: failures)
    assert main(["render", "00_tour"]) == status


def test_records_for_notebooks_are_found_from_where_the_command_is(monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr("quarl_nb.render.render_all", lambda *a: given.append(a[2]) or [])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("quarl_nb.cli.results.project_root", lambda: POLICIES.parents[1])
    for name in ("mine", "2024"):
        (tmp_path / name).mkdir()
        assert main(["render", "01_ptq_tables", "--set", f"records={name}"]) == 0
        assert given.pop() == {"records": str(tmp_path / name)}


def test_records_that_are_not_there_are_measured_only_if_notebooks_are_to_measure_anew(
    monkeypatch, tmp_path, capsys
):
    given = []
    monkeypatch.setattr("quarl_nb.render.render_all", lambda *a: given.append(a[2]) or [])
    folder = tmp_path / "mistyped"
    render = ["render", "01_ptq_tables", "--set", f"records={folder}"]
    assert main(render) == 2
    assert capsys.readouterr().err == f"error: no records: '{folder}' is not a folder\n"
    assert main([*render, "--set", "recompute=true"]) == 0
    assert given == [{"records": str(folder), "recompute": True}]


def test_a_zip_without_its_suffix_is_told(monkeypatch, tmp_path, capsys):
    (tmp_path / "my_model.zip").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "my_model", "--env", "CartPole-v1"]) == 2
    assert capsys.readouterr().err == (
        "error: 'my_model' is no policy; did you mean 'my_model.zip'?\n"
    )


def test_claims_tells_each_verdict_and_the_counts(tmp_path, capsys):
    from quarl_nb.report.claims import load_claims

    assert main(["claims", "--records", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(load_claims()) + 1
    assert lines[-1] == f"{len(load_claims())} not measured"


@pytest.mark.parametrize(("options", "profile"), [([], None), (["--profile", "smoke"], "smoke")])
def test_claims_are_of_the_profile_that_is_named(options, profile, monkeypatch, tmp_path, capsys):
    import pandas as pd

    def verdicts(frame_of):
        assert frame_of("ptq") == ("ptq", profile)
        return pd.DataFrame([{"verdict": "reproduced", "id": "x", "measured": "12 of 13"}])

    monkeypatch.setattr("quarl_nb.report.artefacts.frame_of", lambda store, *of: of)
    monkeypatch.setattr("quarl_nb.report.claims.verdicts", verdicts)
    assert main(["claims", *options, "--records", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 reproduced"


@pytest.mark.parametrize(("failed", "notebooks", "status"), [(0, [], 0), (1, [], 1), (0, ["x"], 1)])
def test_reproduce_runs_the_studies_then_draws_them_and_renders(
    failed, notebooks, status, fakes, monkeypatch, tmp_path
):
    steps = []

    def run_study(study, profile, store, workers):
        if study.name == "failing":
            raise UnavailableError("no public agents")  # which is left out
        steps.append((study.name, profile, workers))
        return RunSummary(4 - failed, 0, failed, 4)

    def build(store, out, profile):
        steps.append((out, profile))
        return [out / profile / "scoreboard.md"] if profile == "full" else []

    shown = tmp_path / "figures" / "full" / "scoreboard.md"
    for folder in (tmp_path / "data" / "policies", shown.parent):
        folder.mkdir(parents=True)
    shown.write_text("the scoreboard")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("quarl_nb.runner.run_study", run_study)
    monkeypatch.setattr("quarl_nb.report.site.build", build)
    monkeypatch.setattr("quarl_nb.report.readme.write_scoreboard", lambda *of: steps.append(of))
    monkeypatch.setattr("quarl_nb.render.find_notebooks", lambda folder: [folder / "x.ipynb"])
    monkeypatch.setattr("quarl_nb.render.render_all", lambda *of: steps.append(of) or notebooks)
    assert main(["reproduce", "--workers", "2"]) == status
    assert steps == [
        ("fake", "quick", 2),
        (tmp_path / "figures", "quick"),
        (tmp_path / "figures", "full"),
        (tmp_path / "README.md", "the scoreboard"),
        ([tmp_path / "notebooks" / "x.ipynb"], tmp_path / "notebooks" / "rendered",
         {"profile": "full"}),
    ]  # fmt: skip


@pytest.mark.parametrize("command", [["claims"], ["train", "--list"]])
def test_without_a_checkout_the_papers_are_not_there(command, tmp_path, monkeypatch, capsys):
    """As a package that pip installed, far from any checkout."""
    monkeypatch.setattr("quarl_nb.paths.__file__", str(tmp_path / "site" / "quarl_nb" / "paths.py"))
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    folder = tmp_path / "data" / "paper"
    told = f"error: no folder '{folder}': run this in a checkout of quarl_nb\n"
    assert capsys.readouterr().err == told


def test_what_is_no_array_of_observations_is_one_line(tmp_path, capsys):
    names = ("x.npz", "empty.npy", "damaged.npy", "open.npy")
    archive, empty, damaged, unclosed = (tmp_path / name for name in names)
    np.savez(archive, obs=np.zeros((3, 4)))
    empty.write_bytes(b"")
    unclosed.write_bytes(b"\x93NUMPY\1\0\x0b\0{'descr': (\n")
    with damaged.open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (10**20, 4)}
        np.lib.format.write_array_header_1_0(file, header)
    export = ["export", "ppo-CartPole-v1", "--to", str(tmp_path / "out"), "--observations"]
    for path in (archive, empty, damaged, unclosed):
        assert main([*export, str(path)]) == 2
        assert capsys.readouterr().err == f"error: '{path}' is not a .npy of observations\n"


def test_observations_of_ones_own_are_exported_with_the_ranges_and_environment_named(
    tmp_path, monkeypatch, capsys
):
    exported = Mock(return_value="board")
    monkeypatch.setattr("quarl_nb.edge.export.export_policy", exported)
    monkeypatch.chdir(POLICIES / "ppo-CartPole-v1")
    np.save(tmp_path / "obs.npy", obs := np.ones((3, 4), np.float32))
    export = ["export", ".", "--to", str(tmp_path / "out"), "--ranges", "mse",
              "--observations", str(tmp_path / "obs.npy"), "--env"]  # fmt: skip
    assert main([*export, "CartPole-v1"]) == 0
    net, precision, folder, given = exported.call_args.args
    assert (precision, folder) == ("int8", tmp_path / "out")
    np.testing.assert_array_equal(given, obs)
    assert exported.call_args.kwargs == {
        "name": "ppo-CartPole-v1", "ranges": "mse", "env_id": "CartPole-v1",
    }  # fmt: skip
    assert main([*export, "Pendulum-v1"]) == 2
    assert "observations of shape [4], 'Pendulum-v1' gives [3]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("dqn-PongNoFrameskip-v4", [], "layer 'layers.1' (conv2d) has no form in C"),
        ("ppo-CartPole-v1", ["--precision", "fp16"], "unknown precision of an export 'fp16'"),
        ("ppo-CartPole-v1", ["--ranges", "best"], "unknown ranges 'best'"),
    ],
)
def test_what_cannot_be_exported_is_told_before_it_plays(
    policy, options, message, tmp_path, monkeypatch, capsys
):
    played = Mock()
    monkeypatch.setattr("quarl_nb.rl.observations.collect_observations", played)
    assert main(["export", policy, *options, "--to", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err and not played.called


def test_evaluate_runs_a_policy_by_name(capsys):
    from quarl_nb.rl.evaluate import evaluate
    from quarl_nb.rl.policies import load_policy

    assert main(["evaluate", "ppo-CartPole-v1", "--episodes", "2", "--seed", "5"]) == 0
    expected = evaluate(load_policy(POLICIES / "ppo-CartPole-v1"), "CartPole-v1", [5, 6])
    out = capsys.readouterr().out
    assert f"return {expected.mean:.2f} (std {expected.std:.2f}" in out


def test_evaluate_tells_the_spread_and_the_speed(monkeypatch, capsys):
    def evaluate(net, env_id, seeds, make):
        assert (env_id, list(seeds)) == ("CartPole-v1", [7, 8, 9])
        return SimpleNamespace(returns=[1.0, 4.0, 4.0], mean=3.0, std=2.0, lengths=[10, 40, 30],
                               wall_s=0.5, random_actions=0.25)  # fmt: skip

    monkeypatch.setattr("quarl_nb.rl.evaluate.evaluate", evaluate)
    assert main(["evaluate", "ppo-CartPole-v1", "--seed", "7", "--episodes", "3"]) == 0
    assert capsys.readouterr().out == (
        "ppo-CartPole-v1 in CartPole-v1, fp32: return 3.00 (std 2.00, min 1.00, max 4.00) "
        "over 3 episodes with 25% of actions at random, 160 steps/s\n"
    )


@pytest.mark.parametrize("command", ["evaluate", "quantize", "export"])
def test_every_command_says_alike_that_an_environment_is_to_be_named(
    command, tmp_path, monkeypatch, capsys
):
    from quarl_nb.rl.policies import load_policy, save_policy

    net = load_policy(POLICIES / "ppo-CartPole-v1")
    net.spec = replace(net.spec, env_id=None)
    monkeypatch.chdir(tmp_path)
    save_policy(net, "policy")
    arguments = [command, "policy", *(["--to", "out"] if command == "export" else [])]
    assert main(arguments) == 2
    assert capsys.readouterr().err == (
        "error: 'policy' does not say where it acts: name it (--env, env_id=)\n"
    )
    assert main([*arguments, "--env", "Pendulum-v1"]) == 2
    assert "observations of shape [4], 'Pendulum-v1' gives [3]" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["evaluate", "quantize", "export"])
@pytest.mark.parametrize("prefix", ["", "rescaled:"])
def test_the_module_that_a_policys_file_names_is_imported_only_if_the_user_names_it(
    command, prefix, tmp_path, monkeypatch, capsys
):
    from quarl_nb.rl.policies import load_policy, save_policy

    env_id = f"downloaded_{command}:Own-v0"
    (tmp_path / f"downloaded_{command}.py").write_text(OWN_ENVIRONMENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    net = load_policy(POLICIES / "ppo-CartPole-v1")
    net.spec = replace(net.spec, env_id=prefix + env_id)
    save_policy(net, "policy")
    arguments = [command, "policy", *(["--to", "out"] if command == "export" else [])]
    assert main(arguments) == 2
    assert capsys.readouterr().err == (
        f"error: the policy says that it acts in '{prefix}{env_id}', which would run that "
        "module's code: where you trust it, name it yourself (--env, env_id=)\n"
    )
    assert not Path("ran").exists()
    if not prefix:
        assert main([*arguments, "--env", env_id]) == 0
        assert Path("ran").exists()


@pytest.mark.parametrize("command", ["evaluate", "quantize", "export"])
def test_a_policy_saved_to_data_policies_is_trusted_with_its_module(command, tmp_path, monkeypatch):
    from quarl_nb.rl.policies import load_policy, save_policy

    (tmp_path / f"trusted_{command}.py").write_text(OWN_ENVIRONMENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    net = load_policy(POLICIES / "ppo-CartPole-v1")
    net.spec = replace(net.spec, env_id=f"trusted_{command}:Own-v0")
    save_policy(net, Path("data", "policies", "mine"))
    for source in ("mine", "data/policies/mine"):
        assert main([command, source, *(["--to", "out"] if command == "export" else [])]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "ppo-CartPole-v1", "--precision", "int3"], "int3"),
        (["evaluate", "ppo-CartPole-v1", "--episodes", "0"], "at least one episode"),
        (["evaluate", "nowhere.zip", "--env", "CartPole-v1"], "nowhere.zip"),
        (["evaluate", "ppo-CartPol-v1"], "did you mean 'ppo-CartPole-v1'? allowed: "),
        (["evaluate", "no/folder"], "unknown policy 'no/folder'; allowed: an SB3 zip, a policy"),
        (["evaluate", "ppo-CartPole-v1", "--seed", "-1"], "seed must be from 0 to 2147483647, not"),
        (["evaluate", "ppo-CartPole-v1", "--seed", str(10**20)], "seed must be from 0 to 21474"),
        (["evaluate", "ppo-CartPole-v1", "--episodes", str(10**20)], "seed must be from 0 to 21"),
        (["quantize", "ppo-CartPole-v1", "--episodes", str(10**20)], "seed must be from 0 to 21"),
        (["evaluate", "ppo-CartPole-v1", "--vecnormalize", "x.pkl"], "goes with an SB3 zip"),
        (["evaluate", "ppo-CartPole-v1", "--env", "Pendulum-v1"],
         "observations of shape [4], 'Pendulum-v1' gives [3]"),
        (["quantize", "ppo-MountainCarContinuous-v0", "--env", "MountainCar-v0"],
         "the policy has actions of shape [1], 'MountainCar-v0' takes 3 discrete actions"),
        (["quantize", "ppo-CartPole-v1", "--env", "CartPol-v1"], "did you mean 'CartPole-v1'"),
        (["claims", "--profile", "huge"], "unknown profile 'huge'; allowed: full, quick, smoke"),
        (["claims", "--records", "nowhere"], "'nowhere' is not a folder"),
        (["status", "--records", "nowhere"], "'nowhere' is not a folder"),
        (["export", "ppo-CartPole-v1", "--to", "x", "--observations", "nowhere.npy"],
         "cannot read 'nowhere.npy': No such file"),
        (["export", "ppo-CartPole-v1", "--to", "x", "--observations", __file__],
         "test_cli.py' is not a .npy of observations"),
        (["quantize", "ppo-CartPole-v1", "--bits", "40"], "40"),
        (["quantize", "ppo-CartPole-v1", "--episodes", "1"], "at least 2"),
        (["train", "ppo-CartPole-v9"], "did you mean 'ppo-CartPole-v1'"),
        (["train"], "nothing to train"),
        (["render", "nowhere"], "notebook"),
    ],
)
def test_bad_input_of_the_other_commands(arguments, message, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run", "ptq", "--shard", "x"],
         "argument --shard: 'x' is not i/n, e.g. 1/4 (see quarl-nb run --help)"),
        (["quantize", "my.zip", "--bits", "x"],
         "argument --bits: invalid int value: 'x' (see quarl-nb quantize --help)"),
        (["actorq", "--env", "CartPole-v1", "--algo", "dqn", "--actors", "3"],
         "unrecognized arguments: --actors 3 (see quarl-nb actorq --help)"),
        (["status", "--records", ""],
         "argument --records: the name is empty (see quarl-nb status --help)"),
        (["evaluate", "ppo-CartPole-v1", "--env", ""],
         "argument --env: the name is empty (see quarl-nb evaluate --help)"),
        (["export", "ppo-CartPole-v1", "--env", "", "--to", "out"],
         "argument --env: the name is empty (see quarl-nb export --help)"),
        ([], "the following arguments are required: COMMAND (see quarl-nb --help)"),
    ],
)  # fmt: skip
def test_bad_usage_is_one_line_too(arguments, line, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"error: {line}\n"


def test_a_reader_that_leaves_early_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "quarl_nb.cli", "train", "--list"], check=False,
                          stdout=writer, stderr=subprocess.PIPE, text=True)  # fmt: skip
    os.close(writer)
    assert done.returncode == 0 and not done.stderr


@pytest.mark.parametrize(("closed", "told"), [
    (">&-", ("", "err")), ("2>&-", (r"\u221e", "")), ("", (r"\u221e", "err")),
])  # fmt: skip
def test_no_stream_that_is_closed_and_no_letter_it_lacks_is_an_error(closed, told, monkeypatch):
    code = """if True:
        import subprocess, sys
        from quarl_nb.cli import main, policies

        def evaluate_command(_):
            print("\u221e")
            print("err", file=sys.stderr)
            child = "import sys; sys.exit(None in (sys.stdout, sys.stderr))"
            return subprocess.call([sys.executable, "-c", child], close_fds=False)

        policies.evaluate_command = evaluate_command
        sys.argv[1:] = ["evaluate", "ppo-CartPole-v1"]
        sys.exit(main())
    """
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = subprocess.run(["bash", "-c", f'"$0" -c "$1" {closed}', sys.executable, code],
                          capture_output=True, text=True)  # fmt: skip
    assert (done.returncode, done.stdout.strip(), done.stderr.strip()) == (0, *told)


@pytest.mark.parametrize(("error", "line"), [
    (PermissionError(13, "Permission denied", "/their/own"), "'/their/own': Permission denied"),
    (OSError(28, "No space left on device"), "a file: No space left on device"),
])  # fmt: skip
def test_a_file_that_cannot_be_used_is_one_line(error, line):
    # In a process of its own, as standard output is given up where it takes no more.
    code = (
        "import sys; from quarl_nb.cli import studies, main\n"
        f"def status_command(_): raise OSError(*{(*error.args, *filter(None, [error.filename]))})\n"
        "status_command.__doc__ = 'x'; studies.status_command = status_command\n"
        "sys.exit(main(['status']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"error: cannot use {line}\n")


def test_quantize_has_8_bits_and_minmax_ranges_by_default(monkeypatch):
    import pandas as pd

    made = Mock(return_value=pd.DataFrame({"loss": [0.0]}))
    monkeypatch.setattr("quarl_nb.quantize.quantize_table", made)
    assert main(["quantize", "hub:me/mine", "--episodes", "5"]) == 0
    made.assert_called_once_with("hub:me/mine", None, [8], 5, "minmax", None, None)


def test_quantize_prints_and_writes_the_table(tmp_path, capsys):
    import pandas as pd

    assert main(["quantize", "ppo-CartPole-v1", "--bits", "4", "8", "4", "--episodes", "2",
                 "--out", str(tmp_path)]) == 0  # fmt: skip
    table = pd.read_csv(tmp_path / "quantize.csv")
    assert list(table["precision"]) == ["fp32", "fp16", "int8", "affine4", "affine8"]
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert rows == ["precision", *table["precision"]]
    by_precision = table.set_index("precision")["weight_bytes"]
    assert by_precision["fp32"] == 2 * by_precision["fp16"]


def test_a_table_that_cannot_be_written_is_told_first_or_printed_all_the_same(
    tmp_path, monkeypatch, capsys
):
    quantize = ["quantize", "ppo-CartPole-v1", "--episodes", "2", "--out", str(tmp_path)]
    assert main([*quantize[:-1], str(tmp_path / "new"), "--bits", "99"]) == 2
    assert not (tmp_path / "new").exists()
    capsys.readouterr()
    (tmp_path / "quantize.csv").mkdir()
    assert main(quantize) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.endswith("quantize.csv': a folder\n")
    (tmp_path / "quantize.csv").rmdir()
    full = Mock(side_effect=QuarlError("cannot write 'quantize.csv': No space left on device"))
    monkeypatch.setattr("quarl_nb.cli.policies.write_atomically", full)
    assert main(quantize) == 2
    captured = capsys.readouterr()
    assert captured.out.startswith("precision") and captured.err == f"error: {full.side_effect}\n"


class Worthless(CartPoleEnv):
    """Pays nothing."""

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, 0.0, *rest


def test_quantize_tells_why_there_is_no_loss(capsys):
    gym.register("Worthless-v0", Worthless, max_episode_steps=20)
    line = "loss is undefined: the mean fp32 return is 0"
    try:
        for env_id, told in (("Worthless-v0", True), ("CartPole-v1", False)):
            assert main(["quantize", "ppo-CartPole-v1", "--env", env_id, "--episodes", "2"]) == 0
            assert (line in capsys.readouterr().out.splitlines()) == told
    finally:
        del gym.registry["Worthless-v0"]


def test_a_folder_for_the_table_that_cannot_be_written_is_told_first(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    assert main(["quantize", "ppo-CartPole-v1", "--out", str(tmp_path / "file")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"error: cannot write to '{tmp_path / 'file'}': File exists\n"


def test_train_lists_what_can_be_trained(capsys):
    assert main(["train", "--list"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["ppo-CartPole-v1", "Table", "4", "trained"] in rows
