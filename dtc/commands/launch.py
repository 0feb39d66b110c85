"""Starts a run of several processes: `dtc launch ENGINE OPTIONS -- FLAGS`, FLAGS being dtc train's.

dtc launch local --processes=4 --devices-per-process=2 -- --config=smoke
dtc launch tpu_vm --name=NAME --zone=ZONE -- --config=v4_32 --workdir=DIR
dtc launch tpu_queue --name=NAME --zone=ZONE -- --config=v4_32 --workdir=DIR
dtc launch gke --image=IMAGE --bucket=BUCKET -- --config=v4_32 --workdir=/bucket/DIR
dtc launch xpk --image=IMAGE --cluster=CLUSTER -- --config=v4_32 --workdir=DIR
dtc launch slurm --nodes=4 -- --config=local --workdir=DIR
dtc launch host -- --config=v4_32 --workdir=DIR

--dry-run prints what would run.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from dtc.commands.arguments import Parser, at_least, seconds, word
from dtc.config.errors import ConfigError
from dtc.host.cluster import PORT

ENGINES = {
    "local": "processes on this machine, each with simulated devices",
    "tpu_vm": "all workers of a Cloud TPU VM slice, over ssh",
    "tpu_queue": "a queued Cloud TPU resource, whose workers train when they boot",
    "gke": "a JobSet on GKE",
    "xpk": "a workload of xpk on GKE",
    "slurm": "a batch job of SLURM",
    "host": "this host's process of a run on a slice; what the TPU engines start on each host",
}


def main(argv: Sequence[str]) -> int:
    """Launches; returns the run's exit status, 2 after one sentence for an invalid command."""
    split = list(argv).index("--") if "--" in argv else len(argv)
    options, flags = list(argv[:split]), list(argv[split + 1 :])
    args, others = parser().parse_known_args(options)
    try:
        if others:
            use = f"Use dtc launch {args.engine} ... -- {shlex.join([*others, *flags])}"
            rule = f"is not a flag of dtc launch {args.engine}; those of dtc train follow a --"
            raise ConfigError(f"{others[0]} {rule}. {use}.")
        if args.engine in ("local", "host"):
            from dtc.launchers import local

            return getattr(local, args.engine)(flags, args, typed(options))
        return _launch(args, flags, typed(options))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2


def _launch(args: argparse.Namespace, flags: Sequence[str], before: str) -> int:
    """Prints or carries out the plan of an engine."""
    from dtc.launchers import job, kubernetes, plan, slurm, tpu  # these import JAX

    makes = {
        "tpu_vm": tpu.tpu_vm,
        "tpu_queue": tpu.tpu_queue,
        "gke": kubernetes.gke,
        "xpk": kubernetes.xpk,
        "slurm": slurm.slurm,
    }
    hosts = args.nodes * args.tasks_per_node if args.engine == "slurm" else 0
    planned = makes[args.engine](job.make(flags, args, before, hosts))
    plan.check_secrets(planned, os.environ)
    if args.dry_run:
        print(plan.shown(planned))
        return 0
    status = plan.carry_out(planned)
    if planned.note and not status:
        print(planned.note)
    return status


def typed(options: Sequence[str]) -> str:
    """The command up to the `--`, as it is typed to launch the run again."""
    options = [option for option in options if option != "--dry-run"]
    script = Path(sys.argv[0])
    if script.suffix == ".py" and script.stem != "__main__":
        return f"python {shlex.join([sys.argv[0], *options[1:], '--'])}"
    return f"dtc launch {shlex.join([*options, '--'])}"


def parser() -> argparse.ArgumentParser:
    """The options of every engine."""
    form = argparse.RawDescriptionHelpFormatter
    whole = Parser(prog="dtc launch", description=__doc__, formatter_class=form, allow_abbrev=False)
    engines = whole.add_subparsers(dest="engine", required=True, metavar="ENGINE")
    for name, line in ENGINES.items():
        engine = engines.add_parser(
            name, help=line, description=f"Runs {line}.", allow_abbrev=False
        )
        engine.add_argument("--dry-run", action="store_true", help="print what would run")
        if name not in ("gke", "xpk"):
            engine.add_argument(
                "--identical-failures",
                type=at_least(1),
                default=3,
                metavar="N",
                help="give up after N failures in a row with one exit status and no new "
                "checkpoint; default 3, and 1 never starts again",
            )
        if name in ("local", "host"):
            _add_limits(engine, name)
        else:
            _add_remote(engine, name)
    return whole


def _add_limits(engine: argparse.ArgumentParser, name: str) -> None:
    """Options of processes on this machine."""
    add = engine.add_argument
    add(
        "--timeout",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="end the run after this, status 124",
    )
    if name == "local":
        add("--processes", type=at_least(1), default=2, metavar="N", help="processes; default 2")
        add("--devices-per-process", type=at_least(1), default=1, metavar="N", help="default 1")
        add(
            "--grace",
            type=seconds,
            default=15.0,
            metavar="SECONDS",
            help="given to the others when one has failed; default 15",
        )


def _add_remote(engine: argparse.ArgumentParser, name: str) -> None:
    """Options of engines that start processes elsewhere."""
    add = engine.add_argument
    add("--name", default="", help="of the slice or the job; default dtc-CONFIG")
    add("--port", type=at_least(1), default=PORT, metavar="N", help=f"of process 0; default {PORT}")
    add("--python", default="python3", metavar="PATH", help="interpreter there; default python3")
    if name in ("tpu_vm", "tpu_queue", "slurm"):
        add("--directory", default=".", metavar="DIR", help="where the hosts run it")
        add("--setup", default="", metavar="COMMAND", help="shell command on each host before")
    if name in ("tpu_vm", "tpu_queue"):
        add("--image", default="", help="of the VM; default Google's for the kind of TPU")
        add("--spot", action="store_true", help="cheaper, and may be taken away at any time")
    if name in ("tpu_vm", "tpu_queue", "xpk"):
        add("--zone", type=word, required=name != "xpk", help="e.g. us-central2-b")
        add("--project", default="", help="default: gcloud's")
    if name == "tpu_vm":
        add("--create", action="store_true", help="create the slice, and delete it at the end")
    if name in ("gke", "xpk"):
        add("--image", type=word, required=True, help="container with dtc and libtpu")
    if name == "gke":
        add("--bucket", default="", help="Cloud Storage bucket, mounted at /bucket")
        add("--service-account", default="", metavar="NAME", help="that may write to the bucket")
        add("--secret", default="", metavar="NAME", help="Kubernetes secret, as variables")
    if name == "xpk":
        add("--cluster", type=word, required=True, help="made by xpk cluster create")
    if name == "slurm":
        add("--nodes", type=at_least(1), required=True, metavar="N", help="number of nodes")
        add("--tasks-per-node", type=at_least(1), default=1, metavar="N", help="default 1")
        add("--gpus-per-node", default="", metavar="N", help="as sbatch takes it")
        add("--partition", default="", metavar="NAME", help="as sbatch takes it")
        add("--time", default="", metavar="LIMIT", help="as sbatch takes it")
