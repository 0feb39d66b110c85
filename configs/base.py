"""Every setting with its default; the other configs change a few lines of it.

    python launch/main.py --config.SECTION.FIELD=VALUE

Each field is described where its dataclass stands: in dtc/config.py and the modules it names.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """All settings. None in `model` means: from the preset `model.size`."""
    c = ml_collections.ConfigDict
    none = ml_collections.config_dict.placeholder  # one each: fields with the same one are linked
    return c(
        dict(
            name="base",
            seed=0,
            slice="",  # TPU slice whose devices are wanted, e.g. v4-8; "": whatever is there
            mesh=dict(data=-1, ensemble=1),  # -1: the rest of the devices
            precision=dict(compute="auto", param="float32"),  # auto: bfloat16 on TPU and GPU
            env=dict(name="feeder_ego", num_envs=64),
            replay=dict(
                slots=4096,  # M, rows of each environment
                batch=16,  # B, sequences of an update, over the whole mesh
                length=32,  # T, rows of a sequence (one more is read as context)
                frontier=1024,  # F, newest rows the frontier half samples from
                latents=True,  # second ring with the acting-time latents
            ),
            model=dict(
                size="nano",
                deter=none(int),
                groups=none(int),
                classes=none(int),
                hidden=none(int),
                units=none(int),
                depth=none(int),
                blocks=8,
                encoder_layers=3,
                decoder_layers=3,
                prior_layers=2,
                posterior_layers=1,
                head_layers=1,
                unimix=0.01,
                code_gradient="straight_through",  # of the drawn codes: straight_through | reinmax
                dyn_free_nats=1.0,
                rep_free_nats=1.0,
                dyn_scale=1.0,
                rep_scale=0.1,
                value_scale=0.3,
                value_grad=True,
                standardise=True,
                bins=255,
            ),
            ensemble=dict(members=5, data_share=1.0),
            curiosity=dict(
                novelty="jsd",  # jsd | anova | seed | error | rnd
                fast_rate=0.1,
                slow_rate=0.005,
                threshold=0.05,
                warmup=200,
                boredom_up=1 / 2000,
                boredom_down=1 / 200,
                hysteresis=0.05,
            ),
            dream=dict(starts=128, horizons=(8, 16, 32), chunk=8, end=0.8),
            behaviour=dict(
                mode="mix",
                layers=3,
                pool_units=64,
                discount=1 - 1 / 333,
                intrinsic_discount=1 - 1 / 333,
                lam=0.95,
                entropy=3e-4,
                explore_entropy=0.6,
                entropy_rate=0.05,
                unimix=0.01,
                extrinsic_weight=1.0,
                intrinsic_weight=0.1,
                extrinsic_floor=1.0,
                intrinsic_floor=0.01,
                return_rate=0.01,
                percentiles=(5.0, 95.0),
                slow_rate=0.02,
                slow_scale=1.0,
                average_rate=0.1,
            ),
            optimizer=dict(
                model_lr=3e-4,
                member_lr=3e-4,
                actor_lr=3e-4,
                explore_lr=3e-4,
                critic_lr=3e-4,
                warmup=100,
                model_decay=0,
                behaviour_warmup=1000,
                agc=0.3,
                agc_floor=1e-3,
                beta1=0.9,
                beta2=0.999,
                eps=1e-20,
            ),
            run=dict(
                steps=300_000,  # env steps of the run
                updates=0,  # > 0: stop after this many updates instead
                prefill=64,  # rows of each environment collected before the first update
                collect_steps=2,  # R, env calls of each environment an iteration
                updates_per_collect=1,  # G, updates an iteration
                log_every=50,  # updates a log line
                eval_every=1000,  # updates an evaluation
                checkpoint_every=2000,  # updates a checkpoint
                eval_episodes=32,
                profile=(0, 0),  # first and last update of a profiler trace; (0, 0): none
            ),
        )
    )
