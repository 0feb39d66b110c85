"""Plants one fault at a time in a copy of the repository and runs the test that should detect it.

    python tests/mutants.py [--list] [--only NAME]

Each fault is one that could be made where two parts of an agent are joined, and that no shape and
no type gives away. The exit status is 1 if a test passes in spite of its fault. A fault
takes about 15 s on one quiet core. tests/test_mutants.py keeps the list in step with the code.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LAWS = "tests/algorithms/test_composition.py"
COPIED = ("dtc", "configs", "tests", "pyproject.toml")

MACHINE = "dtc/training/acting.py"
AGENT = "dtc/algorithms/curious"
PERCENTILES = "dtc/core/percentiles.py"
GUARD, GUARD_LAWS = "dtc/training/trainer.py", "tests/training/test_guard.py"
PLANNING, PLANNING_LAWS = f"{AGENT}/planning.py", "tests/algorithms/test_planning.py"
LIKELY_LAWS = "tests/algorithms/test_likely.py"
TRUNK_LOSSES = "dtc/world_model/losses.py"
TRUNK_LOSSES_LAWS = "tests/world_model/test_trunk_losses.py"
STARTS_LAWS = "tests/algorithms/test_starts.py"
TRIALS_LAWS = "tests/algorithms/test_trials.py"
LEARN, LEARN_LAWS = f"{AGENT}/learn.py", "tests/algorithms/test_learn.py"
FORESIGHT, FORESIGHT_LAWS = "dtc/commands/foresight.py", "tests/commands/test_foresight.py"
PPO, PPO_LAWS = "dtc/algorithms/ppo/learn.py", "tests/algorithms/test_ppo.py"


class Mutant(NamedTuple):
    """A fault and the test that should detect it."""

    name: str
    file: str
    source: str  # occurs once in the file
    replacement: str
    test: str  # of `laws`
    laws: str = LAWS

    @property
    def node(self) -> str:
        """The test as pytest names it."""
        return f"{self.laws}::{self.test}"


MUTANTS = (
    # Collecting
    Mutant(
        "row_holds_the_proposed_action",
        "dtc/training/carrier.py",
        "        action=executed,",
        "        action=acted.action,",
        "test_a_row_holds_the_executed_action_and_the_next_row_its_reward",
    ),
    Mutant(
        "environment_gets_the_proposed_action",
        MACHINE,
        "env_action(executed, env), env, mode.vector",
        (
            "env_action(executed if played.row.proposed is None else played.row.proposed, env), "
            "env, mode.vector"
        ),
        "test_a_row_holds_the_executed_action_and_the_next_row_its_reward",
    ),
    Mutant(
        "acting_sees_the_proposed_action",
        MACHINE,
        "        action=executed,\n        earlier",
        "        action=played.row.proposed,\n        earlier",
        "test_the_next_call_of_acting_sees_the_executed_action",
    ),
    Mutant(
        "action_is_not_stretched",
        MACHINE,
        "env_action(executed, env), env, mode.vector",
        "executed, env, mode.vector",
        "test_the_environment_gets_the_action_scaled_to_its_box",
    ),
    Mutant(
        "acting_forgets_the_mask",
        f"{AGENT}/acting.py",
        "policy, state, mask, keys.policy, noise",
        "policy, state, None, keys.policy, noise",
        "test_no_policy_takes_an_action_that_the_mask_forbids",
    ),
    Mutant(
        "stored_latent_is_the_one_before",
        f"{AGENT}/acting.py",
        "noise=noise), action, latent=state)",
        "noise=noise), action, latent=acting.latent)",
        "test_acting_stores_its_new_latent",
    ),
    Mutant(
        "acting_remembers_the_last_episode",
        f"{AGENT}/acting.py",
        "params, first = learner.params.trunk, seen.timestep.first",
        "params, first = learner.params.trunk, seen.timestep.first & False",
        "test_acting_resets_latent_and_action_where_an_episode_begins",
    ),
    Mutant(
        "acting_sees_raw_observations",
        f"{AGENT}/acting.py",
        "return rssm.inputs(learner.normalizer, obs, seen.timestep.action_mask)",
        "return obs",
        "test_acting_and_learning_find_the_same_posterior_with_the_same_draws",
    ),
    Mutant(
        "task_policy_collects_for_the_explorer",
        f"{AGENT}/algorithm.py",
        "act = with_policy(agent.acting,",
        "act = with_policy(agent.task,",
        "test_an_explorer_collects_with_its_latest_parameters",
    ),
    # Planning
    Mutant(
        "plans_of_the_first_environments",
        PLANNING,
        "* stride + (-ids[0]) % stride",
        "* stride",
        "test_some_of_many_environments_plan_from_where_they_are",
        PLANNING_LAWS,
    ),
    Mutant(
        "plans_of_some_environments_are_taken_by_others",
        PLANNING,
        "acted.action.at[rows].set",
        "acted.action.at[rows + 1].set",
        "test_some_of_many_environments_plan_from_where_they_are",
        PLANNING_LAWS,
    ),
    Mutant(
        "plan_ignores_the_mask",
        PLANNING,
        "(mask := seen.timestep.action_mask) is not None",
        "(mask := None) is not None",
        "test_a_forbidden_action_of_a_plan_is_not_taken",
        PLANNING_LAWS,
    ),
    Mutant(
        "plan_forgets_what_comes_after_the_dream",
        "dtc/behaviour/targets.py",
        "kind, ranges, horizon, lam=1.0)[0]",
        "kind, ranges, horizon, lam=0.0)[0]",
        "test_the_best_action_has_the_largest_mean_return_with_the_value_of_ends",
        PLANNING_LAWS,
    ),
    Mutant(
        "plan_follows_the_best_single_dream",
        PLANNING,
        "total_NA / jnp.maximum(num_NA, 1)",
        "reduce(jnp.where(begins > 0, total[:, None], -jnp.inf), '(n m) a -> n a', 'max', m=size)",
        "test_the_best_action_has_the_largest_mean_return_with_the_value_of_ends",
        PLANNING_LAWS,
    ),
    Mutant(
        "plan_prefers_the_action_of_most_dreams",
        PLANNING,
        "total_NA / jnp.maximum(num_NA, 1)",
        "total_NA",
        "test_the_best_action_has_the_largest_mean_return_with_the_value_of_ends",
        PLANNING_LAWS,
    ),
    Mutant(
        "plan_counts_mixtures_of_observations",
        f"{AGENT}/dreams.py",
        "import decode_likely",
        "import decode as decode_likely",
        "test_a_dreamed_state_is_as_rare_as_the_counts_of_its_likely_observation",
        LIKELY_LAWS,
    ),
    Mutant(
        "expected_mixtures_are_replayed",
        f"{AGENT}/model.py",
        "losses.decode_likely(agent",
        "losses.decode(agent",
        "test_the_likely_observation_is_replayed_as_the_expected_one",
        LIKELY_LAWS,
    ),
    Mutant(
        "class_of_noise_is_certain",
        TRUNK_LOSSES,
        "probs.max(-1, keepdims=True) > 2 / num",
        "probs.max(-1, keepdims=True) > 0 / num",
        "test_a_class_with_twice_its_share_is_certain_and_where_none_has_it_all_stay",
        TRUNK_LOSSES_LAWS,
    ),
    Mutant(
        "plan_counts_raw_novelty",
        PLANNING,
        "rewards = rewards_of(dreamed, learner, policy)",
        'rewards = {"extrinsic": dreamed.reward, "intrinsic": dreamed.novelty}',
        "test_the_best_action_has_the_largest_mean_return_with_the_value_of_ends",
        PLANNING_LAWS,
    ),
    Mutant(
        "plan_is_judged_by_the_rarity_that_the_head_tells",
        PLANNING,
        "model_fns(agent, learner, policy, partial(counted_rarity, first=obs))",
        "model_fns(agent, learner, policy)",
        "test_the_best_action_has_the_largest_mean_return_with_the_value_of_ends",
        PLANNING_LAWS,
    ),
    Mutant(
        "plan_decodes_what_was_observed",
        PLANNING,
        "partial(counted_rarity, first=obs)",
        "counted_rarity",
        "test_the_best_action_has_the_largest_mean_return_with_the_value_of_ends",
        PLANNING_LAWS,
    ),
    Mutant(
        "last_steps_of_a_plan_count_as_observed",
        f"{AGENT}/dreams.py",
        "x = x.at[: known.shape[0]].set(known)",
        "x = x.at[-known.shape[0] :].set(known)",
        "test_a_plan_s_first_step_is_as_rare_as_the_observation_that_it_begins_with",
    ),
    Mutant(
        "rare_starts_are_drawn_though_the_task_pays",
        f"{AGENT}/dreams.py",
        "            by_rarity,\n            lambda",
        "            True,\n            lambda",
        "test_rare_starts_are_drawn_and_left_out_of_statistics_while_nothing_pays",
        STARTS_LAWS,
    ),
    Mutant(
        "a_bored_explorer_seeks",
        f"{AGENT}/dreams.py",
        "return is_unpaid & (learner.curiosity.boredom < 1)",
        "return is_unpaid & (learner.curiosity.boredom < 2)",
        "test_an_explorer_seeks_until_it_is_bored",
        STARTS_LAWS,
    ),
    Mutant(
        "an_explorer_that_is_somewhat_bored_does_not_seek",
        f"{AGENT}/dreams.py",
        "return is_unpaid & (learner.curiosity.boredom < 1)",
        "return is_unpaid & (learner.curiosity.boredom <= 0)",
        "test_an_explorer_seeks_until_it_is_bored",
        STARTS_LAWS,
    ),
    Mutant(
        "rare_starts_count_in_statistics",
        f"{AGENT}/dreams.py",
        "(batch.weight[:, None] > 0) & ~is_rare",
        "(batch.weight[:, None] > 0) | is_rare",
        "test_rare_starts_are_drawn_and_left_out_of_statistics_while_nothing_pays",
        STARTS_LAWS,
    ),
    Mutant(
        "a_state_is_started_at_twice",
        f"{AGENT}/dreams.py",
        "kept_Bn].set(-jnp.inf)",
        "kept_Bn].add(0)",
        "test_half_of_the_starts_are_drawn_by_their_weights_and_no_state_twice",
        STARTS_LAWS,
    ),
    Mutant(
        "counted_rarity_forgets_the_action",
        f"{AGENT}/dreams.py",
        "chosen = rarity.ACTION * agent",
        "chosen = 0 * agent",
        "test_a_plan_s_state_is_as_rare_as_the_counts_of_what_it_decodes_to",
    ),
    Mutant(
        "plan_is_made_though_the_task_pays",
        PLANNING,
        "lax.cond(seeks(agent, learner), plans",
        "lax.cond(seeks(agent, learner) | True, plans",
        "test_no_plan_is_made_once_the_task_pays",
        PLANNING_LAWS,
    ),
    Mutant(
        "dreams_of_a_plan_begin_with_what_the_policy_does",
        PLANNING,
        "is_free = (t == 0) & (",
        "is_free = (t < 0) & (",
        "test_half_of_the_dreams_begin_with_any_allowed_action",
        PLANNING_LAWS,
    ),
    Mutant(
        "dreams_of_a_plan_go_on_with_any_action",
        PLANNING,
        "is_free = (t == 0) & (",
        "is_free = (",
        "test_half_of_the_dreams_begin_with_any_allowed_action",
        PLANNING_LAWS,
    ),
    # Trials
    Mutant(
        "one_policy_plays_a_whole_episode",
        f"{AGENT}/acting.py",
        "seen.timestep.first | (drawn_N2[:, 0] < 1 / STINT)",
        "seen.timestep.first",
        "test_both_policies_take_over_in_the_middle_of_an_episode",
        TRIALS_LAWS,
    ),
    Mutant(
        "task_policy_that_found_a_reward_plays_no_more",
        f"{AGENT}/acting.py",
        "jnp.where(learner.unit.is_known, TRIED_FOR_REWARD, TRIED)",
        "TRIED",
        "test_half_of_the_steps_are_the_task_policy_s_once_something_pays",
        TRIALS_LAWS,
    ),
    Mutant(
        "explorer_tries_itself",
        f"{AGENT}/acting.py",
        "now, params = acted.acting, learner.params.behaviour[agent.task.name]",
        "now, params = acted.acting, learner.params.behaviour[agent.acting.name]",
        "test_the_task_policy_plays_its_share_of_steps",
        TRIALS_LAWS,
    ),
    # What is earned, and the noise of actions
    Mutant(
        "novelty_earns",
        "dtc/behaviour/targets.py",
        'known = ranges.get("extrinsic")',
        'known = ranges.get("intrinsic")',
        "test_targets_equal_a_loop",
        "tests/behaviour/test_targets.py",
    ),
    Mutant(
        "costs_pay_like_rewards",
        "dtc/behaviour/targets.py",
        "jnp.where(unit.is_known, size, jnp.square(beyond / COSTS))",
        "size",
        "test_costs_alone_pay_if_they_differ_by_a_tenth_and_by_more_than_the_critic_errs",
        "tests/behaviour/test_targets.py",
    ),
    Mutant(
        "what_is_earned_is_in_another_unit_than_its_range",
        LEARN,
        "earned(ranges, info.batch.unit)",
        "earned(ranges, learner.unit)",
        "test_what_costs_earn_is_earned_in_full_until_something_is_won",
    ),
    Mutant(
        "boredom_takes_from_novelty_while_nothing_pays",
        "dtc/behaviour/targets.py",
        "weight * (1.0 - boredom * paid)",
        "weight * (1.0 - boredom)",
        "test_novelty_is_neither_small_nor_boring_while_nothing_pays",
        "tests/behaviour/test_targets.py",
    ),
    Mutant(
        "an_actor_is_faster_the_more_its_task_pays",
        LEARN,
        "(cfg.actor_lr / cfg.explore_lr) ** slowed",
        "(cfg.actor_lr / cfg.explore_lr) ** (1 - slowed)",
        "test_an_acting_policy_is_slower_the_more_its_task_pays_and_one_on_the_side_is_not",
    ),
    Mutant(
        "short_dreams_are_followed_as_far_as_long_ones",
        LEARN,
        "return share * jnp.sqrt(horizon / agent.dream.longest)",
        "return share",
        "test_a_part_of_the_longest_dreams_is_followed_by_its_root_of_a_step",
    ),
    Mutant(
        "a_limited_step_is_as_long_in_short_dreams",
        LEARN,
        "jnp.minimum(share, jnp.sqrt(cfg.actor_kl / jnp.maximum(change, cfg.actor_kl)))",
        "jnp.minimum(share, jnp.sqrt(cfg.actor_kl / jnp.maximum(change, cfg.actor_kl))"
        " / jnp.sqrt(horizon / agent.dream.longest))",
        "test_a_part_of_the_longest_dreams_is_followed_by_its_root_of_a_step",
    ),
    Mutant(
        "noise_goes_on_into_the_next_episode",
        f"{AGENT}/acting.py",
        "[None, :, None] * ~first[:, None, None]",
        "[None, :, None] * (first == first)[:, None, None]",
        "test_a_new_episode_forgets_the_noise_before_it",
        "tests/algorithms/test_noise.py",
    ),
    Mutant(
        "noise_grows_with_its_parts",
        f"{AGENT}/acting.py",
        "noise.sum(1) / math.sqrt(noise.shape[1])",
        "noise.sum(1)",
        "test_each_number_is_standard_normal_from_the_first_on",
        "tests/algorithms/test_noise.py",
    ),
    # Progress and ends
    Mutant(
        "progress_is_what_was_forgotten",
        f"{AGENT}/dreams.py",
        "measure(agent, learner.slow_members, data) - novelty",
        "novelty - measure(agent, learner.slow_members, data)",
        "test_progress_pays_how_far_the_members_novelty_has_fallen_below_that_of_slow_copies",
    ),
    Mutant(
        "slow_copies_follow_the_members_before_the_step",
        LEARN,
        "        params.members if agent.novelty.is_progress else None,",
        "        learner.params.members if agent.novelty.is_progress else None,",
        "test_slow_copies_follow_the_updated_members_at_the_slow_rate",
    ),
    # Replay
    Mutant(
        "action_at_the_row_is_taken_for_the_one_before",
        f"{AGENT}/batch.py",
        "previous=actions[:-1]",
        "previous=actions[1:]",
        "test_a_batch_holds_the_rows_after_a_stored_latent_with_their_previous_actions",
    ),
    Mutant(
        "window_includes_the_context_row",
        f"{AGENT}/batch.py",
        "rows = jax.tree.map(lambda x: x[1:], rows)",
        "rows = jax.tree.map(lambda x: x[:-1], rows)",
        "test_a_batch_holds_the_rows_after_a_stored_latent_with_their_previous_actions",
    ),
    Mutant(
        "context_of_the_last_row",
        "dtc/data/ring.py",
        "slot = _kept(ring, index.slot)",
        "slot = _kept(ring, index.slot + 1)",
        "test_a_batch_holds_the_rows_after_a_stored_latent_with_their_previous_actions",
    ),
    Mutant(
        "empty_latent_without_a_beginning",
        f"{AGENT}/batch.py",
        "        first = first.at[0].set(True)\n",
        "",
        "test_without_a_stored_latent_a_sequence_begins_like_an_episode",
    ),
    # Trunk
    Mutant(
        "sequences_run_across_episodes",
        f"{AGENT}/model.py",
        "batch.previous, batch.first, batch.context, uniform",
        "batch.previous, batch.first & False, batch.context, uniform",
        "test_an_episode_does_not_depend_on_the_one_before_it",
    ),
    Mutant(
        "truncated_states_continue_no_more",
        TRUNK_LOSSES,
        "dist.bernoulli_log_prob(cont, ~rows.terminated)",
        "dist.bernoulli_log_prob(cont, ~rows.last)",
        "test_truncation_does_not_train_the_continue_head",
    ),
    Mutant(
        "value_reaches_the_trunk_by_one_way_of_two",
        f"{AGENT}/learn.py",
        "TrunkOut(to_trunk.loss, value.deter, value.stoch)",
        "TrunkOut(to_trunk.loss, value.deter, to_trunk.stoch)",
        "test_the_trunk_learns_from_its_losses_and_from_the_replay_value_loss",
    ),
    Mutant(
        "replay_gradient_of_the_critic_is_dropped",
        f"{AGENT}/learn.py",
        "            behaviour[name] = jax.tree.map(jnp.add, behaviour[name], value.critic)\n",
        "",
        "test_the_task_s_critic_learns_from_dreams_and_from_replayed_returns",
    ),
    Mutant(
        "returns_of_the_task_go_on_through_what_the_explorer_did",
        f"{AGENT}/dreams.py",
        "rows.terminated, ~own_TB, boot_TB",
        "rows.terminated, rows.last, boot_TB",
        "test_replayed_returns_bootstrap_from_dreamed_returns_and_elsewhere_from_the_critic",
    ),
    Mutant(
        "task_critic_learns_from_what_the_explorer_did",
        f"{AGENT}/dreams.py",
        "~rows.last & rows.extras",
        "~rows.last",
        "test_replayed_returns_bootstrap_from_dreamed_returns_and_elsewhere_from_the_critic",
    ),
    Mutant(
        "side_critic_learns_from_dreams_alone",
        f"{AGENT}/learn.py",
        'if "extrinsic" in lesson.start_return:',
        'if "extrinsic" in lesson.start_return and policy == agent.acting:',
        "test_replayed_returns_train_the_task_s_critic_alone",
    ),
    Mutant(
        "rows_say_that_nobody_tried",
        f"{AGENT}/acting.py",
        "extras=tries,",
        "extras=tries & False,",
        "test_rows_keep_who_played_them",
        TRIALS_LAWS,
    ),
    Mutant(
        "dreamed_bootstrap_is_unused",
        f"{AGENT}/dreams.py",
        "boot_TB = value_TB.at[starts.t, starts.b].set(start_return.reshape(starts.t.shape))",
        "boot_TB = value_TB",
        "test_replayed_returns_bootstrap_from_dreamed_returns_and_elsewhere_from_the_critic",
    ),
    Mutant(
        "dreamed_bootstraps_are_put_in_the_wrong_order",
        f"{AGENT}/dreams.py",
        "set(start_return.reshape(starts.t.shape))",
        "set(start_return.reshape(starts.t.shape[::-1]).T)",
        "test_replayed_returns_bootstrap_from_dreamed_returns_and_elsewhere_from_the_critic",
    ),
    Mutant(
        "replayed_target_mixes_two_episodes",
        f"{AGENT}/dreams.py",
        "weight_TB = own_TB[:-1]",
        "weight_TB = own_TB[1:]",
        "test_replayed_returns_bootstrap_from_dreamed_returns_and_elsewhere_from_the_critic",
    ),
    # Members
    Mutant(
        "members_learn_the_posterior_they_see",
        f"{AGENT}/model.py",
        "targets[1:], ~batch",
        "targets[:-1], ~batch",
        "test_members_learn_the_next_posterior_within_episodes",
    ),
    Mutant(
        "members_see_the_action_before",
        f"{AGENT}/model.py",
        "Transitions(state, batch.action[:-1])",
        "Transitions(state, batch.previous[:-1])",
        "test_members_learn_the_next_posterior_within_episodes",
    ),
    Mutant(
        "pairs_count_by_where_they_begin",
        f"{AGENT}/model.py",
        "~batch.rows.first[1:]",
        "~batch.rows.first[:-1]",
        "test_a_pair_across_the_end_of_an_episode_trains_no_member",
    ),
    Mutant(
        "members_shape_the_trunk",
        f"{AGENT}/model.py",
        "flatten(lax.stop_gradient(pairs_TB))",
        "flatten(pairs_TB)",
        "test_members_send_no_gradient_to_the_trunk",
    ),
    Mutant(
        "ghosts_learn",
        "dtc/world_model/ensemble.py",
        "counts_n[None] & is_real(num_local, num_members)[:, None]",
        "counts_n[None] & (mesh.member_ids(num_local) >= 0)[:, None]",
        "test_a_ghost_has_no_gradient_and_no_effect_on_novelty",
    ),
    Mutant(
        "ghosts_have_a_say_in_novelty",
        "dtc/world_model/ensemble.py",
        "sum_members(jnp.where(real_E.reshape(-1, *[1] * (x.ndim - 1)), x, 0.0))",
        "sum_members(x)",
        "test_a_ghost_has_no_gradient_and_no_effect_on_novelty",
    ),
    Mutant(
        "members_are_scaled_together",
        f"{AGENT}/learn.py",
        "        grads.members, opt.members, params.members\n",
        "        jax.tree.map(lambda g: g / optimizer.global_norm(grads.members), grads.members),\n"
        "        opt.members,\n"
        "        params.members,\n",
        "test_each_member_is_clipped_by_its_own_gradient",
    ),
    Mutant(
        "novelty_of_the_episodic_half",
        "dtc/data/ring.py",
        "return self.id % 2 == 0",
        "return self.id % 2 == 1",
        "test_the_novelty_metric_is_of_the_frontier_half_within_episodes",
    ),
    Mutant(
        "weights_of_one_device_divide_all_members_gradients",
        f"{AGENT}/learn.py",
        'members, weight_E = mesh.psum((local.members, weight_E), "data")',
        'members, weight_E = mesh.psum(local.members, "data"), mesh.pmean(weight_E, "data")',
        "test_gradients_are_means_over_the_mesh_and_those_of_members_are_weighted",
    ),
    # Dreams
    Mutant(
        "terminal_starts_count",
        f"{AGENT}/dreams.py",
        "alive = 1.0 - take(batch.rows.terminated).astype(agent.precision.param)",
        "alive = jnp.ones_like(take(batch.rows.terminated), agent.precision.param)",
        "test_dreams_start_at_sampled_posteriors_with_global_ids_and_are_not_alive_if_terminal",
    ),
    Mutant(
        "truncated_starts_do_not_count",
        f"{AGENT}/dreams.py",
        "take(batch.rows.terminated)",
        "take(batch.rows.last)",
        "test_dreams_start_at_sampled_posteriors_with_global_ids_and_are_not_alive_if_terminal",
    ),
    Mutant(
        "starts_are_numbered_by_device",
        f"{AGENT}/dreams.py",
        "ids_Bn = batch.sampled.id[:, None] * num",
        "ids_Bn = jnp.arange(t_Bn.shape[0])[:, None] * num",
        "test_dreams_start_at_sampled_posteriors_with_global_ids_and_are_not_alive_if_terminal",
    ),
    Mutant(
        "policies_share_their_dreams_draws",
        f"{AGENT}/dreams.py",
        "offset = agent.policies.index(policy) * agent.dream.starts",
        "offset = 0",
        "test_no_two_dreams_share_random_keys_within_or_between_policies",
    ),
    Mutant(
        "all_dream_with_the_first_policy_s_networks",
        f"{AGENT}/dreams.py",
        "    behaviour = params.behaviour[policy.name]\n\n    def step",
        "    behaviour = params.behaviour[agent.acting.name]\n\n    def step",
        "test_each_policy_dreams_with_its_own_actor_and_critics",
    ),
    Mutant(
        "reward_of_the_state_that_is_left",
        "dtc/world_model/imagination.py",
        "fns.heads(flatten(nexts))",
        "fns.heads(flatten(latents))",
        "test_a_dreamed_step_is_credited_with_the_next_state_s_reward_and_its_own_novelty",
    ),
    Mutant(
        "novelty_of_the_state_that_is_reached",
        "dtc/world_model/imagination.py",
        "fns.novelty(*flatten((latents, actions)))",
        "fns.novelty(*flatten((nexts, actions)))",
        "test_a_dreamed_step_is_credited_with_the_next_state_s_reward_and_its_own_novelty",
    ),
    Mutant(
        "dreams_never_end",
        "dtc/world_model/imagination.py",
        "heads = unflatten((reward, cont, novelty,",
        "heads = unflatten((reward, jnp.ones_like(cont), novelty,",
        "test_a_dreamed_step_is_credited_with_the_next_state_s_reward_and_its_own_novelty",
    ),
    Mutant(
        "predicted_mask_is_unused",
        "dtc/world_model/imagination.py",
        "action = fns.policy(latent, mask, pairs[:, 1], t)",
        "action = fns.policy(latent, None, pairs[:, 1], t)",
        "test_a_dream_takes_only_actions_that_its_predicted_mask_allows",
    ),
    Mutant(
        "dreams_are_always_long",
        f"{AGENT}/dreams.py",
        "jnp.asarray(agent.dream.horizons, jnp.int32)[learner.curiosity.bucket]",
        "jnp.asarray(agent.dream.horizons, jnp.int32)[-1]",
        "test_a_dream_has_the_length_of_its_bucket_and_begins_like_a_longer_one",
    ),
    # Returns
    Mutant(
        "returns_of_the_whole_buffer",
        "dtc/behaviour/targets.py",
        "returns.lambda_returns(r, c, v, lam, horizon)",
        "returns.lambda_returns(r, c, v, lam)",
        "test_steps_beyond_the_horizon_have_no_effect",
    ),
    Mutant(
        "one_discount_for_all_kinds",
        "dtc/behaviour/targets.py",
        ")(reward, kind.discount * cont, rollout",
        ")(reward, cfg.discount * cont, rollout",
        "test_each_kind_of_reward_has_its_own_discount",
    ),
    Mutant(
        "curiosity_ends_with_the_episode",
        "dtc/behaviour/targets.py",
        "        reward = reward + kind.discount * (1.0 - cont) * ranges[kind.name].low\n",
        "        pass\n",
        "test_a_terminal_state_has_extrinsic_value_0_and_the_intrinsic_value_of_a_familiar_state",
    ),
    Mutant(
        "dreams_of_terminal_states_train",
        "dtc/behaviour/targets.py",
        "_survival(rollout.alive_0, discount * cont)",
        "_survival(jnp.ones_like(rollout.alive_0), discount * cont)",
        "test_a_dream_from_a_terminal_state_has_no_effect",
    ),
    # Actor
    Mutant(
        "advantage_is_not_centred",
        "dtc/behaviour/targets.py",
        "weight * (delta[name] - one.mean_delta) / scale",
        "weight * delta[name] / scale",
        "test_a_return_above_the_critic_that_all_actions_share_does_not_train_the_actor",
    ),
    Mutant(
        "actor_descends_its_advantage",
        "dtc/behaviour/losses.py",
        "policy = -w * (log_prob * data.targets.advantage + learner",
        "policy = -w * (-log_prob * data.targets.advantage + learner",
        "test_an_action_with_more_reward_than_others_becomes_more_probable",
    ),
    Mutant(
        "entropy_weight_of_the_task_policy",
        f"{AGENT}/dreams.py",
        "entropy_weight(learner.entropy[name], paid",
        "entropy_weight(learner.entropy[agent.task.name], paid",
        "test_each_policy_has_its_own_entropy_weight",
    ),
    Mutant(
        "actor_is_taught_forbidden_actions",
        f"{AGENT}/dreams.py",
        "ChunkData(dreamed.latent, dreamed.action, dreamed.mask, judged.targets)",
        "ChunkData(dreamed.latent, dreamed.action, None, judged.targets)",
        "test_a_masked_action_has_no_gradient",
    ),
    Mutant(
        "bad_actions_are_lowered_without_end",
        "dtc/behaviour/losses.py",
        "jnp.where(data.targets.advantage > 0, likelihood(0.0)[0], log_prob)",
        "likelihood(0.0)[0]",
        "test_an_action_that_was_given_up_gains_in_full_if_it_is_good",
        "tests/behaviour/test_behaviour_losses.py",
    ),
    Mutant(
        "explorer_reads_the_square_of_a_distance",
        "dtc/curiosity/drive.py",
        "jnp.sqrt(jnp.maximum(ratio, 0)) if has_root",
        "ratio if has_root",
        "test_relative_novelty_has_no_scale_and_its_root_is_a_distance",
        "tests/curiosity/test_drive.py",
    ),
    Mutant(
        "root_of_novelty_in_a_box",
        "dtc/behaviour/policy.py",
        "has_root=is_discrete",
        "has_root=True",
        "test_only_an_explorer_of_discrete_actions_reads_the_root_of_novelty",
        "tests/behaviour/test_policy.py",
    ),
    Mutant(
        "explorer_reads_raw_novelty",
        f"{AGENT}/dreams.py",
        "novelty = per_step * drive.relative(novelty, learner.curiosity, policy.has_root)",
        "novelty = per_step * novelty",
        "test_only_a_reward_free_policy_uses_novelty_relative_to_its_mean",
    ),
    # Critics
    Mutant(
        "all_critics_learn_the_first_kind_s_returns",
        "dtc/behaviour/losses.py",
        "slow_logits[name], target, net.bins)\n        for name, target",
        "slow_logits[name], data.targets.returns[net.critics[0]], net.bins)\n"
        "        for name, target",
        "test_each_critic_learns_the_returns_of_its_own_kind",
    ),
    Mutant(
        "critics_are_held_by_themselves",
        "dtc/behaviour/losses.py",
        'net.apply({"params": learner.slow}, data.state, method="values")',
        'net.apply({"params": params}, data.state, method="values")',
        "test_each_critic_is_regularised_by_the_slow_critic_of_its_own_kind",
    ),
    Mutant(
        "slow_critics_follow_stale_parameters",
        f"{AGENT}/learn.py",
        "followers(draws.update, learner, params, agent)",
        "followers(draws.update, learner, learner.params, agent)",
        "test_slow_critics_and_the_average_follow_the_updated_parameters",
    ),
    # Percentiles over the mesh
    Mutant(
        "percentiles_average_the_counts_of_devices",
        PERCENTILES,
        "mesh.psum(histogram(",
        "mesh.pmean(histogram(",
        "test_percentiles_are_those_of_one_device_to_the_bit",
        "tests/core/test_percentiles.py",
    ),
    Mutant(
        "percentiles_are_one_rank_off",
        PERCENTILES,
        "jnp.sum(upto_KRb <= rank_KR",
        "jnp.sum(upto_KRb < rank_KR",
        "test_every_rank_is_found_exactly",
        "tests/core/test_percentiles.py",
    ),
    # Curiosity
    Mutant(
        "drive_follows_all_that_is_replayed",
        f"{AGENT}/learn.py",
        '        scalars["curiosity/novelty"],\n',
        '        scalars["curiosity/novelty_replay"],\n',
        "test_competence_follows_the_novelty_of_the_frontier_half",
    ),
    Mutant(
        "boredom_takes_from_the_task",
        "dtc/behaviour/targets.py",
        "    if kind.fades:\n        weight = weight",
        "    if True:\n        weight = weight",
        "test_boredom_scales_only_the_intrinsic_advantage",
    ),
    Mutant(
        "small_costs_pull_like_rewards",
        "dtc/behaviour/targets.py",
        "floor = jnp.maximum(floor, 1.0 - FALL * paid)",
        "floor = jnp.maximum(floor, 0.0 * paid)",
        "test_small_returns_of_the_task_stay_small_and_tiny_ones_smaller",
        "tests/behaviour/test_targets.py",
    ),
    Mutant(
        "spread_divides_relative_novelty",
        "dtc/behaviour/targets.py",
        "if kind.fades:",
        'if kind.name == "intrinsic":',
        "test_the_gradients_from_dreams_equal_the_equations",
        "tests/algorithms/test_composition.py",
    ),
    Mutant(
        "novelty_that_fell_moves_nothing",
        "dtc/behaviour/targets.py",
        "scale = paid * scale + (1.0 - paid) * own",
        "scale = jnp.maximum(scale, paid * own)",
        "test_novelty_that_is_sought_has_advantages_of_one_size_at_any_known_range",
        "tests/behaviour/test_targets.py",
    ),
    Mutant(
        "novelty_s_spread_is_not_about_its_mean",
        "dtc/behaviour/targets.py",
        "jnp.square(delta[name] - mean[name])",
        "jnp.square(delta[name])",
        "test_targets_equal_a_loop",
        "tests/behaviour/test_targets.py",
    ),
    Mutant(
        "a_calm_head_turns_over_in_one_update",
        "dtc/core/optimizer.py",
        "clip_by_rms(scaled, cfg.update_clip, cfg.split) if cfg.update_clip else scaled",
        "scaled",
        "test_a_large_gradient_after_a_calm_time_moves_a_tensor_little",
        "tests/core/test_optimizer.py",
    ),
    Mutant(
        "each_device_clips_the_updates_of_its_slice_alone",
        "dtc/core/optimizer.py",
        "slices.mean(squares) if is_cut else squares",
        "squares",
        "test_an_optimiser_in_slices_makes_the_same_updates",
        "tests/core/test_sliced_state.py",
    ),
    Mutant(
        "progress_has_no_error",
        "dtc/curiosity/drive.py",
        "jnp.maximum(material(peak / size, cfg), ERRORS * error)",
        "material(peak / size, cfg)",
        "test_noise_does_not_change_how_fast_boredom_rises",
        "tests/curiosity/test_drive.py",
    ),
    Mutant(
        "progress_counts_alike_where_little_is_left_to_learn",
        "dtc/curiosity/drive.py",
        "material(peak / size, cfg)",
        "cfg.threshold",
        "test_what_is_known_well_stays_boring_while_its_novelty_wavers",
        "tests/curiosity/test_drive.py",
    ),
    Mutant(
        "novelty_is_boring_while_nothing_pays",
        "dtc/curiosity/drive.py",
        "stake * cfg.boredom_up",
        "cfg.boredom_up",
        "test_boredom_rises_in_proportion_to_what_is_at_stake",
        "tests/curiosity/test_drive.py",
    ),
    Mutant(
        "a_reward_free_policy_is_never_bored",
        LEARN,
        "stake(paid[agent.task.name], agent)",
        "stake(paid[agent.acting.name], agent)",
        "test_an_explorer_is_bored_as_far_as_its_task_pays",
    ),
    Mutant(
        "nothing_keeps_the_entropy_of_an_actor_on_the_side",
        "dtc/behaviour/policy.py",
        '(explore, Policy("task", (extrinsic,), entropy, exploring))',
        '(explore, Policy("task", (extrinsic,), entropy))',
        "test_each_mode_has_its_policies_with_the_acting_one_first",
        "tests/behaviour/test_policy.py",
    ),
    Mutant(
        "boredom_does_not_see_what_is_novel",
        "dtc/curiosity/drive.py",
        "is_still & (novel_share <= cfg.novel_share)",
        "is_still",
        "test_nothing_is_boring_while_much_is_novel",
        "tests/curiosity/test_drive.py",
    ),
    Mutant(
        "noise_that_is_never_learned_stays_novel",
        "dtc/curiosity/drive.py",
        "jnp.maximum(NOVEL * state.peak, UNUSUAL * jnp.abs(state.slow))",
        "NOVEL * state.peak",
        "test_noise_that_is_never_learned_gets_boring_and_a_tenth_that_is_new_does_not",
        "tests/curiosity/test_drive.py",
    ),
    Mutant(
        "boredom_lengthens_dreams",
        "dtc/curiosity/drive.py",
        "return num_buckets - 1 - jnp.clip(num_buckets - 1 - bucket, least, most)",
        "return jnp.clip(num_buckets - 1 - bucket, least, most)",
        "test_a_bored_agent_has_shorter_dreams",
    ),
    Mutant(
        "entropy_follows_another_policy_s_advantage",
        f"{AGENT}/learn.py",
        'size = scalars[f"{policy.name}/advantage"]',
        'size = scalars[f"{agent.task.name}/advantage"]',
        "test_the_entropy_weight_follows_its_own_policy",
    ),
    Mutant(
        "an_actor_on_the_side_is_slowed",
        f"{AGENT}/learn.py",
        "paid[policy.name] if policy == agent.acting else jnp.zeros(())",
        "paid[policy.name]",
        "test_an_acting_policy_is_slower_the_more_its_task_pays_and_one_on_the_side_is_not",
    ),
    Mutant(
        "entropy_follows_another_policy_s_entropy",
        f"{AGENT}/learn.py",
        'scalars.get(f"{policy.name}/entropy_share")',
        'scalars.get(f"{agent.task.name}/entropy_share")',
        "test_the_entropy_weight_follows_its_own_policy",
    ),
    Mutant(
        "an_explorer_is_certain_where_novelty_differs_much",
        LEARN,
        "jnp.maximum(USUAL_RANGE / scale, 1.0)",
        "USUAL_RANGE / scale",
        "test_an_explorer_walks_more_freely_where_all_places_are_about_as_novel",
    ),
    Mutant(
        "ranges_stay_in_the_old_unit_of_rewards",
        LEARN,
        "    learner = in_unit(learner, batch.unit)\n",
        "",
        "test_the_range_of_the_task_s_returns_is_read_in_the_unit_of_the_batch",
    ),
    Mutant(
        "an_agent_without_members_gets_bored",
        LEARN,
        "if agent.num_members > 1 else",
        "if agent.num_members >= 0 else",
        "test_boredom_rises_with_what_the_task_pays_if_novelty_is_measured",
    ),
    Mutant(
        "windows_begin_at_the_end_of_episodes",
        f"{AGENT}/batch.py",
        "jnp.where(goes_KB, jnp.abs(value_KB - total_1B / jnp.maximum(num_1B, 1)), 0)",
        "jnp.abs(value_KB - total_1B / jnp.maximum(num_1B, 1))",
        "test_every_fourth_sequence_begins_where_the_value_is_most_unusual",
    ),
    Mutant(
        "values_are_compared_with_those_of_last_states",
        f"{AGENT}/batch.py",
        "(goes_KB * value_KB, goes_KB)",
        "(value_KB, jnp.ones_like(goes_KB))",
        "test_every_fourth_sequence_begins_where_the_value_is_most_unusual",
    ),
    Mutant(
        "rare_starts_are_drawn_with_the_noise_of_even_ones",
        f"{AGENT}/dreams.py",
        "order, noise = (folded(keys, i) for i in range(2))",
        "order, noise = keys, folded(keys, 1)",
        "test_rare_starts_are_drawn_with_noise_of_their_own",
        STARTS_LAWS,
    ),
    Mutant(
        "rarity_of_a_state_counts_forbidden_actions",
        f"{AGENT}/dreams.py",
        "allowed_mean(accum(log), mask)",
        "allowed_mean(accum(log), None)",
        "test_the_rarity_of_a_state_is_the_geometric_mean_over_allowed_actions",
        STARTS_LAWS,
    ),
    Mutant(
        "a_window_without_latents_is_surprised_by_its_first_row",
        f"{AGENT}/model.py",
        "batch.rows._replace(first=batch.first)",
        "batch.rows",
        "test_the_trunk_s_gradient_weighs_the_dynamics_loss_of_each_row",
    ),
    Mutant(
        "a_uniform_policy_stays_uniform",
        "dtc/behaviour/targets.py",
        "toward_entropy(seeking.factor, share, MOST_ENTROPY",
        "toward_entropy(seeking.factor, 0.0 * share, MOST_ENTROPY",
        "test_the_entropy_weight_recovers_when_the_policy_is_no_longer_uniform",
        "tests/behaviour/test_targets.py",
    ),
    # After the gradients
    Mutant(
        "posteriors_are_written_a_row_early",
        "dtc/data/ring.py",
        "slot_TB = (index.slot[None] + 1 + jnp",
        "slot_TB = (index.slot[None] + jnp",
        "test_posteriors_replace_the_latents_of_their_rows_but_not_of_context_rows",
    ),
    Mutant(
        "posteriors_are_not_written_back",
        f"{AGENT}/learn.py",
        "return Learned(after, written(info, agent), scalars, evidence",
        "return Learned(after, None, scalars, evidence",
        "test_posteriors_replace_the_latents_of_their_rows_but_not_of_context_rows",
    ),
    Mutant(
        "moments_of_what_networks_see",
        f"{AGENT}/learn.py",
        "normalizer.deviations(learner.normalizer, batch.encoded)",
        "normalizer.deviations(learner.normalizer, batch.obs)",
        "test_moments_are_of_raw_and_not_of_standardised_observations",
    ),
    Mutant(
        "average_is_of_stale_parameters",
        f"{AGENT}/learn.py",
        "        learner.average,\n        behaviour,\n",
        "        learner.average,\n        learner.params.behaviour,\n",
        "test_slow_critics_and_the_average_follow_the_updated_parameters",
    ),
    Mutant(
        "ranges_never_move",
        f"{AGENT}/learn.py",
        "        ranges=info.ranges,\n",
        "        ranges=learner.ranges,\n",
        "test_moments_and_ranges_are_kept_for_the_next_update",
    ),
    # Evaluation
    Mutant(
        "evaluation_is_of_the_acting_policy",
        f"{AGENT}/algorithm.py",
        '"greedy": with_policy(agent.task,',
        '"greedy": with_policy(agent.acting,',
        "test_evaluation_uses_the_averaged_task_policy_whichever_policy_collects",
    ),
    Mutant(
        "evaluation_is_of_the_latest_parameters",
        f"{AGENT}/algorithm.py",
        '"sampled": with_policy(agent.task, greedy=False, averaged=True)',
        '"sampled": with_policy(agent.task, greedy=False, averaged=False)',
        "test_evaluation_uses_the_averaged_task_policy_whichever_policy_collects",
    ),
    Mutant(
        "an_episode_is_over_one_step_early",
        "dtc/training/evaluation.py",
        "return players, Trace(played.row, played.latent, outcome(alive, players",
        "alive &= ~players.episodes.timestep.last\n"
        "        return players, Trace(played.row, played.latent, outcome(alive, players",
        "test_an_evaluated_episode_has_rewards_until_its_end_and_none_after_it",
    ),
    Mutant(
        "value_is_the_latest_critic_s",
        f"{AGENT}/judging.py",
        "values_fn(agent, learner.average[policy.name], policy, state)",
        "values_fn(agent, learner.params.behaviour[policy.name], policy, state)",
        "test_the_value_bias_is_the_averaged_task_critic_s_value_minus_the_return",
    ),
    Mutant(
        "a_value_is_told_in_the_unit_of_rewards",
        f"{AGENT}/judging.py",
        'return learner.unit.size * values["extrinsic"]',
        'return values["extrinsic"]',
        "test_the_value_bias_is_the_averaged_task_critic_s_value_minus_the_return",
    ),
    Mutant(
        "rewards_are_not_put_in_their_unit",
        f"{AGENT}/batch.py",
        "rows._replace(reward=rows.reward / unit.size)",
        "rows",
        "test_gradients_do_not_depend_on_how_large_rewards_are",
    ),
    Mutant(
        "the_reward_weighs_as_much_as_any_other_loss",
        TRUNK_LOSSES,
        '("reward", "cont")',
        '("cont",)',
        "test_the_total_is_the_mean_of_the_scaled_terms",
        TRUNK_LOSSES_LAWS,
    ),
    Mutant(
        "ends_weigh_as_much_as_any_other_loss",
        TRUNK_LOSSES,
        '("reward", "cont")',
        '("reward",)',
        "test_the_total_is_the_mean_of_the_scaled_terms",
        TRUNK_LOSSES_LAWS,
    ),
    Mutant(
        "vectors_weigh_as_much_as_any_other_loss",
        TRUNK_LOSSES,
        "cfg.vector_scale for name",
        "1.0 for name",
        "test_the_total_is_the_mean_of_the_scaled_terms",
        TRUNK_LOSSES_LAWS,
    ),
    Mutant(
        "entropy_weighs_as_much_in_a_box",
        f"{AGENT}/agent.py",
        "policy.policies(self.behaviour, self.spec.is_discrete)",
        "policy.policies(self.behaviour, True)",
        "test_the_entropy_of_a_box_weighs_less",
    ),
    Mutant(
        "another_episode_is_recalled",
        f"{AGENT}/batch.py",
        "jnp.where(first_TB, t_T1, 0)",
        "jnp.zeros_like(first_TB * t_T1)",
        "test_the_trunk_recalls_rows_of_the_same_episode_in_the_same_sequence",
    ),
    Mutant(
        "the_present_is_recalled",
        TRUNK_LOSSES,
        "[earlier_TB, columns]",
        "",
        "test_recall_is_the_loss_of_an_earlier_row_decoded_from_the_recurrent_state",
        TRUNK_LOSSES_LAWS,
    ),
    Mutant(
        "recall_does_not_hear_the_age",
        "dtc/world_model/rssm.py",
        "rows = accum(age)[..., None]",
        "rows = 0 * accum(age)[..., None]",
        "test_what_is_recalled_depends_on_its_age",
        TRUNK_LOSSES_LAWS,
    ),
    Mutant(
        "the_trunk_starts_without_memory",
        "dtc/world_model/recurrent.py",
        "bias_init=init)",
        "bias_init=nn.initializers.zeros)",
        "test_the_core_starts_with_these_memories_and_without_them_all_units_are_alike",
        "tests/world_model/test_rssm.py",
    ),
    Mutant(
        "rarity_shapes_the_state",
        "dtc/world_model/rssm.py",
        "self.rarity(lax.stop_gradient(self.read(feature)))",
        "self.rarity(self.read(feature))",
        "test_rarity_costs_the_squared_error_of_its_log_and_does_not_reach_the_state",
        TRUNK_LOSSES_LAWS,
    ),
    Mutant(
        "novelty_is_not_multiplied_by_rarity",
        f"{AGENT}/dreams.py",
        "novelty = novelty * rarity_fn(agent, learner, state, action)",
        "pass",
        "test_novelty_in_dreams_is_disagreement_times_the_predicted_rarity",
    ),
    Mutant(
        "rows_are_hashed_by_what_came_alone",
        f"{AGENT}/model.py",
        "seen.foretold(agent.precision)",
        "seen.feature(agent.precision)",
        "test_rows_are_rare_by_what_was_replayed_before_and_then_counted",
    ),
    Mutant(
        "rarity_counts_places_with_another_action",
        f"{AGENT}/model.py",
        "rarity.taken(hashes, rows.action)",
        "rarity.taken(hashes, 0 * rows.action)",
        "test_rows_are_rare_by_what_was_replayed_before_and_then_counted",
    ),
    Mutant(
        "all_actions_share_the_bucket_of_their_place",
        "dtc/curiosity/rarity.py",
        "jnp.asarray(ACTION * directions[size:])",
        "0 * jnp.asarray(ACTION * directions[size:])",
        "test_an_action_that_was_never_taken_in_a_place_is_rare_there",
        "tests/curiosity/test_rarity.py",
    ),
    Mutant(
        "all_rows_of_the_dynamics_loss_weigh_alike",
        f"{AGENT}/model.py",
        "losses.total(weighted, agent.trunk)",
        "losses.total(terms, agent.trunk)",
        "test_the_trunk_s_gradient_weighs_the_dynamics_loss_of_each_row",
    ),
    Mutant(
        "each_device_weighs_rows_by_its_own_mean",
        TRUNK_LOSSES,
        "        (dyn.mean(), (later * dyn).mean(), later.mean()), *mesh.AXES\n",
        "        (dyn.mean(), (later * dyn).mean(), later.mean())\n",
        "test_rows_weigh_by_the_mean_of_all_devices",
        TRUNK_LOSSES_LAWS,
    ),
    Mutant(
        "a_random_start_weighs_more",
        TRUNK_LOSSES,
        "jnp.where(first, 1.0, jnp.minimum(k, most))",
        "jnp.minimum(k, most)",
        "test_unexpected_rows_weigh_more_and_the_mean_stays",
        TRUNK_LOSSES_LAWS,
    ),
    Mutant(
        "unexpected_rows_make_the_dynamics_loss_larger",
        TRUNK_LOSSES,
        "return weight * in_all / jnp.maximum(weighted, LEAST_NATS)",
        "return weight",
        "test_unexpected_rows_weigh_more_and_the_mean_stays",
        TRUNK_LOSSES_LAWS,
    ),
    Mutant(
        "rare_rows_weigh_no_more_than_common_ones",
        TRUNK_LOSSES,
        "jnp.sqrt(rare) * jnp.square",
        "jnp.square",
        "test_rows_are_rare_by_what_was_replayed_before_and_then_counted",
    ),
    Mutant(
        "buckets_have_hard_edges",
        "dtc/curiosity/rarity.py",
        "jnp.minimum(above, 1 - above).min(-1)",
        "jnp.ones_like(above[..., 0])",
        "test_crossing_an_edge_changes_shares_and_rarity_as_little_as_any_rounding_error",
        "tests/curiosity/test_rarity.py",
    ),
    Mutant(
        "edges_of_buckets_are_steep",
        "dtc/curiosity/rarity.py",
        "jnp.square(jnp.minimum(above, 1 - above).min(-1))",
        "jnp.minimum(above, 1 - above).min(-1)",
        "test_rounding_errors_of_what_was_replayed_hardly_change_rarity",
        "tests/curiosity/test_rarity.py",
    ),
    Mutant(
        "common_rows_hide_rare_ones_in_their_bucket",
        "dtc/curiosity/rarity.py",
        "(jnp.square(rows.weight) * ratio).mean(-1)",
        "usual / jnp.where(usual > 0, (counts * rows.weight).mean(-1), 1)",
        "test_the_count_of_a_rare_cell_is_right_among_hundreds_of_common_ones",
        "tests/curiosity/test_rarity.py",
    ),
    Mutant(
        "noise_of_the_value_chooses",
        f"{AGENT}/batch.py",
        "far_KB.max(0) > UNUSUAL",
        "far_KB.max(0) > 0",
        "test_values_that_hardly_differ_choose_nothing",
    ),
    Mutant(
        "chosen_dreams_count_in_the_ranges",
        "dtc/behaviour/targets.py",
        "runs_Hn) & rollout.usual[None]",
        "runs_Hn)",
        "test_dreams_from_chosen_starts_are_judged_but_not_by_their_own_returns",
        "tests/behaviour/test_targets.py",
    ),
    Mutant(
        "dreams_of_a_sequence_count_by_the_weight_of_another",
        f"{AGENT}/dreams.py",
        "batch.weight[:, None] > 0",
        "batch.weight[::-1, None] > 0",
        "test_dreams_start_at_sampled_posteriors_with_global_ids_and_are_not_alive_if_terminal",
    ),
    Mutant(
        "usual_states_are_replayed_more_often",
        f"{AGENT}/batch.py",
        "far_KB.argmax(0), 0)",
        "far_KB.argmin(0), 0)",
        "test_every_fourth_sequence_begins_where_the_value_is_most_unusual",
    ),
    Mutant(
        "rows_that_were_chosen_count",
        f"{AGENT}/model.py",
        "jnp.broadcast_to(batch.weight, taken.bucket.shape[:-1])",
        "jnp.ones(taken.bucket.shape[:-1])",
        "test_rows_are_rare_by_what_was_replayed_before_and_then_counted",
    ),
    Mutant(
        "rows_are_never_counted",
        f"{AGENT}/learn.py",
        "learner.seen, grads.shares),",
        "learner.seen, learner.seen),",
        "test_moments_and_ranges_are_kept_for_the_next_update",
    ),
    Mutant(
        "counts_are_of_one_device",
        f"{AGENT}/learn.py",
        "return Gradients(trunk, members, behaviour, away, counted)",
        "return Gradients(trunk, members, behaviour, away, local.shares)",
        "test_gradients_are_means_over_the_mesh_and_those_of_members_are_weighted",
    ),
    # PPO
    Mutant(
        "ppo_takes_a_time_limit_for_death",
        PPO,
        "jnp.where(reached.terminated, 0.0, agent.cfg.discount)",
        "jnp.where(reached.last, 0.0, agent.cfg.discount)",
        "test_targets_are_lambda_returns_that_ends_cut_and_time_limits_bootstrap",
        PPO_LAWS,
    ),
    Mutant(
        "ppo_chains_returns_over_a_time_limit",
        PPO,
        "jnp.where(reached.last, 0.0, agent.cfg.lam)",
        "jnp.where(reached.terminated, 0.0, agent.cfg.lam)",
        "test_targets_are_lambda_returns_that_ends_cut_and_time_limits_bootstrap",
        PPO_LAWS,
    ),
    Mutant(
        "ppo_forgets_the_mask_in_the_update",
        PPO,
        "rows.obs, rows.action, rows.action_mask, log_p",
        "rows.obs, rows.action, None, log_p",
        "test_at_unchanged_parameters_log_probabilities_are_those_that_were_stored",
        PPO_LAWS,
    ),
    Mutant(
        "ppo_bootstraps_from_the_new_episode",
        "dtc/training/acting.py",
        "new, reached = players.episodes.timestep, players.episodes.env.held",
        (
            "new, reached = players.episodes.timestep, players.episodes.env.held\n"
            "        reached = reached and reached._replace(obs=new.obs)"
        ),
        "test_the_value_of_what_was_reached_is_of_the_ended_episode_not_of_the_new_one",
        PPO_LAWS,
    ),
    Mutant(
        "ppo_shuffles_all_passes_alike",
        PPO,
        "step = draws.update * agent.cfg.epochs + number",
        "step = draws.update * agent.cfg.epochs + 0 * number",
        "test_every_environment_permutes_its_own_rows_by_its_number",
        PPO_LAWS,
    ),
    Mutant(
        "ppo_clips_gains_on_one_side_only",
        "dtc/algorithms/ppo/losses.py",
        "jnp.clip(ratio, 1 - clip, 1 + clip)",
        "jnp.minimum(ratio, 1 + clip)",
        "test_the_policy_loss_is_the_clipped_objective",
        PPO_LAWS,
    ),
    Mutant(
        "ppo_forgets_the_unit_of_returns_in_its_loss",
        PPO,
        "target=batch.target / unit",
        "target=batch.target",
        "test_rewards_of_another_size_give_the_same_gradients_and_values_in_proportion",
        PPO_LAWS,
    ),
    Mutant(
        "ppo_never_stops_for_its_kl",
        PPO,
        "(passes.done < agent.cfg.epochs) & is_near",
        "(passes.done < agent.cfg.epochs) & (is_near | True)",
        "test_a_policy_that_has_moved_too_far_ends_the_update",
        PPO_LAWS,
    ),
    Mutant(
        "ppo_sums_over_devices_what_decides",
        PPO,
        "means = metrics.reduce(jax.tree.map(lambda x: x.mean(0), parts))",
        "means = jax.tree.map(lambda x: mesh.psum(x.mean(0), *mesh.AXES), parts)",
        "test_the_kl_limit_and_the_entropy_target_decide_alike_on_every_mesh",
        PPO_LAWS,
    ),
    Mutant(
        "ppo_forgets_what_it_has_seen",
        PPO,
        "    return learner._replace(normalizer=moments)\n",
        "    return learner\n",
        "test_ppo_learns_the_moments_of_the_observations_it_collects",
        PPO_LAWS,
    ),
    # The guard of an update
    Mutant(
        "bad_update_writes_its_latents",
        GUARD,
        "ring.write_back(replay, learned.written, is_good)",
        "ring.write_back(replay, learned.written)",
        "test_a_bad_update_leaves_learner_and_latents_and_advances_the_counters",
        GUARD_LAWS,
    ),
    Mutant(
        "guard_looks_at_this_device_alone",
        "dtc/training/guard.py",
        "mesh.psum(jnp.stack(broken).any().astype(jnp.float32), *mesh.AXES)",
        "mesh.of_first_device(jnp.stack(broken).any().astype(jnp.float32))",
        "test_a_bad_row_on_any_device_is_seen_by_all",
        GUARD_LAWS,
    ),
    Mutant(
        "guard_does_not_look_at_members",
        LEARN,
        '"behaviour": behaviour_info, "members": members_info}',
        '"behaviour": behaviour_info}',
        "test_steps_of_finite_norm_leave_all_finite_that_the_guard_does_not_look_at",
        LEARN_LAWS,
    ),
    Mutant(
        "guard_looks_at_steps_alone",
        LEARN,
        "evidence=(steps, taken, rest)",
        "evidence=steps",
        "test_the_guard_looks_at_all_of_the_learner_that_no_step_decides",
        LEARN_LAWS,
    ),
    Mutant(
        "bad_update_does_not_advance_the_number",
        GUARD,
        "        update=carrier.update + 1,\n        skipped",
        "        update=carrier.update + is_good,\n        skipped",
        "test_a_bad_update_leaves_learner_and_latents_and_advances_the_counters",
        GUARD_LAWS,
    ),
    Mutant(
        "broken_step_goes_on",
        "dtc/envs/vector.py",
        "        truncated=jnp.ones_like(before.truncated),",
        "        truncated=jnp.zeros_like(before.truncated),",
        "test_a_bad_step_becomes_a_cut_episode_and_the_next_call_resets",
        GUARD_LAWS,
    ),
    # Commands
    Mutant(
        "foresight_counts_cells_seen_too_late",
        FORESIGHT,
        "known[sighted[0], rows[t][sighted], columns[t][sighted]]",
        "known[sighted[0], rows[end][sighted], columns[end][sighted]]",
        "test_only_resources_seen_before_the_dream_count",
        FORESIGHT_LAWS,
    ),
    Mutant(
        "foresight_dreams_with_the_next_action",
        FORESIGHT,
        "action_TNA[t + step]",
        "action_TNA[t + step + 1]",
        "test_walks_are_foreseen_from_their_latents_and_actions",
        FORESIGHT_LAWS,
    ),
)


def planted(mutant: Mutant, text: str) -> str:
    """The text of the mutant's file with its fault.

    Raises:
      ValueError: the source text does not occur exactly once.
    """
    count = text.count(mutant.source)
    if count != 1:
        raise ValueError(f"{mutant.name}: its text occurs {count} times in {mutant.file}, not once")
    return text.replace(mutant.source, mutant.replacement)


class Verdict(NamedTuple):
    """The result of running a fault's test."""

    word: str  # SEEN, MISSED or BROKEN: the test did not run
    how: str  # the first error
    seconds: float


