from types import SimpleNamespace

import jax
import numpy as np
import pytest

from dtc.config.sections import RSSMConfig
from dtc.core import mesh, normalizer
from dtc.core.nets import Precision
from dtc.core.normalizer import Moments
from dtc.world_model import losses, rssm
from tests.meshes import on_mesh
from tests.small_trunk import (
    EXTRA,
    PARAMS,
    ROWS,
    SEQUENCE,
    SHAPES,
    TRUNK,
    B,
    C,
    S,
    T,
    log_softmax,
    observe,
    sigmoid,
)

RNG = np.random.default_rng(0)
CLASSES = np.eye(4, dtype=np.float32)[None]  # one-hot


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


@pytest.fixture(scope="module")
def seen():
    return jax.device_get(observe(PARAMS, SEQUENCE))


def numpy_kl(log_p, log_q):
    return (np.exp(log_p) * (log_p - log_q)).sum((-1, -2))


def numpy_twohot_loss(logits, target):
    bins = np.sign(np.linspace(-20, 20, 41)) * np.expm1(np.abs(np.linspace(-20, 20, 41)))
    above = np.searchsorted(bins, target)
    share = (target - bins[above - 1]) / (bins[above] - bins[above - 1])
    log_p = log_softmax(logits)
    return -(1 - share) * log_p[above - 1] - share * log_p[above]


@pytest.fixture(scope="module")
def terms(seen):
    loss_fn = jax.jit(lambda *x: losses.losses(TRUNK, PARAMS, *x, **EXTRA))
    return jax.device_get(loss_fn(seen, SEQUENCE.obs, ROWS))


@pytest.fixture(scope="module")
def outputs(seen):
    """(reward, continue, mask) logits and decoded leaves."""
    feature = seen.feature(Precision())

    def apply(method):
        return jax.jit(lambda x: TRUNK.apply({"params": PARAMS}, x, method=method))(feature)

    return jax.device_get((apply("heads"), apply("decode")))


def test_there_is_one_loss_term_per_head_and_leaf(terms):
    heads = {"dyn", "rep", "reward", "cont", "mask", "rarity", "recall"}
    assert set(terms) == heads | {f"obs/{name}" for name in SHAPES}
    assert {x.shape for x in terms.values()} == {(T, B)}


def test_dyn_and_rep_are_kls_with_one_free_nat(terms, seen):
    kl = np.maximum(numpy_kl(seen.log_post, seen.log_prior), 1)
    assert (kl == 1).any() and (kl > 1).any()
    np.testing.assert_allclose(terms["dyn"], kl, rtol=1e-4)
    np.testing.assert_array_equal(terms["dyn"], terms["rep"])


def test_the_reward_loss_is_the_two_hot_cross_entropy(terms, outputs):
    logits = outputs[0][0]
    theirs = [
        [numpy_twohot_loss(logits[t, b], ROWS.reward[t, b]) for b in range(B)] for t in range(T)
    ]
    np.testing.assert_allclose(terms["reward"], theirs, rtol=1e-4)


def test_the_continue_loss_is_the_binary_cross_entropy_of_not_terminated(terms, outputs):
    p = sigmoid(outputs[0][1])
    theirs = -np.log(np.where(ROWS.terminated, 1 - p, p))
    np.testing.assert_allclose(terms["cont"], theirs, rtol=1e-4)


def test_the_mask_loss_is_the_summed_binary_cross_entropy(terms, outputs):
    p = sigmoid(outputs[0][2])
    theirs = -np.log(np.where(ROWS.action_mask, p, 1 - p)).sum(-1)
    np.testing.assert_allclose(terms["mask"], theirs, rtol=1e-4)


def test_expected_codes_are_drawn_from_the_prior_and_pass_its_gradient():
    uniform = RNG.random((20_000, 3)).astype(np.float32)
    log_p = np.log(RNG.dirichlet(np.ones(C), 3)).astype(np.float32)
    codes, pull_back = jax.vjp(lambda x: rssm.drawn(uniform, x), np.tile(log_p, (20_000, 1, 1)))
    np.testing.assert_allclose(codes.mean(0), np.exp(log_p), atol=0.02)
    np.testing.assert_allclose(codes.max(-1), 1.0, rtol=1e-6)
    (grad,) = pull_back(np.ones_like(codes))
    np.testing.assert_allclose(grad, np.exp(np.tile(log_p, (20_000, 1, 1))), rtol=1e-4)


def test_a_vectors_loss_is_the_squared_symlog_error_in_standard_deviations(terms, outputs):
    x = SEQUENCE.obs["vector"]  # standardised
    theirs = ((outputs[1]["vector"] - np.sign(x) * np.log1p(np.abs(x))) ** 2).sum(-1)
    np.testing.assert_allclose(terms["obs/vector"], theirs, rtol=1e-4)


