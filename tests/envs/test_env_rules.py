"""Environments of a form that no algorithm can read are refused with what to change."""

import dataclasses

import jax.numpy as jnp
import pytest

from dtc.config.errors import ConfigError
from dtc.core.types import ArraySpec
from dtc.envs import catalog, rules
from tests.worlds import arm

ENV = arm()


def with_encoding(change):
    """The spec's `encode` with leaves changed by a function of each."""
    return {"encode": lambda obs: {k: change(x) for k, x in ENV.spec.encode(obs).items()}}


def box(shape, low=-1.0, high=1.0):
    return {"action": ArraySpec(shape, jnp.float32, low, high)}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (box(()), r"action has shape \[\] \(a box of actions is a vector\)\. Use ArraySpec\(\(n,"),
        (box((2, 3)), r"action has shape \[2, 3\] \(a box of actions is a vector\)"),
        (
            {"action": ArraySpec((2,), jnp.int32, num_classes=5)},
            r"action has num_classes and shape \[2\] .* num_classes=the product",
        ),
        (
            box((6,), low=(-1.0, -2.0)),
            r"action has shape \[6\], and its bound low has shape \[2\]\. Use ",
        ),
        (
            {"obs": dict(ENV.spec.obs, joints=ArraySpec((6,), jnp.float32, -1.0, (1.0,) * 5))},
            r"joints has shape \[6\], and its bound high has shape \[5\]",
        ),
        (
            with_encoding(lambda x: x.astype(jnp.uint8)),
            r"encode gives \w+ as uint8\[.*\] \(networks read floats\)\. Use \.astype\(jnp",
        ),
        (with_encoding(jnp.sum), r"encode gives \w+ as float32\[\] .* a single number to \[1\]"),
        (with_encoding(lambda x: x[None, None]), r".* as float32\[1, 1, .*\] \(leaves have 1 to 3"),
        ({"planes": ("sky",)}, r"encode gives camera as float32\[4, 4, 1\], .* planes=\('camera',"),
        ({"planes": ("sky", "camera", "sea")}, r"planes names sea, .* Use camera, joints, sky\."),
    ],
)
def test_what_no_algorithm_can_read_is_refused_with_what_to_change(change, sentence, monkeypatch):
    wrong = ENV._replace(spec=dataclasses.replace(ENV.spec, **change))
    monkeypatch.setitem(catalog.ENVIRONMENTS, "arm", lambda: wrong)
    with pytest.raises(ConfigError, match=rf"^env\.name=arm: {sentence}") as error:
        catalog.make("arm")
    assert "\n" not in str(error.value)


def test_what_can_be_read_passes_unchanged():
    flags = ENV._replace(spec=dataclasses.replace(ENV.spec, planes=("camera",)))
    for env in (ENV, flags):  # flags may be one-hot as they are stored
        assert rules.check("arm", env) is env