def environment(copy: Path) -> dict[str, str]:
    """Environment variables with which `dtc` is imported from the copy."""
    return os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}


def tried(mutant: Mutant, copy: Path) -> Verdict:
    """Plants the fault in the copy, runs its test and removes the fault again."""
    path, begin = copy / mutant.file, time.monotonic()
    whole = path.read_text()
    path.write_text(planted(mutant, whole))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", mutant.node]
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment(copy), capture_output=True, text=True
        )
    finally:
        path.write_text(whole)
    error = re.search(r"^E +(?!AssertionError: *$)(.*\S)", done.stdout, re.MULTILINE)
    word = {0: "MISSED", 1: "SEEN"}.get(done.returncode, "BROKEN")
    how = error.group(1) if error else ""
    return Verdict(word, how[:60], time.monotonic() - begin)


def main() -> int:
    """Tries the chosen faults and prints one line each; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="only list the faults")
    parser.add_argument("--only", action="append", help="the fault of this name; may be repeated")
    args = parser.parse_args()
    known = [m.name for m in MUTANTS]
    if unknown := set(args.only or ()) - set(known):
        parser.error(f"--only={sorted(unknown)[0]} is not a fault. Use --list.")
    chosen = [m for m in MUTANTS if args.only is None or m.name in args.only]
    if args.list:
        for m in chosen:
            print(f"{m.name:52} {m.file:38} {m.test}")
        return 0
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            put = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            put(ROOT / name, copy / name)
        where = [sys.executable, "-c", "import dtc; print(dtc.__file__)"]
        found = subprocess.check_output(where, cwd=copy, env=environment(copy), text=True)
        assert found.startswith(folder), f"dtc is imported from {found}, not from the copy"
        for m in chosen:
            verdicts.append(tried(m, copy))
            word, how, seconds = verdicts[-1]
            print(f"{word:7} {seconds:5.0f} s  {m.name:52} {how}", flush=True)
    seen = sum(v.word == "SEEN" for v in verdicts)
    print(f"{seen} of {len(verdicts)} faults were detected")
    return int(seen < len(verdicts))


if __name__ == "__main__":
    sys.exit(main())
