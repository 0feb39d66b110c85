"""Figures: drawn from any part of a run, and showing the data given."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from dtc.envs import catalog
from dtc.host.figures import codec, compare, curves, episode, film, heatmaps, look, style
from dtc.host.figures.clip import Clip
from dtc.host.figures.look import Look

METRICS = [
    "curiosity/novelty",
    "curiosity/novelty_replay",
    "curiosity/competence",
    "curiosity/surprise",
    "curiosity/boredom",
    "curiosity/horizon",
    "latent/kl",
    "loss/dyn",
    "latent/posterior_entropy",
    "latent/prior_entropy",
    "task/entropy",
    "explore/entropy",
    "task/extrinsic/return",
]


def records(num, names=METRICS):
    """Log steps with smooth metrics, every other one an evaluation."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(num):
        rows.append({"env_steps": 100 * i} | {name: rng.random() + 0.1 for name in names})
        rows.append({"env_steps": 100 * i, "eval/value": i + 1.0, "eval/value_bias": 0.5})
    return rows


def pixels(path):
    """[height, width, 3] in [0, 1]."""
    return np.asarray(Image.open(path).convert("RGB"), np.float32) / 255


def count(path, color):
    """Pixels of a color."""
    return int((np.abs(pixels(path) - to_rgb(color)).max(-1) < 0.02).sum())


def draw_curiosity(path, rows):
    curves.curiosity(path, rows, "title")


def draw_model(path, rows):
    curves.model(path, rows, "title", max_entropy=1.6)


def test_a_curve_of_one_record_is_a_dot_on_an_axis_from_zero(tmp_path):
    one = [{"env_steps": 1024, "eval/return": 3.0} | {name: 0.5 for name in METRICS}]
    curves.learning_curve(tmp_path / "one.png", one, {}, "title")
    for color in (style.BLUE, style.PURPLE, style.ORANGE, style.GREEN):
        assert count(tmp_path / "one.png", color) > 20, color
    ax = Figure().subplots()
    ax.plot([1024], [3.0], "o")
    curves.from_zero(ax)
    assert ax.get_xlim()[0] == 0 and ax.get_xlim()[1] > 1024


def test_losses_within_a_decade_have_labels(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(style, "save", lambda figure, path: drawn.append(figure))
    for least in (0.49, 0.001):
        rows = [{"env_steps": x, "loss/value": y} for x, y in ((1, least), (2, 0.5))]
        curves.policy(tmp_path / "policy.png", rows, "title")
    scales = [figure.axes[0].get_yscale() for figure in drawn]
    assert scales == ["linear", "log"]


@pytest.mark.slow
@pytest.mark.parametrize("draw", [draw_curiosity, draw_model])
def test_curves_are_drawn_from_any_prefix_of_a_run(draw, tmp_path):
    for num in (0, 1, 3):
        draw(tmp_path / f"{num}.png", records(num))
        assert pixels(tmp_path / f"{num}.png").min() < 0.3  # text at the least


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "name", "color"),
    [
        (draw_curiosity, "curiosity/novelty", style.PURPLE),
        (draw_curiosity, "curiosity/competence", style.GREEN),
        (draw_curiosity, "curiosity/surprise", style.RED),
        (draw_curiosity, "curiosity/boredom", style.ORANGE),
        (draw_curiosity, "curiosity/horizon", style.BLUE),
        (draw_model, "latent/kl", style.BLUE),
        (draw_model, "latent/prior_entropy", style.ORANGE),
        (draw_model, "explore/entropy", style.ORANGE),
    ],
)
def test_a_metric_is_a_line_of_its_color(draw, name, color, tmp_path):
    without = [name_ for name_ in METRICS if name_ != name]
    for label, names in (("with", METRICS), ("without", without)):
        draw(tmp_path / f"{label}.png", records(9, names))
    assert count(tmp_path / "with.png", color) > count(tmp_path / "without.png", color) + 300


def test_a_non_finite_metric_leaves_a_gap(tmp_path):
    broken = [*records(3), {"env_steps": 300, "eval/value": None, "eval/value_bias": None}]
    draw_model(tmp_path / "gap.png", broken)
    assert count(tmp_path / "gap.png", style.BLUE) > 300


