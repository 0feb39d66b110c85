"""Cloud TPU: a slice that exists or is created now, and one that is queued for."""

import shlex

from dtc.launchers.job import Job, host_script
from dtc.launchers.plan import File, Plan

# Runtime images by TPU version; v4 slices are named by cores, the others by chips.
IMAGES = {
    "v4": "tpu-ubuntu2204-base",
    "v5litepod": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}


def accelerator_type(name: str) -> str:
    """The name that gcloud has for a slice: v5e-16 is v5litepod-16."""
    return name.replace("v5e-", "v5litepod-")


def tpu_vm(job: Job) -> Plan:
    """One command to all workers of a slice; with --create the slice lives as long as the run."""
    vm = ("gcloud", "compute", "tpus", "tpu-vm")
    where = _where(job)
    create = (*vm, "create", job.name, *where, *_kind(job, "version"))
    ssh = (*vm, "ssh", job.name, *where, "--worker=all", f"--command={host_script(job)}")
    delete = (*vm, "delete", job.name, *where, "--quiet")
    if not job.args.create:
        return Plan(commands=(ssh,))
    return Plan(commands=(create, ssh), last=(delete,))


def tpu_queue(job: Job) -> Plan:
    """A queued resource whose workers train as soon as they boot, and again after each reboot."""
    queue = ("gcloud", "compute", "tpus", "queued-resources")
    script = File("startup.sh", host_script(job))
    create = (
        *(*queue, "create", job.name, f"--node-id={job.name}"),
        *_where(job),
        *_kind(job, "runtime-version"),
        f"--metadata-from-file=startup-script={script.name}",
    )
    look = shlex.join((*queue, "describe", job.name, *_where(job)))
    drop = shlex.join((*queue, "delete", job.name, *_where(job), "--force", "--quiet"))
    return Plan((create,), (script,), note=f"State: {look}\nEnd it, also its cost: {drop}")


def _where(job: Job) -> tuple[str, ...]:
    project = (f"--project={job.args.project}",) if job.args.project else ()
    return (f"--zone={job.args.zone}", *project)


def _kind(job: Job, image_flag: str) -> tuple[str, ...]:
    kind = accelerator_type(job.cfg.slice)
    image = job.args.image or IMAGES[kind.split("-")[0]]
    spot = ("--spot",) if job.args.spot else ()
    return (f"--accelerator-type={kind}", f"--{image_flag}={image}", *spot)
