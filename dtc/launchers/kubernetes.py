"""GKE: a JobSet whose pods are the hosts of a slice, and the same through xpk."""

import json
import shlex
from itertools import pairwise
from typing import Any

from dtc.host.command import LAUNCHED_AS
from dtc.host.devices import Slice
from dtc.launchers.job import Job, exports, train
from dtc.launchers.plan import File, Plan
from dtc.launchers.restarts import FINAL
from dtc.launchers.tpu import accelerator_type

ACCELERATORS = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
}
RESTARTS = 100  # of a JobSet; preemptions count, too
SAVING = 120  # seconds between SIGTERM and SIGKILL


def gke(job: Job) -> Plan:
    """A JobSet for `kubectl apply`."""
    manifest = File("jobset.json", json.dumps(jobset(job), indent=1) + "\n")
    follow = f"kubectl logs --follow --selector=jobset.sigs.k8s.io/jobset-name={job.name}"
    note = f"Follow it: {follow}\nEnd it: kubectl delete jobset {job.name}"
    return Plan((("kubectl", "apply", f"--filename={manifest.name}"),), (manifest,), note=note)


def jobset(job: Job) -> dict[str, Any]:
    """The manifest: one pod a host; statuses after which a restart is no use end it."""
    where = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    stops = [status for status in FINAL if status]
    on_codes = {"containerName": "train", "operator": "In", "values": stops}
    hosts = _slice(job).hosts
    pods = {
        "parallelism": hosts,
        "completions": hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": on_codes}]},
        "template": {"metadata": {"annotations": _annotations(job)}, "spec": _pod(job)},
    }
    given_up = {"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": job.name,
            "annotations": {where: "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            "failurePolicy": {"maxRestarts": RESTARTS, "rules": [given_up]},
            "replicatedJobs": [{"name": "host", "replicas": 1, "template": {"spec": pods}}],
        },
    }


def _pod(job: Job) -> dict[str, Any]:
    chips = _slice(job).devices // _slice(job).hosts
    version = job.cfg.slice.split("-")[0]
    container: dict[str, Any] = {
        "name": "train",
        "image": job.args.image,
        "command": [job.args.python, "-m", "dtc.commands", "train", *job.flags],
        "env": [
            {"name": "JAX_COORDINATOR_PORT", "value": str(job.args.port)},
            {"name": LAUNCHED_AS, "value": job.typed},
        ],
        "ports": [{"containerPort": job.args.port}],
        "resources": {"limits": {"google.com/tpu": chips}},
    }
    if job.args.secret:
        container["envFrom"] = [{"secretRef": {"name": job.args.secret}}]
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": SAVING,
        "nodeSelector": {
            "cloud.google.com/gke-tpu-accelerator": ACCELERATORS[version],
            "cloud.google.com/gke-tpu-topology": _slice(job).topology,
        },
        "containers": [container],
    }
    if job.args.service_account:
        pod["serviceAccountName"] = job.args.service_account
    if job.args.bucket:
        container["volumeMounts"] = [{"name": "bucket", "mountPath": "/bucket"}]
        attributes = {"bucketName": job.args.bucket, "mountOptions": "implicit-dirs"}
        csi = {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": attributes}
        pod["volumes"] = [{"name": "bucket", "csi": csi}]
    return pod


def _annotations(job: Job) -> dict[str, str]:
    return {"gke-gcsfuse/volumes": "true"} if job.args.bucket else {}


def xpk(job: Job) -> Plan:
    """`xpk workload create`, which writes a JobSet of its own."""
    # xpk takes ranges, and adds 127 to 255 itself; any other status would end the JobSet for good
    stops = [0, *(status for status in FINAL if 0 < status < 127), 127]
    again = ",".join(f"{a + 1}-{b - 1}" for a, b in pairwise(stops) if b - a > 1)
    script = f"{exports(job)}exec {train(job, job.args.python)}"
    create = (
        *("xpk", "workload", "create", f"--workload={job.name}", f"--cluster={job.args.cluster}"),
        *(f"--{name}={value}" for name, value in _place(job).items() if value),
        f"--tpu-type={accelerator_type(job.cfg.slice)}",
        "--num-slices=1",
        f"--docker-image={job.args.image}",
        f"--max-restarts={RESTARTS}",
        f"--restart-on-exit-codes={again}",
        f"--command={script}",
    )
    end = shlex.join(
        ("xpk", "workload", "delete", f"--workload={job.name}", f"--cluster={job.args.cluster}")
    )
    return Plan((create,), note=f"End it: {end}")


def _place(job: Job) -> dict[str, str]:
    return {"zone": job.args.zone, "project": job.args.project}


def _slice(job: Job) -> Slice:
    assert job.slice is not None, "job.make checks it"
    return job.slice
