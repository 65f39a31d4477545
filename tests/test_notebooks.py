"""The notebooks: what they look like as files, and that they tell what the records hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace

import nbformat
import numpy as np
import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

import planted_edge
from planted_actorq import make_records, write_runs
from quarl_nb.errors import QuarlError
from quarl_nb.notebook import LONG_TEXT, count_runs, load_records, load_runs, show_table
from quarl_nb.render import LISTS, assigned_values, check_parameters, render_notebook
from quarl_nb.report import paper, stats, texts
from quarl_nb.runner import RunSummary
from quarl_nb.store import ResultStore
from quarl_nb.studies import open_records
from quarl_nb.studies.actorq import RUNTIME, SPEEDUP
from quarl_nb.studies.tasks import get_task
from quarl_nb.studies.weights import WEIGHTS, WEIGHTS_PUBLIC
from quarl_nb.study import Cell

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
COMMON = ["profile", "policies", "recompute", "workers", "records"]
RUNS = ["profile", "tasks", "recompute", "records"]  # of studies that time what they measure
PARAMETERS = {
    "00_tour": ["policy", "bits", "ranges", "episodes", "profile", "records"],
    "01_ptq_tables": [*COMMON, "seed", "int8_as"],
    "02_sweet_spot": [*COMMON, "seed", "runs"],
    "03_qat_bit_sweep": COMMON,
    "04_weight_distributions": [*COMMON, "precision"],
    "05_mixed_precision": ["profile", "policies", "recompute", "records"],
    "06_actorq_speedup": RUNS,
    "07_actorq_staleness": RUNS,
    "08_actorq_runtime": [*RUNS, "batch"],
    "09_carbon": RUNS,
    "10_pi_deployment": ["profile", "recompute", "records", "policy", "seed"],
}
FORGETFUL = Config(HistoryManager={"enabled": False})  # of the user's own IPython
EPISODES = 30
# In the order of their weights' ranges and of the losses planted at 4 bits.
POLICIES = [
    "ppo-CartPole-v1", "a2c-CartPole-v1", "ppo-BipedalWalker-v3", "a2c-BipedalWalker-v3",
    "ddpg-BipedalWalker-v3", "ppo-MountainCarContinuous-v0", "dqn-CartPole-v1",
    "dqn-PongNoFrameskip-v4",
]
PLANTED = {("dqn-CartPole-v1", "int8"): 0.4, ("a2c-BipedalWalker-v3", "affine6"): -0.2}


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def test_every_notebook_is_known():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_one_parameters_cell_with_the_documented_names(name):
    tagged = [cell for cell in read(name).cells if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1
    defaults = assigned_values(tagged[0].source)
    assert list(defaults) == PARAMETERS[name]
    unset = {parameter for parameter, value in defaults.items() if value is None}
    assert unset <= {"profile", "records", *LISTS}
    assert all("#" in line for line in tagged[0].source.splitlines())


@pytest.mark.parametrize("name", PARAMETERS)
def test_cells_are_short_stripped_and_define_nothing(name):
    notebook = read(name)
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    for cell in notebook.cells:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", cell.id)
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None
            assert len(cell.source.splitlines()) <= 12
            kinds = {type(node) for node in ast.walk(ast.parse(cell.source))}
            assert not kinds & {ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef}


@pytest.mark.parametrize("name", PARAMETERS)
def test_results_are_not_typed_by_hand(name):
    prose = "\n".join(c.source for c in read(name).cells if c.cell_type == "markdown")
    prose = re.sub(r"```.*?```|`[^`]*`|\$[^$]*\$|TensorFlow 1\.14", "", prose, flags=re.DOTALL)
    assert not re.search(r"\d+\.\d+|\d ?%|\d per cent", prose)


@pytest.mark.parametrize("name", PARAMETERS)
def test_what_is_shown_are_the_records_that_figures_and_claims_show(name):
    code = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "code")
    assert "open_records(records)" in code and "ResultStore" not in code


@pytest.mark.parametrize("name", [name for name in PARAMETERS if name != "00_tour"])
def test_reads_as_a_paper(name):
    prose = "\n".join(c.source for c in read(name).cells if c.cell_type == "markdown")
    parts = ["# ", "## The question", "## Method", "## Result", "## What differs from the paper",
             "## Do the claims hold?", "## Provenance"]
    places = [prose.find(part) for part in parts]
    assert -1 not in places and places == sorted(places)


def test_the_speedup_notebook_tells_which_tasks_are_trained_otherwise():
    prose = "\n".join(c.source for c in read("06_actorq_speedup").cells)
    bullets = {part.partition("**")[0]: " ".join(part.split()) for part in prose.split("- **")}
    for task in map(get_task, SPEEDUP.profiles["full"]["tasks"]):
        name = task.published.removesuffix(" (Gym)")
        if task.samples_per_insert != 1:
            assert name in bullets["Two cores and no GPU"]
            assert str(task.width) in bullets["Two cores and no GPU"]
        published = paper.published("table3").set_index(["task", "quantity"])["value"]
        steps = published[name.replace(" Car", "Car"), "steps_trained"]
        if task.steps != int(steps):
            assert f"{task.steps:,}" in bullets["Steps."]
            assert name in bullets["Steps."] or name.startswith("Cartpole")


def test_the_runtime_notebook_tells_whether_actors_warm_up():
    prose = "\n".join(c.source for c in read("08_actorq_runtime").cells)
    starts = {profile["options"]["learning_starts"] for profile in RUNTIME.profiles.values()}
    assert ("**No warm-up.**" in prose) == (starts == {0})


def write_record(store: ResultStore, study: str, cell: dict, budget: dict, measured: dict,
                 arrays: dict | None = None) -> None:
    store.write({
        "study": study, "profile": "full", "schema_version": 1, "cell": cell, "budget": budget,
        "key": Cell(study, cell).key(budget, 1), "measured": measured, "backend": "simulated",
        "source": "measured", "wall_s": 60.0,
        "provenance": {"git_commit": "c0ffee" + "0" * 34, "dirty": False, "python": "3.11.7",
                       "packages": {"torch": "2.13.0"}, "cpu": "A CPU", "cores": 2,
                       "os": "Linux", "start_time": "2026-11-21T05:00:00+00:00"},
    }, arrays)  # fmt: skip


def write_policy(store: ResultStore, policy: str, rank: int) -> None:
    """Returns that lose exactly what is planted, and weights whose range is 1 + rank."""
    study = "ptq_public" if policy.startswith("public/") else "ptq"
    algo, _, env_id = policy.removeprefix("public/").partition("-")
    where = {"policy": policy, "algo": algo, "env_id": env_id, "ranges": "minmax"}
    base = 100 * np.linspace(0.9, 1.1, EPISODES)
    budget = {"episodes": EPISODES, "first_seed": 1000}
    precisions = ("fp32", "fp16", "int8", "legacy8", "affine8", "affine6", "affine4", "affine2")
    for precision in precisions:
        loss = 0.08 * rank if precision == "affine4" else PLANTED.get((policy, precision), 0.0)
        measured = {"returns": base * (1 - loss), "lengths": [1] * EPISODES}
        write_record(store, study, where | {"precision": precision, "seed": 0}, budget, measured)
    layers = {"layer": ["layers.0.weight", "layers.2.weight"], "shape": [[4, 8], [8, 2]],
              "count": [32, 16], "min": [-0.5, -1.0], "max": [0.5, float(rank)],
              "range": [1.0, 1.0 + rank], "std": [0.5, 0.5],
              "range_over_std": [2.0, 2.0 + 2 * rank], "mse": [0.1, 0.2], "max_error": [0.1, 0.2],
              "sqnr_db": [30.0, 20.0 - rank]}
    arrays = {"counts": np.array([[1, 6, 1], [2, 9, 2]]),
              "edges": np.array([[-0.5, -0.1, 0.1, 0.5], [-1.0, -0.2, 0.2, 1.0 + rank]])}
    for precision in ("affine8", "affine4"):
        write_record(store, study.replace("ptq", "weights"), where | {"precision": precision},
                     {"histogram_bins": 3}, layers, arrays)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> ResultStore:
    made = ResultStore(tmp_path_factory.mktemp("records"))
    for rank, policy in enumerate(POLICIES):
        write_policy(made, policy, rank)
    return made


@pytest.fixture
def shown(tmp_path, monkeypatch) -> Callable[..., str]:
    """Run a notebook's cells, without public agents, and return what they show as one text.

    In this process: Papermill's kernels, of which the tour's tests start two, import for seconds.
    """
    monkeypatch.setenv("QUARL_NB_AGENTS", str(tmp_path / "nowhere"))
    monkeypatch.chdir(FOLDER)

    def run(name: str, **parameters: object) -> str:
        notebook = read(name)
        check_parameters(FOLDER / f"{name}.ipynb", notebook, parameters)
        shell = InteractiveShell.instance(user_module=ModuleType(name), config=FORGETFUL)
        shell.reset()
        texts = []
        for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
            with capture_output() as said:
                done = shell.run_cell(cell.source)
            done.raise_error()
            if "parameters" in cell.metadata.get("tags", []):
                shell.push(parameters)
            texts += [said.stdout, *(as_text(output.data) for output in said.outputs)]
            if done.result is not None:
                texts.append(as_text(shell.display_formatter.format(done.result)[0]))
        return as_shown(texts)

    yield run
    InteractiveShell.clear_instance()


@pytest.fixture
def rendered(tmp_path, monkeypatch) -> Callable[..., str]:
    """As `shown`, by Papermill."""
    monkeypatch.setenv("QUARL_NB_AGENTS", str(tmp_path / "nowhere"))

    def render(name: str, **parameters: object) -> str:
        out = render_notebook(FOLDER / f"{name}.ipynb", tmp_path / "out.ipynb", parameters)
        outputs = [o for c in nbformat.read(out, as_version=4).cells for o in c.get("outputs", [])]
        return as_shown([o.get("text", "") + as_text(o.get("data", {})) for o in outputs])

    return render


def as_text(data: Mapping[str, str]) -> str:
    shown = data.get("text/markdown") or data.get("text/html") or ""
    return shown + "<picture>" * ("image/png" in data)


def as_shown(texts: list[str]) -> str:
    return "\n".join(texts).replace("\u00a0", " ").replace("&nbsp;", " ")


def files_of(store: ResultStore) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in store.root.rglob("*") if path.is_file()}


def test_tables_show_published_beside_measured_and_what_is_missing(store, shown):
    before = files_of(store)
    text = shown("01_ptq_tables", records=str(store.root), int8_as="int8")
    assert files_of(store) == before  # what is recorded is shown, not measured
    assert "40.0% [40.0%, 40.0%]" in text
    told = next(line for line in text.splitlines() if line.startswith("Of "))
    # The planted loss, and the three that Table 4 has above 5 % where nothing is planted:
    # BipedalWalker in PPO fp16 (304 to 280) and in DDPG fp16 and int8 (98 to 90 and 83).
    assert "**12 reproduced**, **4 not reproduced**" in told
    assert "DQN on Breakout, SpaceInvaders" in told
    assert text.count("<picture>") == 2  # no other ranges: nothing to mend, and it says so
    assert "Nothing to draw" in text and "ptq_public quick: left out" in text
    assert "- **not reproduced**: “reinforcement learning policies are resilient" in text
    assert "c0ffee000000" in text and "torch 2.13.0" in text


def test_what_other_ranges_do_not_mend_for_certain_may_be_undecided(tmp_path, shown):
    made = ResultStore(tmp_path / "records")
    write_policy(made, POLICIES[0], 0)
    cell = {"policy": POLICIES[0], "algo": "ppo", "env_id": "CartPole-v1", "precision": "affine8",
            "seed": 0}  # fmt: skip
    base, noise = 100 * np.linspace(0.9, 1.1, EPISODES), 60.0 * (-1) ** np.arange(EPISODES)
    for ranges, change in (("minmax", -40.0), ("percentile", -40.0), ("mse", 0.0),
                           ("per_channel", noise - 5)):  # fmt: skip
        write_record(made, "ptq", cell | {"ranges": ranges}, {"episodes": 30, "first_seed": 1000},
                     {"returns": list(base + change), "lengths": [1] * EPISODES})  # fmt: skip
    text = shown("01_ptq_tables", records=str(made.root))
    assert "1 of 1 policies lose more than the margin, tested one by one, in 1 case; " in text
    for told in ("least squares ranges mend 1 of 1, certainly do not mend 0, and leave 0 undecided",
                 "percentile ranges mend 0 of 1, certainly do not mend 1, and leave 0 undecided",
                 "per channel ranges mend 0 of 1, certainly do not mend 0, and leave 1 undecided"):
        assert told in text


def test_sweet_spot_finds_the_planted_one_only(store, shown):
    text = shown("02_sweet_spot", records=str(store.root), runs=5)
    told = f"**1 of {len(POLICIES)} policies** have a sweet spot; A2C BipedalWalker at 6 bits"
    assert told in text
    # Four widths each; at 4 bits all but the first lose, one gains at 6: the rest are as fp32.
    assert "Taken one by one, 1 of 8 widths beat fp32" in text and "24 more are copies" in text
    assert "- **reproduced**: “Figures 7 shows that there is a sweet-spot" in text
    # fp32 against itself: the best of four draws beats a fifth with probability 4/5.
    shares = [int(share) for share in re.findall(r">(\d+)%<", text)]
    assert len(shares) == len(POLICIES) and all(75 <= share <= 85 for share in shares)


def test_weights_that_order_the_losses_predict_them(store, shown):
    text = shown("04_weight_distributions", records=str(store.root))
    assert "rank correlation of range and loss 1.00 over 8 policies" in text
    assert "correlates with the loss by" in text and "1.00 at affine4" in text
    assert "They are those of DQN Pong." in text
    # The first policy's layers have one and the same range in standard deviations.
    assert "In 7 of 8 policies" in text
    assert text.count("<picture>") == 1


def test_every_profile_has_weights_at_the_precision_that_is_shown(store, shown):
    cells = {cell.id: cell.source for cell in read("04_weight_distributions").cells}
    default = assigned_values(cells["parameters"])["precision"]
    for study in (WEIGHTS, WEIGHTS_PUBLIC):
        assert all(default in profile["precisions"] for profile in study.profiles.values())
    with pytest.raises(QuarlError, match="unknown precision with records 'bogus'; allowed: aff"):
        shown("04_weight_distributions", records=str(store.root), precision="bogus")


def test_few_policies_and_one_that_earns_nothing_have_no_correlation_and_no_loss(tmp_path, shown):
    made = ResultStore(tmp_path / "records")
    for rank, policy in enumerate(POLICIES[:3]):
        write_policy(made, policy, rank)
    for record in made.records("ptq", "full"):
        if record["cell"]["policy"] == POLICIES[0]:
            returns = [1.0, -1.0] * (EPISODES // 2)
            made.write(record | {"measured": record["measured"] | {"returns": returns}})
    text = shown("04_weight_distributions", records=str(made.root))
    assert "PPO CartPole" in text and "nan%" not in text
    assert "correlates with the loss by *(unknown: fewer than 8 policies" in text


def test_policies_whose_short_labels_are_the_same_keep_their_rows(tmp_path, shown):
    made = ResultStore(tmp_path / "records")
    for rank, policy in enumerate(("dqn-CartPole-v0", "dqn-CartPole-v1")):
        write_policy(made, policy, rank)
    for name in ("02_sweet_spot", "04_weight_distributions"):
        text = shown(name, records=str(made.root))
        assert "DQN CartPole-v0" in text and "DQN CartPole-v1" in text
    assert "They are those of DQN CartPole-v1." in text


def test_weights_that_lose_nothing_by_quantization_are_shown_too(tmp_path, shown):
    """As those of a policy that was trained on the levels: no noise, null on disk."""
    made = ResultStore(tmp_path / "records")
    write_policy(made, POLICIES[0], 0)
    for record in made.records("weights", "full"):
        made.write(record | {"measured": record["measured"] | {"sqnr_db": [None, None]}})
    text = shown("04_weight_distributions", records=str(made.root))
    assert "They are those of PPO CartPole." in text and text.count("<picture>") == 1


@pytest.mark.parametrize(
    ("name", "chosen", "told"),
    # What takes minutes is measured unasked: so there, what takes hours is chosen.
    [("01_ptq_tables", {"profile": "full"}, "**Nothing is measured yet**"),
     ("02_sweet_spot", {"profile": "full"}, "*Nothing to draw: no policy has records at fp32"),
     ("03_qat_bit_sweep", {}, "**Nothing is measured yet**"),
     ("04_weight_distributions", {"profile": "full"}, "*Nothing to draw: no policy has weight"),
     ("05_mixed_precision", {}, "**Nothing is measured yet**")],
)
def test_an_empty_store_is_told_and_no_training_is_started(name, chosen, told, tmp_path, shown):
    (tmp_path / "none").mkdir()
    text = shown(name, records=str(tmp_path / "none"), **chosen)
    assert not [*(tmp_path / "none").iterdir()]
    assert told in text and "nothing is recorded" in text
    assert "- **not measured**: “" in text and "<picture>" not in text


def test_records_without_fp32_have_no_losses_and_the_tables_say_so(tmp_path, shown):
    made = ResultStore(tmp_path / "records")
    write_policy(made, POLICIES[0], 0)
    for record in made.records("ptq", "full"):
        if record["cell"]["precision"] == "fp32":
            made.path("ptq", "full", record["key"]).unlink()
    text = shown("01_ptq_tables", records=str(made.root))
    assert "**Nothing is measured yet** that has fp32 beside it" in text
    assert "No loss is measured that other ranges could mend" in text
    assert "No quantized number of Table 4 is measured. Not measured yet: A2C on" in text
    assert "- **not measured**: “" in text and "<picture>" not in text
    assert "- **reproduced**" not in text and "c0ffee000000" in text


def test_qat_sweep_judges_over_training_seeds(tmp_path, shown):
    store = ResultStore(tmp_path / "records")
    steps = np.arange(1, 11)
    for policy in ("ppo-CartPole-v1", "a2c-CartPole-v1", "dqn-CartPole-v1"):
        algo, _, env_id = policy.partition("-")
        for precision in ("fp32", "affine8", "affine4", "affine2"):
            for seed in range(3):
                method = "none" if precision == "fp32" else "minmax"
                cell = {"policy": policy, "algo": algo, "env_id": env_id, "seed": seed,
                        "precision": precision, "method": method, "regularizer": "none"}
                lost = {"affine8": 0.0015 * seed, "affine4": 0.2, "affine2": 0.6}.get(
                    precision, 0.001 * seed)
                returns = list(np.linspace(90, 110, EPISODES) * (1 - lost))
                measured = {"returns": returns, "training_s": 10.0 + 5 * (method == "minmax")}
                if precision == "fp32":
                    measured["ptq_returns"] = {"affine8": [0.9 * r for r in returns]}
                budget = {"quant_delay": 5, "timesteps": 10, "episodes": EPISODES}
                probes = {"probe_steps": steps, "entropy": 0.1 * steps, "action_variance": steps}
                write_record(store, "qat", cell, budget, measured, probes)
    text = shown("03_qat_bit_sweep", records=str(store.root))
    assert text.count("<picture>") == 2
    assert "36 trainings of 3 policies (seeds of each: 3), at least 30 episodes" in text
    assert "- **reproduced**: “Broadly, at 8-bits, we see no degradation" in text
    assert "- **reproduced**: “quantization aware training consistently improves" in text
    assert "- **not reproduced**: “oftentimes even over the full precision baseline”" in text
    assert "60.0%" in text


def test_half_precision_shows_ratio_and_parts(tmp_path, shown):
    store = ResultStore(tmp_path / "records")
    for policy, size in (("A", 10**6), ("B", 2 * 10**7)):
        for precision, update_s in (("fp32", 0.2), ("bf16", 0.1)):
            cell = {"policy": policy, "algo": "dqn", "env_id": "PongNoFrameskip-v4", "seed": 0,
                    "precision": precision, "device": "cpu"}
            measured = {
                "update_s": 5 * [3 * update_s], "update_cpu_s": 5 * [update_s], "act_s": 0.003,
                "act_cpu_s": 0.001, "env_step_s": 0.003, "env_step_cpu_s": 0.001, "train_freq": 4,
                "batch_size": 32, "steps_per_s": 1.0, "parameters": size,
                "run_energy": {"cpu_s": update_s, "energy_j": update_s,
                               "method": "tdp_x_cpu_time"},
            }  # fmt: skip
            write_record(store, "mixed_precision", cell, {"repeats": 5}, measured)
    text = shown("05_mixed_precision", records=str(store.root))
    assert text.count(">2.00 [2.00, 2.00]<") == 2 and text.count("<picture>") == 1
    assert "no policy has been trained to the end" in text
    # 0.052 over 0.027: fast enough, but the reward is not known.
    assert "training steps 1.926 [1.926, 1.926] times as fast" in text
    assert "- **inconclusive**: “We use half-precision training" in text


@pytest.mark.parametrize("name", [name for name, names in PARAMETERS.items() if "tasks" in names])
def test_runs_of_hours_are_not_measured_unasked(name, shown, tmp_path):
    (tmp_path / "records").mkdir()
    text = shown(name, records=str(tmp_path / "records"))
    assert "not measured" in text and "Nothing to draw" in text and "nothing is recorded" in text
    assert "<picture>" not in text and "**reproduced**" not in text
    assert not [*(tmp_path / "records").iterdir()]


def test_the_pi_notebook_tells_what_is_published_measured_and_modelled(tmp_path, shown):
    (tmp_path / "none").mkdir()
    empty = shown("10_pi_deployment", records=str(tmp_path / "none"), policy="nobody")
    assert not [*(tmp_path / "none").iterdir()] and "<picture>" not in empty
    assert "**Nothing is timed yet**" in empty and "**no policy has flown yet**" in empty
    assert "no picture: data/policies has no nobody" in empty
    assert empty.count("- **not measured**: “") == 8 and "133" in empty  # Table 6 is always there
    store = ResultStore(tmp_path / "records")
    planted_edge.write_timed(store)
    planted_edge.write_flights(store, {("int8", "minmax"): 0.78, ("affine5", "qat"): 0.9})
    text = shown("10_pi_deployment", records=str(store.root), policy="nobody")
    assert "18 times are measured, 18 modelled, 0 results of boards imported" in text
    assert text.count("<picture>") == 3
    assert "None of the policies said to exceed" in text and "+12.0 [+9.9, +14.1]" in text
    assert "- **not reproduced**: “Policies II and III take more memory than the total RAM" in text
    assert "- **reproduced**: “We evaluate the all the three policies" in text
    assert "- **inconclusive**: “quantizing larger models" in text
    assert "assumed: a card" in text and "1.580" in text  # of the code, as no record here has it


def test_records_of_another_policy_of_that_name_are_not_shown(tmp_path, capsys):
    made = ResultStore(tmp_path, weights_of={"mine": "today's"}.get)
    cell = {"policy": "mine", "algo": "ppo", "env_id": "CartPole-v1", "precision": "fp32"}
    for weights in ("first", "second"):
        budget = {"tensors_sha256": weights}
        write_record(made, "ptq", cell, budget, {"returns": [1.0], "lengths": [1]})
    other = cell | {"policy": "ppo-CartPole-v1"}  # the suite's own records tell no weights
    write_record(made, "ptq", other, {}, {"returns": [1.0], "lengths": [1]})
    with pytest.raises(QuarlError, match="measure it: recompute=True, or quarl-nb run ptq"):
        load_records(made, ["ptq"], "full", policies=["mine"])
    assert "records of another policy that was called mine" in capsys.readouterr().out
    budget = {"tensors_sha256": "today's"}
    write_record(made, "ptq", cell, budget, {"returns": [2.0], "lengths": [1]})
    frame = load_records(made, ["ptq"], "full", policies=["mine"])["ptq"]
    assert frame["returns"].tolist() == [[2.0]]


def test_chosen_policies_are_the_only_ones_shown(store, shown):
    text = shown("02_sweet_spot", records=str(store.root), policies=["dqn-CartPole-v1"])
    assert "**0 of 1 policies**" in text and "BipedalWalker" not in text


def test_tour_plays_a_policy_and_counts_the_claims(store, rendered):
    text = rendered("00_tour", records=str(store.root), policy="ppo-CartPole-v1", bits=[8],
                    episodes=2)
    assert "affine8" in text and "times fewer than fp32" in text
    assert "| reproduced |" in text and text.count("<picture>") == 1
    assert re.search(r"Red: the same at 8 bits, on (1\d\d|2[0-5]\d) levels", text)
    ranges = rendered("00_tour", records=str(store.root), policy="ppo-CartPole-v1", bits=[4],
                      episodes=2, ranges="per_channel")
    levels = re.search(r"Red: the same at 4 bits, on ([\d,]+) levels", ranges)
    assert levels is not None and int(levels[1].replace(",", "")) > 2**4  # of many channels


@pytest.mark.parametrize(
    ("lost", "told"),
    [
        ([0.0, 0.01, 0.2], "in these 20 episodes is **fp16**: 200 bytes of weights, 2.0 times"),
        ([0.0, 0.2, 0.3], "No form of `mine` but fp32 is surely without a loss"),
        ([np.nan] * 3, "Of `mine` no loss is defined: its mean return in fp32 is 0"),
    ],
)
def test_the_tour_tells_which_form_is_without_a_loss_if_one_is(lost, told):
    cells = {cell.id: cell.source for cell in read("00_tour").cells}
    ends = {f"loss{end}": lost for end in ("", "_low", "_high")}
    table = pd.DataFrame({"precision": ["fp32", "fp16", "int8"], "mean": [1.0, 0.9, 0.8],
                          "weight_bytes": [400, 200, 100], **ends})  # fmt: skip
    said: list = []
    exec(cells["play-table"] + "\n" + cells["play-told"], {
        "quantize": SimpleNamespace(quantize_table=lambda *_, **__: table), "texts": texts,
        "notebook": SimpleNamespace(show_table=lambda shown, index: said.append(shown.to_string())),
        "stats": stats, "Markdown": said.append, "folder": "mine", "policy": "mine", "bits": [],
        "episodes": 20, "ranges": "minmax",
    })  # fmt: skip
    assert told in said[1] and "nan" not in said[0].lower()


@pytest.mark.parametrize("load", [load_records, load_runs])
def test_a_mistyped_folder_of_records_is_refused_and_not_made(load, tmp_path, monkeypatch):
    store = ResultStore(tmp_path / "recrods")
    with pytest.raises(QuarlError, match=r"'.*recrods' is not a folder \(where there is `rec"):
        load(store, ["weights"], "smoke")
    assert not store.root.exists()
    monkeypatch.chdir(tmp_path)  # a project of one's own, which has no records yet
    (tmp_path / "data" / "policies").mkdir(parents=True)
    assert load(ResultStore(), ["qat"], "full")["qat"].empty


def test_without_records_the_study_is_run_and_only_then(tmp_path):
    store = ResultStore(tmp_path)
    frames = load_records(store, ["weights"], "smoke", workers=1)
    assert {*frames["weights"]["policy"]} == {"ppo-CartPole-v1"}
    assert frames.keys() == {"weights"}
    before = files_of(store)
    load_records(store, ["weights"], None, workers=1)
    assert files_of(store) == before
    load_records(store, ["weights"], None, recompute=True, workers=1)
    assert files_of(store).keys() == before.keys() and files_of(store) != before


def test_what_takes_hours_is_run_only_if_asked_for(tmp_path, monkeypatch, capsys):
    measured = []

    def measure(study, profile, *arguments, parameters, **options):
        measured.append((profile, parameters))
        return RunSummary(done=0, skipped=0, failed=0, total=0)

    monkeypatch.setattr("quarl_nb.runner.run_study", measure)
    store = ResultStore(tmp_path)
    assert load_records(store, ["weights"], "full")["weights"].empty and not measured
    assert capsys.readouterr().out == (
        "weights full: nothing is recorded; recompute=True measures it (hours)\n")  # fmt: skip
    load_records(store, ["weights"], "full", ["ppo-CartPole-v1"])
    assert capsys.readouterr().out == ("weights full: nothing of ppo-CartPole-v1 is recorded; "
                                       "recompute=True measures it (hours)\n")  # fmt: skip
    monkeypatch.setattr(ResultStore, "best_profile", lambda *_: "full")  # others have records there
    load_records(store, ["weights"], None, ["ppo-CartPole-v1"])
    assert not measured
    load_records(store, ["weights"], "quick")
    load_records(store, ["weights"], "full", ["ppo-CartPole-v1"], recompute=True)
    load_records(store, ["weights"], "full", recompute=True)
    assert measured == [("quick", {}), ("full", {"policies": ["ppo-CartPole-v1"]}), ("full", {})]


@pytest.mark.parametrize("load", [load_records, load_runs])
def test_records_that_are_not_shown_are_told_of(load, tmp_path, capsys):
    store = ResultStore(tmp_path)
    for seed in (0, 0, 1):
        cell = {"policy": "ppo-CartPole-v1", "env_id": "CartPole-v1", "seed": seed}
        write_record(store, "qat", cell, {"episodes": len(store.keys("qat", "full"))}, {})
    assert len(load(store, ["qat"])["qat"]) == 2
    assert "qat full: 1 older record not shown" in capsys.readouterr().out


def test_a_policy_without_records_is_named(store):
    with pytest.raises(QuarlError, match="'ppo-CartPol-v1'; did you mean 'ppo-CartPole-v1'"):
        load_records(store, ["ptq"], None, ["ppo-CartPol-v1"])  # nothing of that name to measure
    with pytest.raises(QuarlError, match="policy with records 'public/ppo-CartPole-v1'"):
        load_records(store, ["ptq"], None, ["public/ppo-CartPole-v1"])


def test_an_empty_choice_is_refused_and_none_is_all(store):
    with pytest.raises(QuarlError, match=r"^policies: none is named; all are if .* \(None\)$"):
        load_records(store, ["ptq"], None, [])
    with pytest.raises(QuarlError, match="^tasks: none is named"):
        load_runs(store, ["actorq"], tasks=[])


@pytest.mark.parametrize("load", [load_records, load_runs])
def test_a_text_is_neither_a_list_nor_a_switch(store, monkeypatch, load):
    monkeypatch.setattr("quarl_nb.notebook.records._measure", lambda *_: pytest.fail("measured"))
    with pytest.raises(QuarlError, match=r"is a list of names, e.g. \['mine'\], not 'mine' "):
        load(store, ["actorq"], None, "mine")
    for text in ("False", "no", 1):
        with pytest.raises(QuarlError, match=f"^recompute is True or False, not {text!r}$"):
            load(store, ["actorq"], recompute=text)


@pytest.mark.parametrize(("load", "what"), [(load_records, "policies"), (load_runs, "tasks")])
def test_what_is_no_name_and_no_profile_is_told_before_anything_is_measured(
    store, monkeypatch, load, what
):
    monkeypatch.setattr("quarl_nb.notebook.records._measure", lambda *_: pytest.fail("measured"))
    for other in (3, [3], [None], [["mine"]]):
        told = re.escape(f"{what} is a list of names, not {other}")
        with pytest.raises(QuarlError, match=f"^{told}$"):
            load(store, ["actorq"], None, other)
    for profile in ("", 0, ["full"]):
        with pytest.raises(QuarlError, match=r"unknown profile .*allowed: full, quick, smoke"):
            load(store, ["actorq"], profile, ["mine"], recompute=True)


@pytest.mark.parametrize("records", ["", 3, ["data"], True])
def test_what_is_no_folder_is_no_place_of_records(records):
    with pytest.raises(QuarlError, match="^records is the name of a folder, not "):
        open_records(records)


def test_of_several_policies_those_without_records_are_measured_unless_it_takes_hours(
    store, monkeypatch, capsys
):
    measured = []

    def measure(study, profile, *arguments, parameters, **options):
        measured.append((study.name, profile, parameters))
        return RunSummary(done=0, skipped=0, failed=1, total=1)

    monkeypatch.setattr("quarl_nb.runner.run_study", measure)
    for others in ([], ["ppo-CartPole-v1"]):
        with pytest.raises(QuarlError, match="unknown policy with records 'mine'.*; measure it: "
                           "recompute=True, or quarl-nb run ptq --set policies=mine"):
            load_records(store, ["ptq"], None, ["mine", *others])
        assert "ptq full: nothing of mine is recorded" in capsys.readouterr().out
    assert not measured
    load_records(store, ["ptq"], "quick", ["mine"])
    assert measured == [("ptq", "quick", {"policies": ["mine"]})]
    load_records(store, ["ptq"], None, ["ppo-CartPole-v1"])
    assert len(measured) == 1


def test_trainings_are_not_started_for_a_policy_without_records(store, monkeypatch):
    monkeypatch.setattr("quarl_nb.runner.run_study", lambda *_, **__: pytest.fail("it ran"))
    with pytest.raises(QuarlError, match="policy with records 'a2c-Pong"):
        load_records(store, ["ptq"], None, ["a2c-PongNoFrameskip-v4"], unasked=False)
    for name in ("03_qat_bit_sweep", "05_mixed_precision"):
        (cell,) = (c for c in read(name).cells if "load_records(" in c.source)
        assert "unasked=False" in cell.source


def test_a_task_without_records_is_named(tmp_path):
    made = ResultStore(tmp_path)
    assert load_runs(made, ["actorq"], tasks=["dm:x"])["actorq"].empty
    write_runs(made, "actorq", make_records(["Walker Stand"], ["fp32/torch"]))
    frames = load_runs(made, ["actorq", "loading"], tasks=["dm:walker-stand"])
    assert len(frames["actorq"]) and frames["loading"].empty
    with pytest.raises(QuarlError, match="task with records 'dm:walker-stnd'; did you mean"):
        load_runs(made, ["actorq"], tasks=["dm:walker-stnd"])
    for task, is_of_the_study in (("dm:humanoid-stand", True), ("Pendulum-v1", False)):
        with pytest.raises(QuarlError) as told:
            load_runs(made, ["actorq"], tasks=[task])
        command = f"measure it: recompute=True, or quarl-nb run actorq --set tasks={task}"
        assert (command in str(told.value)) == is_of_the_study


def test_a_study_that_has_no_tasks_is_read_whole_and_not_measured(tmp_path, monkeypatch, capsys):
    measured = []

    def measure(study, profile, *arguments, parameters, **options):
        measured.append((study.name, parameters))
        return RunSummary(done=1, skipped=0, failed=0, total=1)

    monkeypatch.setattr("quarl_nb.runner.run_study", measure)
    made = ResultStore(tmp_path)
    write_runs(made, "actorq", make_records(["Walker Stand", "Cartpole (Gym)"], ["fp32/torch"]))
    cell = {"algo": "dqn", "env_id": "Pendulum-v1", "variant": "int8", "width": 64, "seed": 0}
    write_record(made, "actorq_variants", cell, {}, {"returns": [1.0]})
    tasks = ["dm:walker-stand"]
    frames = load_runs(made, ["actorq", "actorq_variants"], None, tasks, recompute=True)
    assert measured == [("actorq", {"tasks": tasks})]
    assert {*frames["actorq"]["env_id"]} == {*tasks} and len(frames["actorq_variants"]) == 1
    assert "actorq_variants full: left out" in capsys.readouterr().out
    with pytest.raises(QuarlError, match="unknown task with records 'Pendulum-v1'"):
        load_runs(made, ["actorq", "actorq_variants"], tasks=["Pendulum-v1"])
    load_runs(made, ["actorq_variants"], recompute=True)
    assert measured[1:] == [("actorq_variants", {})]


def test_a_profile_that_there_is_not_is_named(store):
    with pytest.raises(QuarlError, match="unknown profile 'ful'; did you mean 'full'"):
        load_runs(store, ["actorq"], "ful")
    for tasks in (None, ["dm:walker-stand"]):
        with pytest.raises(QuarlError, match="unknown profile.* 'ful'; did you mean 'full'"):
            load_runs(store, ["actorq"], "ful", tasks, recompute=True)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [("00_tour", {"policy": "dqn-CartPol-v1"}, "did you mean 'dqn-CartPole-v1'"),
     ("01_ptq_tables", {"seed": -1}, "seed must be from 0"),
     ("08_actorq_runtime", {"batch": 0}, "batch must be at least 1, not 0"),
     ("00_tour", {"bits": []}, "how many bits are named must be at least 1, not 0"),
     ("02_sweet_spot", {"runs": 0}, "runs must be at least 1, not 0"),
     ("02_sweet_spot", {"seed": -1}, "seed must be from 0"),
     ("10_pi_deployment", {"seed": -1}, "seed must be from 0")],
)  # fmt: skip
def test_a_notebooks_own_parameters_are_checked(store, shown, name, parameters, message):
    with pytest.raises(QuarlError, match=message):
        shown(name, records=str(store.root), **parameters)


def test_runs_and_their_tasks_are_counted_in_words() -> None:
    runs = pd.DataFrame({"task": ["CartPole-v1", "CartPole-v1", "Acrobot-v1"]})
    assert count_runs(runs) == "3 runs of 2 tasks"
    assert count_runs(runs[:2]) == "2 runs of 1 task"
    assert count_runs(runs[:1]) == "1 run of 1 task"
    assert count_runs(runs[:0]) == "nothing yet"


def test_a_table_keeps_every_character_and_its_bytes():
    long = "x y" * LONG_TEXT
    table = pd.DataFrame({"short": ["1.0 [0.9, 1.1]"], "long": [long], "<b>": ["a < b"]})
    html = show_table(table).data
    assert long in html and "1.0\u00a0[0.9,\u00a01.1]" in html and "a\u00a0&lt;\u00a0b" in html
    assert html == show_table(table.copy()).data
    assert "nothing yet" in show_table(table.iloc[:0], empty="nothing yet").data
