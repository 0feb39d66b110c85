"""The command line: accepted flags, and one sentence for every invalid one."""

import pytest

from dtc.commands import train
from dtc.config.errors import ConfigError, IdentityError
from dtc.config.schema import declarations
from dtc.host import command, identity, recorded
from dtc.host.cluster import Processes


def parse(*args):
    return command.parse(["dtc train", *args])


def refusal(*args):
    with pytest.raises(ConfigError) as error:
        parse(*args)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_default_config_is_local_from_any_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert parse().cfg.name == "local"
    assert parse("--config=configs/v4_16.py").cfg.slice == "v4-16"


def test_shortcuts_set_their_settings():
    wanted = parse("--mesh=2,4", "--seed=3", "--updates=2", "--devices=8")
    cfg = wanted.cfg
    assert (cfg.mesh.data, cfg.mesh.ensemble, cfg.seed) == (2, 4, 3)
    assert (cfg.run.updates, wanted.num_devices) == (2, 8)
    assert parse("--steps=1000").cfg.run.steps == 1000


@pytest.mark.parametrize("text", ["1000000", "1e6", "1M", "1000k", "1_000_000"])
def test_whole_numbers_may_be_abbreviated(text):
    cfg = parse(f"--steps={text}", f"--config.replay.slots={text}").cfg
    assert cfg.run.steps == cfg.replay.slots == 1_000_000


def test_the_last_of_several_values_holds():
    assert parse("--config=smoke", "--config=v4_8", "--seed=1", "--seed=2").cfg.seed == 2
    assert parse("--config=smoke", "--config=v4_8").cfg.name == "v4_8"


def test_every_setting_can_be_overridden_before_or_after_the_config_flag():
    args = ("--config.dream.horizons=8,24", "--config=configs/v4_8.py", "--config.replay.slots=128")
    cfg = parse(*args, "--noconfig.replay.latents", "--config.replay.frontier", "96").cfg
    assert (cfg.dream.horizons, cfg.replay.slots, cfg.replay.frontier) == ((8, 24), 128, 96)
    assert not cfg.replay.latents


def test_a_preset_goes_before_the_sizes_of_a_config():
    model = parse("--config=v4_8", "--config.model.size=400m", "--config.model.depth=48").cfg.model
    assert (model.deter, model.classes, model.depth) == (12288, 96, 48)
    assert parse("--config=v4_8").cfg.model.deter == 1024


BAD = [
    (("--config=configs/v4_9.py",), "Did you mean configs/v4_8.py?"),
    (("--stpes=3",), "--stpes is not a flag. Did you mean --steps?"),
    (("--nosteps",), "--nosteps is not a flag"),
    (("--steps=1.5",), "--steps=1.5 is not a whole number of at least 0"),
    (("--seed=-1",), "--seed=-1 is not a whole number of at least 0"),
    (("--devices=two",), "--devices=two is not a whole number of at least 0"),
    (("--devices=-1",), "--devices=-1 is not a whole number of at least 0"),
    (("--config.replay.bach=3",), "Did you mean --config.replay.batch?"),
    (("--config.replay.batch=3.5",), "replay.batch=3.5 is not a whole number"),
    (("--config.dream.horizons=8,x",), "dream.horizons=8,x is not a tuple of numbers"),
    (("--config.replay=3",), "--config.replay is a group of settings. Use --config.replay.NAME="),
    (("--config.replay.latents=3",), "replay.latents=3 is not True or False"),
    (("--config.model.deter=x",), "model.deter=x is not a whole number."),
    (("--config.model.size=13m",), "model.size=13m is not one of nano, 1m"),
    (("--noconfig.replay.slots",), "is not a flag. Did you mean --config.replay.slots?"),
    (("--resume=3",), "--resume=3 is not True or False"),
    (("--workdir",), "workdir"),
    (("--mesh=8",), "--mesh=8 is not DATA,ENSEMBLE"),
    (("--resume",), "Use --workdir=DIR"),
    (("--num_processes=2",), "needs --coordinator. Use --coordinator=HOST:8476"),
    (("--num_processes=2", "--coordinator=a:1"), "Use --workdir=DIR"),
    (("--coordinator=a",), "--coordinator=a is not HOST:PORT"),
    (("--workdir=gs://bucket/run",), "Mount the bucket, for example with gcsfuse"),
    (("--process_id=2",), "is not below --num_processes=1"),
    (("hello",), "hello is not a flag"),
]


@pytest.mark.parametrize(("args", "part"), BAD, ids=[a[0] for a, _ in BAD])
def test_a_mistyped_command_is_refused_in_one_line(args, part):
    assert part in refusal(*args)


def test_a_run_directory_is_neither_overwritten_nor_resumed_from_nothing(tmp_path):
    assert "holds no run to resume" in refusal(f"--workdir={tmp_path / 'x'}", "--resume")
    assert "holds no config.json" in refusal(f"--workdir={tmp_path}", "--resume")
    recorded.write(tmp_path, parse("--config=smoke").cfg)
    (tmp_path / "checkpoints" / "20").mkdir(parents=True)
    assert "holds a run" in refusal(f"--workdir={tmp_path}")
    assert parse(f"--workdir={tmp_path}", "--resume").resume


