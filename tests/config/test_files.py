import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pip_flower.config.compose import Selection
from pip_flower.config.files import available, conf_directory
from pip_flower.config.overrides import absolute_paths, parse_overrides
from pip_flower.config.schema import ConfigError
from pip_flower.data.population import active_clients, joined
from pip_flower.method.configuration import load_config, restore_config
from pip_flower.method.registry import entries


def load(**chosen: object) -> object:
    return load_config(Selection(**chosen))  # type: ignore[arg-type]


def test_later_sources_win() -> None:
    assert load().federation.clients == 10  # conf/federation/small.yaml over base.yaml
    assert load().schedule.tasks == 5  # the experiment over base.yaml
    assert load(overrides="federation.clients=12").federation.clients == 12
    assert load(overrides="seed=1", seed=3).seed == 3


@pytest.mark.parametrize(
    ("experiment", "method", "rate"),
    [
        ("digits", "pip-dualprompt", 0.005),
        # It builds on Fed-DualPrompt, the others on PIP-DualPrompt.
        ("digits", "fed-l2p", 0.05),
        ("digits", "ablation-a", 0.005),
        ("digits", "pip-align", 0.005),
        ("digits", "frozen-head", 0.005),
        ("digits", "joint", 0.005),
        # SGD's own, which no rate of Adam's replaces.
        ("digits", "fedavg", 0.02),
        ("digits", "icarl", 0.02),
        ("cifar100", "pip-l2p", 0.02),
        ("cifar100", "fedprox", 0.02),
    ],
)
def test_the_learning_rate_is_the_methods(experiment: str, method: str, rate: float) -> None:
    assert load(experiment=experiment, method=method).training.learning_rate == rate


def test_overrides_give_the_learning_rate_of_a_method_or_of_the_run() -> None:
    by_method = "learning_rates.fedavg=0.3"
    assert load(method="fedavg", overrides=by_method).training.learning_rate == 0.3
    assert load(method="fedprox", overrides=by_method).training.learning_rate == 0.3
    assert load(method="joint", overrides=by_method).training.learning_rate == 0.005
    both = f"{by_method} training.learning_rate=0.4"
    assert load(method="fedavg", overrides=both).training.learning_rate == 0.4
    assert load(overrides="training.learning_rate=0.4").training.learning_rate == 0.4


def test_every_method_has_a_file_and_every_file_a_method() -> None:
    assert {load(method=label).method.name for label in available("method")} == set(entries())


def test_ablations_are_switches_of_pip() -> None:
    switches = {
        label: (options.prototypes.share, options.weighting, options.head)
        for label in (f"ablation-{letter}" for letter in "abcdefg")
        if (options := load(method=label).method.options)
    }
    assert len(set(switches.values())) == 7
    assert switches["ablation-a"] == (False, "uniform", "private")
    assert switches["ablation-d"] == (True, "participation-samples", "private")
    assert switches["ablation-g"] == (False, "participation-samples", "shared")
    assert load(method="ablation-b").digest() != load(method="ablation-f").digest()


@pytest.mark.parametrize("experiment", available("experiment"))
@pytest.mark.parametrize("method", available("method"))
def test_every_experiment_and_method_composes(experiment: str, method: str) -> None:
    config = load(experiment=experiment, method=method)
    assert config.method.label == method


def test_base_lists_every_key_there_is() -> None:
    base = yaml.safe_load((conf_directory() / "base.yaml").read_text())
    resolved = load().as_mapping()
    resolved.pop("method")
    resolved.pop("experiment")
    # The one of the run's method has become training.learning_rate.
    assert base.pop("learning_rates") == {}
    assert _keys(base) == _keys(resolved)


