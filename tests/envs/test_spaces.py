"""How parts of foreign observations are stored and read, and how names are found: no suite."""

import dataclasses
import subprocess
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.config.errors import ConfigError
from dtc.core.types import ArraySpec
from dtc.envs import catalog, installed
from dtc.envs.adapters import craftax, jumanji, playground, spaces, suite

BYTE, FLOAT, FLAG = jnp.uint8, jnp.float32, jnp.bool_
MAX = np.finfo(np.float32).max  # what some suites mean by infinity


@pytest.mark.parametrize(
    ("part", "stored", "encoded", "is_planes"),
    [
        (spaces.category(300), ArraySpec((), np.uint16, num_classes=300), (1, 300), False),
        (spaces.binary((5,)), ArraySpec((5,), FLAG, 0, 1), (5,), True),
        (spaces.binary((4, 5)), ArraySpec((4, 5), FLAG, 0, 1), (4, 5, 1), True),
        (spaces.binary((4, 5, 2)), ArraySpec((4, 5, 2), FLAG, 0, 1), (4, 5, 2), True),
        (spaces.box((4, 5), int, 0, 1), ArraySpec((4, 5), FLAG, 0, 1), (4, 5, 1), True),
        (spaces.image((8, 9, 3)), ArraySpec((8, 9, 3), BYTE, 0, 255), (8, 9, 3), True),
        (spaces.channels((7, 6, 2), (13, 9)), ArraySpec((7, 6, 2), BYTE, 0, 12), (7, 6, 22), True),
        (spaces.box((6,), int, 0, 8), ArraySpec((6,), BYTE, num_classes=9), (6, 9), False),
        (spaces.box((6, 4), int, 0, 5), ArraySpec((6, 4), BYTE, num_classes=6), (6, 4, 6), False),
        (spaces.box((), int, 0, 100), ArraySpec((), BYTE, 0, 100), (1,), False),
        (spaces.box((3,), int, -1, 9), ArraySpec((3,), jnp.int32, -1, 9), (3,), False),
        (spaces.box((), int), ArraySpec((), jnp.int32), (1,), False),
        (
            spaces.box((2, 1), float, -1, [[1], [3]]),
            ArraySpec((2, 1), FLOAT, -1, ((1,), (3,))),
            (2,),
            False,
        ),
        (spaces.box((2,), int, [-1, -2], 9), ArraySpec((2,), jnp.int32, (-1, -2), 9), (2,), False),
        (
            spaces.box((2,), float, [-MAX, -np.inf], [MAX, 2]),
            ArraySpec((2,), FLOAT, None, (np.inf, 2)),
            (2,),
            False,
        ),
    ],
)
def test_a_part_is_stored_compactly_and_read_by_its_kind(part, stored, encoded, is_planes):
    assert part.spec == stored and spaces.is_planes(part) == is_planes
    x = jax.eval_shape(lambda: spaces.encode(part.spec.zeros(), part))
    assert (x.shape, x.dtype) == (encoded, jnp.float32)


def test_channels_are_one_one_hot_beside_the_other():
    part = spaces.channels((1, 2, 2), (3, 2))
    found = spaces.encode(jnp.array([[[2, 0], [0, 1]]], jnp.uint8), part)
    assert found.tolist() == [[[0, 0, 1, 1, 0], [1, 0, 0, 0, 1]]]


def test_bytes_are_scaled_to_one():
    image = spaces.encode(jnp.full((1, 1, 3), 51, jnp.uint8), spaces.image((1, 1, 3)))
    np.testing.assert_allclose(image, np.full((1, 1, 3), 0.2), rtol=1e-6)
    assert spaces.encode(jnp.uint8(25), spaces.box((), np.int32, 0, 100)).tolist() == [0.25]


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_the_end_of_the_integers_that_are_stored_is_no_bound(dtype):
    found = spaces.box((2,), dtype, [0, 0], [10, np.iinfo(np.int32).max]).spec
    assert (found.low, found.high) == (0.0, (10.0, np.inf))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_the_ends_of_a_wide_integer_are_no_bounds(dtype):
    ends = np.iinfo(dtype)
    counts = spaces.box((2,), dtype, np.zeros(2), np.full(2, ends.max)).spec
    assert (counts.low, counts.high) == (0.0, None)
    mixed = spaces.box((2,), dtype, [ends.min, 0], [7, ends.max]).spec
    assert (mixed.low, mixed.high) == ((-np.inf, 0.0), (7.0, np.inf))
    assert spaces.box((2,), np.uint8, 0, 255).spec.high == 255