def test_a_run_that_may_be_restarted_starts_once_and_continues_from_then_on(tmp_path):
    args = (f"--workdir={tmp_path}", "--auto_resume")
    (tmp_path / "checkpoints" / "20.orbax-checkpoint-tmp").mkdir(parents=True)
    assert not parse(*args).resume
    assert not parse(*args[:1]).resume, "killed before its first checkpoint"
    recorded.write(tmp_path, parse().cfg)
    (tmp_path / "checkpoints" / "20").mkdir()
    assert parse(*args).resume


def test_processes_come_from_flags_first_and_from_the_environment_otherwise(tmp_path):
    found = Processes("host:1", 4, 2, "SLURM")
    args = ["dtc train", f"--workdir={tmp_path}"]
    assert command.parse(args, found).processes == found
    flags = ["--coordinator=a:2", "--num_processes=2", "--process_id=1"]
    assert command.parse([*args, *flags], found).processes == Processes("a:2", 2, 1)
    with pytest.raises(ConfigError, match=r"of 4 processes needs the run directory"):
        command.parse(args[:1], found)


def test_a_run_that_was_killed_before_its_first_checkpoint_may_start_again(tmp_path):
    recorded.write(tmp_path, parse("--config=smoke").cfg)
    (tmp_path / "checkpoints" / "20.orbax-checkpoint-tmp").mkdir(parents=True)
    assert not parse("--config=smoke", f"--workdir={tmp_path}").resume
    assert parse(f"--workdir={tmp_path}", "--resume").cfg.name == "smoke"


@pytest.mark.faults
def test_a_resumed_run_has_its_own_settings_and_flags_change_only_free_ones(tmp_path):
    recorded.write(tmp_path, parse("--config=smoke", "--seed=3", "--mesh=2,1").cfg)
    again = [f"--workdir={tmp_path}", "--resume"]
    cfg = parse(*again, "--updates=99", "--config.run.log_every=7").cfg
    assert (cfg.name, cfg.seed, cfg.mesh.data) == ("smoke", 3, 2)
    assert (cfg.run.updates, cfg.run.log_every) == (99, 7)
    assert parse(*again, "--config=smoke", "--seed=3").cfg.seed == 3
    for flag, sentence in {
        "--seed=4": "seed=4 is not what",
        "--config.optimizer.model_lr=1e-5": "optimizer.model_lr=1e-05 is not what",
        "--config.behaviour.discount=0.5": "behaviour.discount=0.5 is not what",
        "--config=v4_8": "env.num_envs=",
    }.items():
        with pytest.raises(IdentityError, match=sentence) as error:
            parse(*again, flag)
        assert error.value.status == 77 and "Use --" in str(error.value)


def test_every_free_setting_is_a_setting():
    assert set(identity.FREE) <= declarations().keys()


def test_the_parameters_to_start_from_are_chosen_by_pattern(tmp_path):
    assert "--init_from" in refusal("--init_groups=learner/*")
    assert "holds no checkpoints" in refusal(f"--init_from={tmp_path}")
    (tmp_path / "checkpoints").mkdir()
    assert parse(f"--init_from={tmp_path}").init == (tmp_path, ("learner/params/*",))
    groups = parse(f"--init_from={tmp_path}", "--init_groups=a/*,b").init.patterns
    assert groups == ("a/*", "b")


def test_help_is_printed_with_status_0_and_an_unknown_section_is_refused(capsys):
    assert train.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "--workdir=DIR" in text and "Configs: base, dreamerv3," in text and "  replay " in text
    assert train.main(["--help=replay"]) == 0
    assert "--config.replay.slots=4096" in capsys.readouterr().out
    assert train.main(["--help=repla"]) == 2
    assert "Did you mean replay?" in capsys.readouterr().err


def test_a_refused_command_leaves_status_2_and_nothing_on_disk(tmp_path, capsys):
    workdir = tmp_path / "run"
    assert train.main(["--devices=8", "--mesh=3,1", f"--workdir={workdir}"]) == 2
    assert capsys.readouterr().err.startswith("mesh=3,1 is not 8 devices")
    assert not workdir.exists()


@pytest.mark.parametrize(
    ("script", "started_as"),
    [
        ("launch/main.py", "python launch/main.py"),
        ("/home/x/venv/bin/dtc", "dtc train"),
        ("/home/x/dtc/commands/__main__.py", "dtc train"),
    ],
)
def test_the_command_to_continue_keeps_the_settings(monkeypatch, script, started_as):
    monkeypatch.setattr(train.sys, "argv", [script])
    typed = [train.started_as(), "--config=configs/smoke.py", "--workdir=a", "--seed=3"]
    text = command.to_continue(typed, "runs/x y")
    assert text == (
        f"{started_as} --config=configs/smoke.py --seed=3 '--workdir=runs/x y' --resume"
    )
    assert command.to_continue([*typed, "--resume"], "b").count("--resume") == 1


def test_the_command_to_continue_keeps_a_value_that_is_a_separate_argument():
    text = command.to_continue(["dtc train", "--workdir", "a", "--config", "smoke"], "b")
    assert text == "dtc train --config smoke --workdir=b --resume"