@pytest.mark.slow
def test_the_map_shows_each_cell_and_leaves_the_others_grey(tmp_path):
    visits, novelty = np.zeros((4, 4)), np.full((4, 4), np.nan)
    heatmaps.grid_map(tmp_path / "empty.png", visits, novelty, "title")
    assert count(tmp_path / "empty.png", heatmaps.UNSEEN) > 10_000
    grey = []
    for seen, known in ((2, 1), (4, 3)):  # cells of 16, with the same scales
        visits[0, :seen], novelty[0, :known] = np.geomspace(1, 1000, seen), 0.2
        heatmaps.grid_map(tmp_path / "map.png", visits, novelty, "title")
        grey.append(count(tmp_path / "map.png", heatmaps.UNSEEN))
    assert grey[1] / grey[0] == pytest.approx((12 + 13) / (14 + 15), abs=0.01)


def test_the_salience_figure_shows_a_change_of_one_token(tmp_path):
    weights = np.full((20, 5), 0.2)
    weights[10:] = (0.6, 0.1, 0.1, 0.1, 0.1)
    heatmaps.salience(tmp_path / "salience.png", weights, "title")
    image = pixels(tmp_path / "salience.png")
    height, width = image.shape[:2]
    row = image[height // 4]  # through the first token
    before, after = row[width // 4], row[3 * width // 4]
    np.testing.assert_allclose(after, to_rgb("#fde725"), atol=0.02)  # the largest weight
    assert np.abs(before - after).max() > 0.3


def test_the_error_of_a_class_is_the_probability_of_the_wrong_classes():
    real = np.eye(3)[np.array([[0, 2]])]
    predicted = np.array([[[0.75, 0.25, 0], [0, 0.1, 0.9]]])
    np.testing.assert_allclose(episode.error(real, predicted), [[0.25, 0.1]])


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_the_dream_figure_takes_classes(groups, tmp_path):
    rng = np.random.default_rng(0)
    real = {"cell": np.eye(7)[rng.integers(7, size=(9, groups))], "vector": rng.random((9, 2))}
    episode.open_loop(tmp_path / "dream.png", real, real, rng.random(8), 3, "title")
    only = {"vector": real["vector"]}
    episode.open_loop(tmp_path / "vector.png", only, only, rng.random(8), 3, "title")
    tall, short = (pixels(tmp_path / f"{n}.png") for n in ("dream", "vector"))
    assert len(tall) > len(short) + 100
    darkest = "#084081"  # of the classes that were there
    assert count(tmp_path / "dream.png", darkest) > 300


def test_the_learning_curve_is_drawn_from_any_prefix_of_a_run(tmp_path):
    names = ["collect/return", "curiosity/novelty", "curiosity/boredom", "eval/return"]
    for num in (0, 1, 3):
        path = tmp_path / f"{num}.png"
        curves.learning_curve(path, records(num, names), {"random": 0.5}, "title")
        assert path.stat().st_size > 1000


def test_the_dream_figure_takes_grids_and_vectors(tmp_path):
    rng = np.random.default_rng(0)
    real = {"view": np.eye(4)[rng.integers(4, size=(9, 3, 3))], "vector": rng.random((9, 5))}
    episode.open_loop(tmp_path / "dream.png", real, real, rng.random(8), 3, "title", num_frames=4)
    assert (tmp_path / "dream.png").stat().st_size > 1000


def test_planes_are_drawn_by_the_environments_own_picture(tmp_path):
    rng = np.random.default_rng(0)
    real = {"board": rng.random((9, 3, 3, 5)), "vector": rng.random((9, 2))}
    purple = np.full((8, 8, 3), (200, 0, 200), np.uint8)
    seen = []

    def picture(obs):
        seen.append({name: x.shape for name, x in obs.items()})
        return purple

    novelty, shown = rng.random(8), Look(planes=("board",), picture=picture)
    episode.open_loop(tmp_path / "dream.png", real, real, novelty, 3, "title", 4, shown)
    assert seen == 8 * [{"board": (3, 3, 5), "vector": (2,)}]
    assert count(tmp_path / "dream.png", [200 / 255, 0, 200 / 255]) > 300
    np.testing.assert_allclose(episode.error(np.zeros((1, 2, 2, 3)), 0.5, True), 0.5)

    frames = film.frames(clip_of(real, 5), shown, "caption")
    assert len(frames) == 5
    purples = (np.asarray(frames[0]) == (200, 0, 200)).all(-1).sum()
    assert purples == 2 * film.PANEL**2


def clip_of(real, num=9, has_model=True):
    """An episode of `num` steps that pays 1 a step."""
    predicted, novelty = (real, np.full(9, 0.25)) if has_model else (None, None)
    return Clip(real, np.arange(9) < num, np.ones(9), predicted, novelty, context=3)


def test_the_error_of_a_cell_is_the_probability_of_the_wrong_classes():
    real = np.eye(2)[np.zeros((1, 1, 1), int)]
    assert episode.error(real, np.array([0.75, 0.25]).reshape(1, 1, 1, 2)) == 0.25


VIEW = Look(classes={"view": ("kind 1", "kind 2", "empty", "outside")}, agent={"view": (1, 1)})


def test_a_certain_cell_has_its_color_and_an_uncertain_one_a_mixture():
    colors = look.palette(VIEW.classes["view"])
    assert len(np.unique(colors, axis=0)) == 4
    np.testing.assert_allclose(look.to_rgb(np.eye(4), colors), colors)
    np.testing.assert_allclose(look.to_rgb(np.full(4, 0.25), colors), colors.mean(0))
    np.testing.assert_allclose(look.to_rgb(np.zeros(4), colors), to_rgb(look.PALE))


def test_colours_are_those_of_the_environment_whatever_an_episode_shows():
    spec = catalog.make("feeder_ego").spec
    entries = look.legend(look.of(spec), {"view": 10})
    assert [name for name, _ in entries] == [
        *(f"kind {i}" for i in range(1, 9)),
        "empty",
        "outside",
    ]
    assert [color for _, color in entries[:8]] == list(style.CYCLE[:8])
    assert look.of(catalog.make("noisytv").spec).classes == spec.classes


def view_of(cell, num=9):
    """Observations of a view in which every cell has this class."""
    return {"view": np.eye(4)[np.full((num, 3, 3), cell)], "vector": np.zeros((num, 2))}


def test_a_film_marks_the_agent_and_is_large_enough():
    [frame, *_] = film.frames(clip_of(view_of(0)), VIEW, "caption")
    image = np.asarray(frame)
    blue = (image == np.array([0x2A, 0x6F, 0xBB])).all(-1)
    left, right = blue[:, : image.shape[1] // 2].sum(), blue[:, image.shape[1] // 2 :].sum()
    assert frame.height >= 480 and frame.width >= 2 * 480
    assert right > 0.8 * film.PANEL**2 and abs(left - right) < 400  # but for the legend's square
    side = film.PANEL // 3
    middle = film.HEAD + side + side // 2, film.GAP + side + side // 2
    assert tuple(image[middle]) == (0x22, 0x22, 0x22)


def test_a_film_without_a_model_has_one_panel():
    real = {"vector": np.zeros((9, 3))}
    [frame, *_] = film.frames(clip_of(real, has_model=False), Look(), "caption")
    assert frame.width == film.PANEL + 2 * film.GAP and frame.height >= film.PANEL


@pytest.mark.parametrize("num", [1, 9, 700])
def test_a_film_lasts_less_than_15_seconds(num, tmp_path, monkeypatch):
    monkeypatch.setattr(codec, "program", lambda: "")
    small = [Image.new("RGB", (32, 32)) for _ in range(num)]
    for i, image in enumerate(small):  # all differ
        image.putpixel((i % 32, i // 32), (255, 255, 255))
    monkeypatch.setattr(film, "frames", lambda *_: small)
    path = film.save(tmp_path / "film", [clip_of(view_of(0))], Look(), ["caption"])
    assert path.name == "film.gif"
    times = []
    with Image.open(path) as shown:
        for i in range(shown.n_frames):
            shown.seek(i)
            times.append(shown.info["duration"])
    assert sum(times) <= 15_000 and times[-1] == film.HOLD


def test_a_gif_shows_its_frames_although_it_stores_what_changes(tmp_path):
    images = film.frames(clip_of(view_of(1)), VIEW, "caption")
    images[3].paste((200, 30, 30), (40, 60, 90, 100))
    film.gif(tmp_path / "film.gif", images, 100)
    with Image.open(tmp_path / "film.gif") as shown:
        assert shown.n_frames == len(images)
        for i, image in enumerate(images):
            shown.seek(i)
            differs = np.abs(np.asarray(shown.convert("RGB"), int) - np.asarray(image, int))
            assert np.percentile(differs, 99) <= 4, i
            assert shown.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


def test_a_gif_that_would_be_large_has_fewer_frames(tmp_path, monkeypatch):
    monkeypatch.setattr(codec, "program", lambda: "")
    draw = np.random.default_rng(0).integers
    noise = [Image.fromarray(draw(0, 256, (160, 160, 3), np.uint8)) for _ in range(150)]
    monkeypatch.setattr(film, "frames", lambda *_: noise)
    path = film.save(tmp_path / "film", [clip_of(view_of(0))], Look(), ["caption"])
    with Image.open(path) as shown:
        assert path.stat().st_size <= film.LARGEST and 30 < shown.n_frames < 75


def test_a_film_is_an_mp4_where_there_is_a_codec(tmp_path):
    pytest.importorskip("imageio_ffmpeg", reason="no codec: pip install dtc[video]")
    path = film.save(tmp_path / "film", [clip_of(view_of(1))], VIEW, ["caption"])
    assert path.name == "film.mp4" and b"ftypisom" in path.read_bytes()[:32]
    assert [p.name for p in tmp_path.iterdir()] == ["film.mp4"]


def test_a_codec_that_fails_leaves_a_gif(tmp_path, monkeypatch):
    monkeypatch.setattr(codec, "program", lambda: "/bin/false")
    path = film.save(tmp_path / "film", [clip_of(view_of(2))], VIEW, ["caption"])
    assert path.name == "film.gif"


def test_runs_that_differ_in_the_seed_alone_are_a_group_named_by_what_differs():
    settings = {
        "a": {"seed": 0, "name": "x", "ppo.lr": 0.1},
        "b": {"seed": 1, "name": "x", "ppo.lr": 0.1},
        "c": {"seed": 0, "name": "x", "ppo.lr": 0.2},
        "d": {},
    }
    assert compare.by_seed({k: settings[k] for k in "ab"}) == {"x": ["a", "b"]}
    assert compare.by_seed({k: settings[k] for k in "abc"}) == {
        "ppo.lr=0.1": ["a", "b"],
        "ppo.lr=0.2": ["c"],
    }
    assert sorted(map(tuple, compare.by_seed(settings).values())) == [("a", "b"), ("c",), ("d",)]


def test_the_band_of_seeds_reaches_from_the_lowest_to_the_highest_where_all_have_values():
    low = [{"env_steps": x, "r": 0.0} for x in (0, 10, 20)]
    high = [{"env_steps": x, "r": float(x)} for x in (5, 15, 30)]
    steps, values = compare.band([low, high, [{"env_steps": 3}]], "r")
    np.testing.assert_array_equal(steps, [5, 10, 15, 20])
    np.testing.assert_allclose(values, [[0, 0, 0, 0], [5, 10, 15, 20]])


def test_a_group_is_one_line_with_a_band_beside_the_references(tmp_path):
    runs = [[{"env_steps": x, "eval/return": x + s} for x in range(9)] for s in (0, 4)]
    for runs_drawn, name in ((runs, "two"), (runs[:1], "one")):
        path = tmp_path / f"{name}.png"
        compare.compare(path, {"x": runs_drawn}, ["eval/return"], "title", {"random": 1.0})
        assert count(path, style.BLUE) > 300
    shade = 1 - 0.2 * (1 - np.array(to_rgb(style.BLUE)))
    assert count(tmp_path / "two.png", shade) > 3000 > count(tmp_path / "one.png", shade)
    last = {"eval/random": 2.0, "eval/scripted": 8.0}
    found = compare.references([[{"a": 1}, last], [last | {"eval/random": 4.0}], []])
    assert found == {"random": 3.0, "scripted": 8.0}