def test_a_box_of_actions_has_one_bound_or_one_for_each_dim():
    assert spaces.vector(-1, 1, (2,)) == ArraySpec((2,), jnp.float32, -1.0, 1.0)
    assert spaces.vector([-1, -2], 3, (2,)) == ArraySpec((2,), jnp.float32, (-1.0, -2.0), 3.0)
    assert spaces.vector(-np.inf, 1, (2,)) == ArraySpec((2,), jnp.float32, -1.0, 1.0)
    assert spaces.vector(-np.inf, np.inf, (2,)) == ArraySpec((2,), jnp.float32, -1.0, 1.0)
    half = spaces.vector([0.5, -np.inf, 4.0], [2.0, np.inf, np.inf], (3,))
    assert half == ArraySpec((3,), jnp.float32, (0.5, -1.0, 4.0), (2.0, 1.0, 6.0))
    with pytest.raises(ValueError, match=r"^it has actions of shape \[\], but dtc needs one of n"):
        spaces.vector(0, 1, ())


class Place(NamedTuple):
    row: int
    column: int


@dataclasses.dataclass
class Seen:
    place: Place
    walls: dict


def test_fields_of_an_observation_become_leaves():
    assert spaces.named(3) == {"obs": 3}
    found = spaces.named(Seen(Place(1, 2), {"north": 3}))
    assert found == {"place_row": 1, "place_column": 2, "walls_north": 3}


# Names, without the suites.


def test_names_are_read_from_source(tmp_path):
    path = tmp_path / "registry.py"
    path.write_text(
        'register(id="A-v0", x=1)\nregister("B-v1", f)\n_envs = {"a": f, "b": g}\nother("C")'
    )
    assert installed.arguments(path, "register") == ["A-v0", "B-v1"]
    assert installed.keys(path, "_envs") == ["a", "b"] and installed.keys(path, "_cfgs") == []


SUITES = ["gymnasium", "gymnax", "jumanji", "brax", "craftax", "navix", "xminigrid", "playground"]


def test_every_suite_is_in_the_catalog():
    assert set(SUITES) < set(catalog.FAMILIES)


@pytest.mark.parametrize("family", SUITES)
def test_a_missing_suite_is_reported_with_what_to_install(family, monkeypatch):
    monkeypatch.setattr(suite.importlib.util, "find_spec", lambda name: None)
    name = "Symbolic" if family == "craftax" else "anything"
    with pytest.raises(ValueError) as error:
        catalog.find(f"{family}/{name}")
    package = "mujoco_playground" if family == "playground" else family
    assert str(error.value) == (
        f"env.name={family}/{name}: {package} is not installed. Use pip install 'dtc[{family}]', "
        f"in a clone '.[{family}]'."
    )


def test_an_unknown_id_is_refused_with_the_nearest_one(monkeypatch):
    with pytest.raises(
        ValueError, match=r"^not an environment of craftax; did you mean craftax/Sym"
    ):
        craftax.find("Symbolik")
    with pytest.raises(
        ValueError, match=r"^not an environment of craftax; it has Classic-Symbolic, "
    ):
        craftax.find("zzz")


def test_what_needs_a_download_is_refused_with_the_reason(monkeypatch):
    names = {"locomotion": ["Go1"], "manipulation": [], "dm_control_suite": ["CartpoleBalance"]}
    monkeypatch.setattr(playground, "_names", names.get)
    assert playground.find("CartpoleBalance").args == ("CartpoleBalance",)
    with pytest.raises(
        ValueError, match=r"^locomotion environments of playground download.*Use one"
    ):
        playground.find("Go1")


def test_levels_that_jumanji_would_download_are_refused_by_name(monkeypatch):
    monkeypatch.setattr(jumanji, "installed_ids", lambda: ["Maze-v0", "Sokoban-v0"])
    assert jumanji.find("Maze-v0").args == ("Maze-v0",)
    with pytest.raises(ConfigError, match=r"^Sokoban-v0 downloads its levels .*Use jumanji"):
        jumanji.find("Sokoban-v0")


def test_a_module_that_a_suite_needs_and_lacks_is_named(tmp_path, monkeypatch):
    (tmp_path / "some_suite.py").write_text("import nothing_like_it.inner")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as error:
        suite.load("some_suite", "some_suite", "extra")
    assert str(error.value) == (
        "nothing_like_it, which some_suite needs, is not installed. "
        "Use pip install 'dtc[extra]', in a clone '.[extra]'."
    )


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (ConfigError("it has two players. Use another."), "{}: it has two players. Use another."),
        (OSError("no\nnetwork"), "{} fails with OSError: no network"),
    ],
)
def test_what_keeps_a_suite_from_making_a_game_is_told_in_one_sentence(raised, told, monkeypatch):
    def fail():
        raise raised

    monkeypatch.setattr(catalog.names, "full", lambda name: f"gymnax/{name}")
    monkeypatch.setitem(catalog.FAMILIES, "gymnax", lambda env_id: fail)
    with pytest.raises(ConfigError) as error:
        catalog.make("Game-v0")
    assert str(error.value) == told.format("env.name=gymnax/Game-v0")


def test_importing_dtc_imports_no_suite():
    program = f"""
import sys
import dtc
from dtc.envs import catalog
from dtc.commands import train
found = {{"mujoco", "mujoco_playground", *{SUITES}}} & set(sys.modules)
assert not found, found
"""
    subprocess.run([sys.executable, "-c", program], check=True)
