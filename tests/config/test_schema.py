from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from pip_flower.config.schema import Bounds, ConfigError, as_mapping, build


@dataclass(frozen=True)
class Circle:
    shape: Literal["circle"]
    radius: Annotated[float, Bounds(0, exclusive_minimum=True)]


@dataclass(frozen=True)
class Box:
    shape: Literal["box"]
    sides: Annotated[tuple[int, int], Bounds(1, 9)]


@dataclass(frozen=True)
class Drawing:
    name: str
    visible: bool
    part: Circle | Box
    layers: tuple[int, ...]


GOOD = {"name": "x", "visible": True, "part": {"shape": "circle", "radius": 2}, "layers": [1, 2]}


def test_builds_nested_dataclasses_and_back() -> None:
    drawing = build(Drawing, GOOD)
    assert drawing == Drawing("x", True, Circle("circle", 2.0), (1, 2))
    assert build(Drawing, as_mapping(drawing)) == drawing


def test_a_union_is_told_apart_by_its_tag() -> None:
    part = {"shape": "box", "sides": [1, 2]}
    assert build(Drawing, GOOD | {"part": part}).part == Box("box", (1, 2))


def test_a_number_written_without_a_dot_is_a_number() -> None:
    # YAML 1.1 reads 1e-3 as a string.
    assert build(Circle, {"shape": "circle", "radius": "1e-3"}).radius == 0.001


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": 3}, "name: 3 is not text"),
        ({"visible": "yes"}, "visible: 'yes' is not true or false"),
        ({"visible": 1}, "visible: 1 is not true or false"),
        ({"layers": [True]}, "layers.0: True is not a whole number"),
        ({"layers": 3}, "layers: 3 is not a list"),
        (
            {"part": {"shape": "star"}},
            "part.shape: 'star' is not one of the choices. Choose from: circle, box",
        ),
        ({"part": {"shape": "circle", "radius": 0}}, "part.radius: 0.0 is too small. Give above 0"),
        ({"part": {"shape": "circle", "radius": float("nan")}}, "part.radius: nan is not finite"),
        ({"part": {"shape": "box", "sides": [1, 10]}}, "part.sides: (1, 10) is too large. Give 9 or less"),
        ({"part": {"shape": "box", "sides": [1]}}, "part.sides: [1] has 1 entries. Give exactly 2"),
        ({"part": 5}, "part.shape: None is not one of the choices"),
        ({"lyers": []}, "lyers: unknown key with value []. Did you mean layers?"),
    ],
)
def test_errors_name_key_value_and_remedy(change: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(Drawing, GOOD | change)
    assert told in str(error.value)


def test_a_missing_key_is_an_error() -> None:
    with pytest.raises(ConfigError, match="visible: is missing"):
        build(Drawing, {"name": "x"})


def test_errors_name_the_source() -> None:
    with pytest.raises(ConfigError, match=r"name \(set in a\.yaml\)"):
        build(Drawing, GOOD | {"name": 1}, origins={"name": "a.yaml"})