def test_every_key_of_base_has_a_comment() -> None:
    for line in (conf_directory() / "base.yaml").read_text().splitlines():
        if ":" in line and not line.startswith("#") and not line.rstrip().endswith(":"):
            assert "#" in line or "batch_size" in line, line


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            "training.learning_rat=1",
            "training.learning_rat (set in overrides): unknown key with value 1. Did you mean",
        ),
        ("learning_rates.pip=0.1", "learning_rates.pip (set in overrides): is not the name of a method"),
        ("learning_rates=0.1", "learning_rates (set in overrides): 0.1 is not a mapping"),
        ("learning_rates.pip-dualprompt=-1", "training.learning_rate (set in overrides): -1.0 is too small"),
        ("training=1", "training (set in overrides): expected a section with keys, got 1"),
        ("training.learning_rate=fast", "training.learning_rate (set in overrides): 'fast' is not a number"),
        ("training.epochs=0", "training.epochs (set in overrides): 0 is too small. Give 1 or more"),
        ("training.epochs=1.5", "training.epochs (set in overrides): 1.5 is not a whole number"),
        (
            "federation.clients_per_round=11",
            "11 clients cannot be drawn from 10. Give at most federation.clients = 10",
        ),
        (
            "federation.clients=3",
            "federation.clients_per_round (set in conf/federation/small.yaml): 4 clients",
        ),
        ("schedule.rounds=21", "21 rounds do not divide into 5 tasks. Give a multiple of schedule.tasks = 5"),
        ("schedule.tasks=4", "schedule.tasks (set in overrides): 4 tasks do not divide the 10 classes"),
        (
            "schedule.base_classes=4",
            "schedule.base_classes (set in overrides): 4 classes first leave 6 for 4 further tasks",
        ),
        (
            "dataset.class_order=given dataset.given_order=[0,1,2]",
            "3 labels are not an order of all 10 classes. Give every label from 0 to 9 once",
        ),
        ("dataset.given_order=[0,1]", "is not used with dataset.class_order=label"),
        ("dataset.class_names=[cat,cat]", "dataset.class_names (set in overrides): has a name twice"),
        ("population.initial=11", "11 clients cannot be there from the start: there are 10 in all"),
        ("population.initial=3", "4 clients cannot be drawn from the 3 of the first task"),
        ("partition.scheme=local", "dataset.class_names (set in conf/base.yaml): is empty, but a node that"),
        ("partition.alpha=0", "partition.alpha (set in overrides): 0.0 is too small. Give 0.001 or more"),
        (
            "fidelity=exact",
            "fidelity (set in overrides): 'exact' is not one of the choices. Choose from: paper",
        ),
        ("method.prompt.structure=deep", "method.prompt.structure (set in overrides): 'deep' is not one of"),
        (
            "method.prompt.expert_blocks=[1,2]",
            "method.prompt.expert_blocks (set in overrides): [1, 2] gives a block a second prefix.",
        ),
        (
            "method.prompt.general_blocks=[0,0]",
            "method.prompt.general_blocks (set in overrides): [0, 0] gives",
        ),
        ("method.name=pip-duelprompt", "'pip-duelprompt' is not known. Choose from: "),
        ("dataset.crop_scale=[0.9,0.1]", "dataset.crop_scale (set in overrides): 0.9 is above 0.1"),
        ("backbone.weights=vit.pth", "'vit.pth' is a relative path"),
        ("federation=10", "federation (set in overrides): expected a section with keys, got 10"),
        ("epochs", "overrides: 'epochs' is not key=value"),
        ('seed="1', "No closing quotation"),
        ("seed=[1", "seed (set in overrides): '[1' is not valid YAML"),
    ],
)
def test_bad_configurations_get_an_error_that_helps(overrides: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(overrides=overrides)
    assert told in str(error.value)


def test_unknown_files_are_named() -> None:
    with pytest.raises(ConfigError, match=r"there is no conf/experiment/none\.yaml. Choose from: .*digits"):
        load(experiment="none")
    with pytest.raises(ConfigError, match=r"there is no conf/method/none\.yaml"):
        load(method="none")


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of conf/ to add files to."""
    copy = tmp_path / "conf"
    shutil.copytree(conf_directory(), copy)
    monkeypatch.setattr("pip_flower.config.files.conf_directory", lambda: copy)
    return copy


def test_an_experiment_cannot_replace_the_learning_rate_of_every_method(conf: Path) -> None:
    (conf / "experiment" / "mine.yaml").write_text(
        "defaults: {dataset: digits, federation: small, method: fedavg}\n"
        "schedule: {tasks: 5, rounds: 20}\ntraining: {learning_rate: 0.005}\n"
    )
    with pytest.raises(ConfigError) as error:
        load(experiment="mine")
    assert "training.learning_rate (set in conf/experiment/mine.yaml): is a method's own" in str(error.value)
    assert "learning_rates.<method>" in str(error.value)


def test_the_growing_population_is_that_of_glfc(conf: Path) -> None:
    (conf / "experiment" / "mine.yaml").write_text(
        "defaults: {dataset: cifar100, federation: glfc, method: glfc}\nschedule: {tasks: 10, rounds: 100}\n"
    )
    config = load(experiment="mine")
    assert [joined(config, task) for task in range(10)] == list(range(30, 121, 10))
    learning = [active_clients(config, task) for task in range(3)]
    # Nine in ten of 30 and ten more; of these 37 all but three, and ten more.
    assert [len(clients) for clients in learning] == [30, 37, 44]
    assert set(range(30, 40)) <= set(learning[1].tolist())
    assert config.partition.samples == "shared"


def test_the_nearest_file_with_a_learning_rate_decides(conf: Path) -> None:
    (conf / "method" / "slow.yaml").write_text(
        "# Slow.\ndefaults: {method: pip-dualprompt}\ntraining: {learning_rate: 0.001}\n"
    )
    (conf / "method" / "slower.yaml").write_text("# Slower.\ndefaults: {method: slow}\n")
    assert load(method="slow").training.learning_rate == 0.001
    assert load(method="slower").training.learning_rate == 0.001
    assert load(method="slower", overrides="learning_rates.slow=0.1").training.learning_rate == 0.1
    assert load(overrides="learning_rates.slow=0.1").training.learning_rate == 0.005


def test_a_file_builds_on_another_of_its_group_and_on_a_prompt(conf: Path) -> None:
    (conf / "method" / "mine.yaml").write_text(
        "defaults:\n  method: pip-l2p\nmethod:\n  weighting: uniform\n"
    )
    mine, parent = load(method="mine").method, load(method="pip-l2p").method
    assert mine.name == parent.name == "pip"
    assert mine.options == replace(parent.options, weighting="uniform")
    (conf / "method" / "other.yaml").write_text("defaults:\n  method: mine\n  prompt: dualprompt\n")
    other = load(method="other").method.options
    assert other.weighting == "uniform"
    assert other.prompt == load(method="pip-dualprompt").method.options.prompt != parent.options.prompt


@pytest.mark.parametrize(
    ("defaults", "told"),
    [
        ("method: b", "goes round in circles: a -> b -> a"),
        ("method: a", "goes round in circles: a -> a"),
        ("prompts: l2p", "defaults.prompts (set in conf/method/a.yaml): is not a group"),
        ("prompt: l3p", "there is no conf/prompt/l3p.yaml"),
        ("method: pip-l3p", "there is no conf/method/pip-l3p.yaml"),
    ],
)
def test_files_that_build_on_nothing_are_named(conf: Path, defaults: str, told: str) -> None:
    (conf / "method" / "a.yaml").write_text(f"defaults:\n  {defaults}\nmethod:\n  name: pip\n")
    (conf / "method" / "b.yaml").write_text("defaults:\n  method: a\n")
    with pytest.raises(ConfigError) as error:
        load(method="a")
    assert told in str(error.value)


def test_overrides_are_yaml_values() -> None:
    parsed = parse_overrides("a.b=1 a.c=[1,2] d='x y' e=")
    assert parsed == {"a": {"b": 1, "c": [1, 2]}, "d": "x y", "e": ""}


def test_the_digest_ignores_paths_and_speed() -> None:
    config = load()
    assert load(overrides="runtime.threads=2", data_dir="/somewhere").digest() == config.digest()
    assert load(seed=1).digest() != config.digest()
    assert load(overrides="method.prompt.matching=0.5").digest() != config.digest()


def _keys(values: object) -> object:
    return {k: _keys(v) for k, v in values.items()} if isinstance(values, dict) else None


def test_relative_paths_of_overrides_can_be_made_absolute(tmp_path: Path) -> None:
    text = absolute_paths(
        "backbone.weights='my vit.pth' dataset.data_dir=/data training.epochs=2 a=[1,2]", tmp_path
    )
    assert parse_overrides(text) == {
        "backbone": {"weights": str(tmp_path / "my vit.pth")},
        "dataset": {"data_dir": "/data"},
        "training": {"epochs": 2},
        "a": [1, 2],
    }


@pytest.mark.parametrize("method", ["pip-align", "fed-l2p", "icarl", "ablation-b"])
def test_a_saved_configuration_is_restored(method: str) -> None:
    config = load_config(Selection(method=method, seed=5))
    saved = yaml.safe_load(yaml.safe_dump(config.as_mapping()))
    assert restore_config(saved) == config


def test_a_released_run_has_the_learning_rate_of_the_release_whatever_the_experiment_says() -> None:
    for experiment in ("digits", "cifar100"):
        released = load(experiment=experiment, overrides="fidelity=released").training
        assert (released.learning_rate, released.batch_size) == (0.015, 128)
    assert load(overrides="fidelity=released training.learning_rate=0.1").training.learning_rate == 0.1
