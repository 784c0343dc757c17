"""Methods of other packages; each is looked at by a process of its own, whose registry ends with it."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parents[2]

METHOD = """
from dataclasses import dataclass
from pip_flower.method import register
from pip_flower.methods.frozen_head import FrozenHead

@dataclass(frozen=True)
class Options:
    strength: float = 0.5

class Theirs(FrozenHead):
    pass

register("{name}", title="Their {name}", options=Options, method=Theirs)
"""


def package(site: Path, name: str, code: str, version: str = "1.0") -> Path:
    """An installed distribution whose entry point is the module `<name>_methods.main`."""
    module = site / f"{name}_methods"
    module.mkdir(parents=True)
    (module / "__init__.py").touch()
    (module / "main.py").write_text(code)
    about = site / f"{name}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (about / "entry_points.txt").write_text(f"[pip_flower.methods]\n{name} = {name}_methods.main\n")
    return module


def ask(site: Path, script: str) -> list[str]:
    """What a process that finds `site` prints."""
    given = "from pip_flower.config.compose import Selection\n" + dedent(script)
    environment = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", given], env=environment, cwd=site, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def refusal(site: Path) -> str:
    """The error of looking for methods."""
    said = ask(
        site,
        """
        from pip_flower.config.schema import ConfigError
        from pip_flower.method.registry import entries
        for _ in range(2):  # A second look must not find half of it.
            try:
                entries()
            except ConfigError as error:
                print(str(error))
        """,
    )
    assert len(said) == 2
    assert said[0] == said[1]
    return said[0]


def test_a_method_of_another_package_is_found_by_name(tmp_path: Path) -> None:
    package(tmp_path, "x", METHOD.format(name="theirs"))
    said = ask(
        tmp_path,
        """
        from pip_flower.method.configuration import method_labels
        from pip_flower.method.registry import entry
        print(entry("theirs").package, "|", entry("fedavg").package)
        print(method_labels()["theirs"])
        """,
    )
    assert said == ["x 1.0 | pip-flower", "Their theirs"]


def test_it_comes_from_its_package_whoever_imports_it_first(tmp_path: Path) -> None:
    package(tmp_path, "x", METHOD.format(name="theirs"))
    package(tmp_path, "a", "import x_methods.main\n" + METHOD.format(name="others"))
    look = """
        from pip_flower.method.configuration import load_config
        from pip_flower.method.registry import entry
        print(entry("theirs").package, "|", load_config(Selection(method="theirs")).method.name)
        """
    assert ask(tmp_path, look) == ["x 1.0 | theirs"]
    assert ask(tmp_path, "import x_methods.main\n" + dedent(look)) == ["x 1.0 | theirs"]


def test_without_a_file_the_defaults_of_its_options_hold(tmp_path: Path) -> None:
    package(tmp_path, "x", METHOD.format(name="theirs"))
    said = ask(
        tmp_path,
        """
        from pip_flower.method.configuration import load_config, restore_config
        config = load_config(Selection(method="theirs"))
        print(config.method.label, config.method.name, config.method.options.strength)
        print(load_config(Selection(method="theirs", overrides="method.strength=2")).method.options.strength)
        print(restore_config(config.as_mapping()) == config)
        """,
    )
    assert said == ["theirs theirs 0.5", "2.0", "True"]


def test_its_own_check_refuses_a_configuration_before_anything_is_loaded(tmp_path: Path) -> None:
    check = """
from pip_flower.method import ConfigError

def check(config):
    if config.method.options.strength > config.training.epochs:
        raise ConfigError("method.strength", f"{config.method.options.strength} is too strong", "Give less")

Theirs.check = check
"""
    package(tmp_path, "x", METHOD.format(name="theirs") + check)
    said = ask(
        tmp_path,
        """
        from pip_flower.config.schema import ConfigError
        from pip_flower.method.configuration import load_config
        try:
            load_config(Selection(method="theirs", overrides="method.strength=3"))
        except ConfigError as error:
            print(error)
        print(load_config(Selection(method="theirs", overrides="method.strength=2")).method.options.strength)
        """,
    )
    assert said == ["method.strength (set in overrides): 3.0 is too strong. Give less", "2.0"]


def test_files_beside_the_module_are_its_variants(tmp_path: Path) -> None:
    module = package(tmp_path, "x", METHOD.format(name="theirs"))
    (module / "theirs.yaml").write_text("method: {name: theirs, strength: 1}\n")
    (module / "strong.yaml").write_text(
        "# More of it.\ndefaults: {method: theirs}\nmethod: {strength: 9}\ntraining: {epochs: 3}\n"
    )
    said = ask(
        tmp_path,
        """
        from pip_flower.config.schema import ConfigError
        from pip_flower.method.configuration import load_config, method_labels
        print(load_config(Selection(method="theirs")).method.options.strength)
        strong = load_config(Selection(method="strong"))
        print(strong.method.label, strong.method.name, strong.method.options.strength, strong.training.epochs)
        print(method_labels()["strong"])
        try:
            load_config(Selection(method="stronger"))
        except ConfigError as error:
            print("strong, " in str(error), "theirs" in str(error))
        """,
    )
    assert said == ["1.0", "strong theirs 9.0 3", "More of it.", "True True"]


def test_a_broken_package_is_named_with_what_to_do(tmp_path: Path) -> None:
    package(tmp_path, "x", "import nowhere_to_be_found")
    said = refusal(tmp_path)
    assert "the methods of x 1.0 cannot be loaded" in said
    assert "No module named 'nowhere_to_be_found'" in said
    assert said.endswith("Mend or uninstall x 1.0")


def test_an_entry_point_without_its_module_is_named_too(tmp_path: Path) -> None:
    module = package(tmp_path, "x", "")
    for file in module.iterdir():
        file.unlink()
    module.rmdir()
    assert "the methods of x 1.0 cannot be loaded" in refusal(tmp_path)


def test_a_name_that_is_taken_names_both_packages(tmp_path: Path) -> None:
    package(tmp_path, "x", METHOD.format(name="theirs"))
    package(tmp_path, "y", METHOD.format(name="theirs"), version="2.5")
    said = refusal(tmp_path)
    assert "method 'theirs' is registered twice, by x 1.0 and by y 2.5" in said


def test_a_name_of_ours_is_taken(tmp_path: Path) -> None:
    package(tmp_path, "x", METHOD.format(name="fedavg"))
    assert "method 'fedavg' is registered twice, by pip-flower and by x 1.0" in refusal(tmp_path)
