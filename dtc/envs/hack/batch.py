"""Many games at once: what is written for planes with the games last, called for one game.

Neighbours of a cell are slow to reach on a CPU where 36 cells are the last dim, too few for vector
registers, and fast where a thousand games are. Only what looks at neighbours is written so.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from dtc.core.types import Array, PyTree


def games_last(rule: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """A rule on arrays [..., N games] as a function of one game, whose arrays have no N.

    jax.vmap, which puts games first, then calls the rule with all games: they are moved to the end
    and back.
    """

    @custom_vmap
    def one_game(*args: PyTree) -> PyTree:
        many = jax.tree.map(lambda x: x[..., None], args)
        return jax.tree.map(lambda x: x[..., 0], rule(*many))

    def many_games(num: int, is_batched: Any, *args: PyTree) -> tuple[PyTree, PyTree]:
        def last(x: Array, has_games: bool) -> Array:
            if has_games:
                return jnp.moveaxis(x, 0, -1)
            return jnp.broadcast_to(x[..., None], (*x.shape, num))

        results = rule(*jax.tree.map(last, args, tuple(is_batched)))
        return (
            jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), results),
            jax.tree.map(lambda _: True, results),
        )

    one_game.def_vmap(many_games)
    return one_game