def test_restored_predictions_have_the_unit_of_the_observation(seen, outputs):
    feature = seen.feature(Precision())
    decoded = jax.jit(lambda x: losses.decode(TRUNK, PARAMS, x))(feature)
    y = outputs[1]["vector"]
    symexp = np.sign(y) * np.expm1(np.abs(y))
    np.testing.assert_allclose(decoded["vector"], symexp, rtol=1e-4, atol=1e-5)
    moments = Moments(normal(5), 0.5 + RNG.random(5).astype(np.float32))
    restored = normalizer.restore({"vector": moments}, decoded)
    theirs = moments.mean + np.sqrt(moments.var) * symexp
    np.testing.assert_allclose(restored["vector"], theirs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(restored["grid"].sum(-1), 1, rtol=1e-5)


def test_a_class_with_twice_its_share_is_certain_and_where_none_has_it_all_stay(seen):
    feature = seen.feature(Precision())
    decode, likely = (
        jax.device_get(jax.jit(lambda x, fn=fn: fn(TRUNK, PARAMS, x))(feature))
        for fn in (losses.decode, losses.decode_likely)
    )
    np.testing.assert_array_equal(likely["vector"], decode["vector"])
    for name in ("grid", "tags"):
        probs = decode[name]
        num = probs.shape[-1]
        stands_out = probs.max(-1) > 2 / num
        assert 0.05 < stands_out.mean() < 0.95
        certain = np.eye(num)[probs.argmax(-1)]
        wanted = np.where(stands_out[..., None], certain, probs)
        np.testing.assert_array_equal(likely[name], wanted.astype(np.float32))


def test_planes_keep_their_probabilities(monkeypatch):
    def decoded(*_):
        return {"image": np.full((2, 3, 4), 0.9, np.float32), "tags": 0.7 * CLASSES + 0.1}

    monkeypatch.setattr(losses, "decode", decoded)
    trunk = SimpleNamespace(planes=("image",), encoded=(("image", (2, 3, 4)), ("tags", (4, 4))))
    likely = losses.decode_likely(trunk, None, None)
    np.testing.assert_array_equal(likely["image"], np.float32(0.9))
    np.testing.assert_array_equal(likely["tags"], CLASSES)


@pytest.mark.parametrize("name", ["grid", "tags"])
def test_a_one_hot_leafs_loss_is_the_summed_cross_entropy(terms, outputs, name):
    cells = (SEQUENCE.obs[name] * log_softmax(outputs[1][name])).reshape(T, B, -1)
    np.testing.assert_allclose(terms[f"obs/{name}"], -cells.sum(-1), rtol=1e-4)


@pytest.mark.parametrize("shape", [(3, 2, 5), (5,)])
def test_the_loss_of_planes_is_the_summed_binary_cross_entropy(shape):
    logits, x = normal(4, *shape), RNG.random((4, *shape)).astype(np.float32)
    p, rank = sigmoid(logits), len(shape)
    theirs = -(x * np.log(p) + (1 - x) * np.log(1 - p)).sum(tuple(range(1, 1 + rank)))
    loss = losses.reconstruction(jax.numpy.asarray(logits), jax.numpy.asarray(x), rank, True)
    np.testing.assert_allclose(loss, theirs, rtol=1e-5)


def test_rarity_costs_the_squared_error_of_its_log_and_does_not_reach_the_state(seen, terms):
    feature = seen.feature(Precision())

    def found(feature):
        return TRUNK.apply({"params": PARAMS}, feature, method="log_rarities")

    error = np.square(jax.jit(found)(feature) - np.log(EXTRA["rarity"]))
    allowed = ROWS.action_mask
    theirs = (np.sqrt(EXTRA["rarity"]) * error * allowed).sum(-1) / np.maximum(allowed.sum(-1), 1)
    np.testing.assert_allclose(terms["rarity"], theirs, rtol=1e-4)
    grads = jax.grad(lambda x: found(x).sum())(feature)
    assert not any(np.asarray(x).any() for x in grads)


def test_recall_is_the_loss_of_an_earlier_row_decoded_from_the_recurrent_state(seen, terms):
    earlier, columns = EXTRA["earlier"], np.arange(B)[None]
    age = np.arange(T)[:, None] - earlier
    variables = {"params": PARAMS}
    decoded = TRUNK.apply(variables, seen.deter, age, method="recall")
    cells = [log_softmax(decoded[name]) for name in ("grid", "tags")]
    targets = [SEQUENCE.obs[name][earlier, columns] for name in ("grid", "tags")]
    loss = [-(x * y).sum(-1).reshape(T, B, -1).sum(-1) for x, y in zip(targets, cells, strict=True)]
    vector = SEQUENCE.obs["vector"][earlier, columns]
    vector = np.sign(vector) * np.log1p(np.abs(vector))
    loss.append(np.square(decoded["vector"] - vector).sum(-1))
    assert (age == 0).any() and (age > 0).any()
    np.testing.assert_allclose(terms["recall"], np.where(age > 0, sum(loss), 0), rtol=1e-4)


def test_what_is_recalled_depends_on_its_age(seen):
    old, new = (
        TRUNK.apply({"params": PARAMS}, seen.deter, np.full((T, B), age), method="recall")
        for age in (1, 4)
    )
    assert all(np.abs(old[name] - new[name]).max() > 1e-3 for name in old)


def test_the_total_is_the_mean_of_the_scaled_terms(terms):
    scales = {"rep": 0.1, "reward": 7.0, "cont": 7.0, "recall": 3.0, "obs/vector": 5.0}
    trunk = TRUNK.clone(cfg=RSSMConfig(reward_scale=7.0, recall=3.0, vector_scale=5.0))
    weighted = {name: scales.get(name, 1.0) * np.mean(x) for name, x in terms.items()}
    assert float(losses.total(terms, trunk)) == pytest.approx(sum(weighted.values()), rel=1e-5)


def unexpected(most=5.0):
    """(KL in nats [8, 6], first rows, weights): a few rows have far more KL than others."""
    dyn = RNG.random((8, 6)).astype(np.float32)
    first = RNG.random((8, 6)) < 0.2
    dyn[3, :2], first[3, :2] = 20.0, (True, False)
    k = dyn / dyn[~first].mean()
    assert (k[~first] > most).any() and (k[first] > most).any()
    weight = 1 + np.where(first, 1, np.minimum(k, most))
    return dyn, first, weight * dyn.mean() / (weight * dyn).mean()


def test_unexpected_rows_weigh_more_and_the_mean_stays():
    dyn, first, weight = unexpected()
    np.testing.assert_allclose(losses.focal(dyn, first, 5.0), weight, rtol=1e-5)
    assert (weight * dyn).mean() == pytest.approx(dyn.mean(), rel=1e-5)
    gradient = jax.grad(lambda x: (losses.focal(x, first, 5.0) * x).sum())(dyn)
    np.testing.assert_allclose(gradient, weight, rtol=1e-5)
    for flag in (True, False):  # only first rows, and no KL at all
        nothing = np.full_like(first, flag)
        assert np.isfinite(losses.focal(0 * dyn, nothing, 5.0)).all()
    np.testing.assert_allclose(losses.focal(dyn, np.ones_like(first), 5.0), 1, rtol=1e-5)


def test_rows_weigh_by_the_mean_of_all_devices():
    dyn, first, weight = unexpected()
    by_time = (mesh.SHARDED_TIME_MAJOR,) * 2
    on = on_mesh((2, 1), by_time, mesh.SHARDED_TIME_MAJOR)
    ours = on(lambda x, is_first: losses.focal(x, is_first, 5.0))(dyn, first)
    np.testing.assert_allclose(ours, weight, rtol=1e-5)


def test_kl_below_the_free_nats_gives_no_gradient():
    # Pair 0 differs by little, pair 1 by much.
    scale = np.array([0.05, 6.0], np.float32).reshape(2, 1, 1)
    log_p, log_q = (log_softmax(scale * normal(2, S, C)) for _ in range(2))
    both = jax.grad(lambda p, q: losses.kl(p, q, 1.0).sum(), (0, 1))(log_p, log_q)
    assert numpy_kl(log_p, log_q)[0] < 1 < numpy_kl(log_p, log_q)[1]
    for grad in both:
        np.testing.assert_array_equal(grad[0], np.zeros((S, C)))
        assert np.abs(grad[1]).min() > 0


@pytest.fixture(scope="module")
def kl_gradients(seen):
    """Gradients of dyn and rep with respect to all that was observed."""
    wide = seen._replace(log_prior=np.log(np.roll(np.exp(seen.log_prior), 1, -1)), ids=None)

    def gradient(name):
        def term(observed):
            return losses.losses(TRUNK, PARAMS, observed, SEQUENCE.obs, ROWS)[name].sum()

        return jax.grad(term)(wide)

    return jax.jit(lambda: {name: gradient(name) for name in ("dyn", "rep")})()


@pytest.mark.parametrize("name, trained, fixed", [
    ("dyn", "log_prior", "log_post"), ("rep", "log_post", "log_prior"),
])  # fmt: skip
def test_each_kl_trains_its_own_side_only(kl_gradients, name, trained, fixed):
    grad = kl_gradients[name]
    np.testing.assert_array_equal(getattr(grad, fixed), np.zeros((T, B, S, C)))
    assert np.abs(getattr(grad, trained)).max() > 0
