"""Finds the other processes of a run in the variables that launchers and schedulers set.

It looks at JAX's own variables, SLURM's, Open MPI's and those of TPU slices, in this order. It does
not import JAX, so that refusals are quick.
"""

import glob
import importlib.util
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import NamedTuple

from dtc.config.errors import ConfigError

PORT = 8476  # where process 0 listens, unless JAX_COORDINATOR_PORT says otherwise

Environ = Mapping[str, str]


class Processes(NamedTuple):
    """The processes of a run; `coordinator` is '' for a single process."""

    coordinator: str = ""  # HOST:PORT of process 0
    num: int = 1
    id: int = 0
    source: str = ""  # where they were found; '': flags
    gpu: int | None = None  # the only GPU this process uses; None: all


ALONE = Processes()


def detect(environ: Environ) -> Processes:
    """The processes that the environment describes; a single one if it describes none.

    Raises:
      ConfigError: the variables are incomplete or not numbers.
    """
    for find in (_jax, _slurm, _open_mpi, _tpu):
        found = find(environ)
        if found is None:
            continue
        if found.num == 1:
            return ALONE
        if not 0 <= found.id < found.num:
            raise ConfigError(
                f"{found.source} says process {found.id} of {found.num}, which count from 0. "
                "Use --coordinator, --num_processes and --process_id."
            )
        coordinator = environ.get("JAX_COORDINATOR_ADDRESS") or found.coordinator
        if not coordinator:
            raise ConfigError(
                f"{found.source} started {found.num} processes and does not say where process 0 "
                f"is. Set JAX_COORDINATOR_ADDRESS=HOST:{PORT} for all of them."
            )
        return found._replace(coordinator=coordinator)
    return ALONE


def _jax(environ: Environ) -> Processes | None:
    """JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID."""
    if "JAX_NUM_PROCESSES" not in environ:
        return None
    num, process = _whole(environ, "JAX_NUM_PROCESSES"), _whole(environ, "JAX_PROCESS_ID")
    return Processes("", num, process, "JAX_NUM_PROCESSES")


def _slurm(environ: Environ) -> Processes | None:
    """A step of SLURM, started by srun; a batch script itself is no step."""
    if "SLURM_STEP_NODELIST" not in environ or "SLURM_PROCID" not in environ:
        return None
    of_step = "SLURM_STEP_NUM_TASKS" in environ
    num = _whole(environ, "SLURM_STEP_NUM_TASKS" if of_step else "SLURM_NTASKS")
    tasks_here = re.match(r"\d+", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    gpu = _own_gpu(environ, "SLURM_LOCALID", int(tasks_here[0]) if tasks_here else 1)
    at = _address(first_host(environ["SLURM_STEP_NODELIST"]), environ)
    return Processes(at, num, _whole(environ, "SLURM_PROCID"), "SLURM", gpu)


def _open_mpi(environ: Environ) -> Processes | None:
    """A rank of Open MPI; mpirun's own address is known up to version 4."""
    if "OMPI_COMM_WORLD_SIZE" not in environ:
        return None
    num, rank = _whole(environ, "OMPI_COMM_WORLD_SIZE"), _whole(environ, "OMPI_COMM_WORLD_RANK")
    here = int(environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1"))
    gpu = _own_gpu(environ, "OMPI_COMM_WORLD_LOCAL_RANK", here)
    uri = re.search(r"tcp://([^,:]+)", environ.get("OMPI_MCA_orte_hnp_uri", ""))
    host = "127.0.0.1" if here == num else uri[1] if uri else ""
    return Processes(_address(host, environ), num, rank, "Open MPI", gpu)


def _tpu(environ: Environ) -> Processes | None:
    """A host of a TPU slice, or of several slices."""
    hosts = environ.get("TPU_PROCESS_ADDRESSES") or environ.get("TPU_WORKER_HOSTNAMES") or ""
    worker = environ.get("TPU_WORKER_ID", "")
    if " " in hosts:  # libtpu puts a warning there
        hosts = ""
    if not hosts and _may_have_metadata(environ):
        environ = _metadata_variables(environ) | dict(environ)
        endpoints = _metadata("worker-network-endpoints", environ).split(",")
        hosts = ",".join(e.split(":")[-1] for e in endpoints)  # HOST or NAME:ID:IP
        worker = _metadata("agent-worker-number", environ)
    if not hosts or not worker.isdigit():
        return None
    names = [name.split(":")[0] for name in hosts.split(",")]
    slices = int(environ.get("MEGASCALE_NUM_SLICES") or 1)
    process = int(worker) + len(names) * int(environ.get("MEGASCALE_SLICE_ID") or 0)
    first = environ.get("MEGASCALE_COORDINATOR_ADDRESS", "").split(":")[0] or names[0]
    return Processes(_address(first, environ), len(names) * slices, process, "the TPU slice")


def _may_have_metadata(environ: Environ) -> bool:
    """Whether this is a TPU VM, whose metadata server knows the other hosts of the slice."""
    if environ.get("TPU_SKIP_MDS_QUERY"):
        return False
    if environ.get("GCE_METADATA_IP"):
        return True
    platforms = environ.get("JAX_PLATFORMS") or "tpu"
    files = glob.glob("/dev/accel[0-9]*") + glob.glob("/dev/vfio/[0-9]*")
    return "tpu" in platforms and bool(files) and importlib.util.find_spec("libtpu") is not None


def _metadata_variables(environ: Environ) -> dict[str, str]:
    """What the metadata server says of several slices: lines like MEGASCALE_NUM_SLICES: '2'."""
    text = _metadata("tpu-env", environ)
    return dict(re.findall(r"^(MEGASCALE_\w+): *'?(.*?)'?$", text, re.MULTILINE))


def _metadata(name: str, environ: Environ) -> str:
    """An attribute of this VM; '' where there is no such attribute or server."""
    server = environ.get("GCE_METADATA_IP", "metadata.google.internal")
    request = urllib.request.Request(
        f"http://{server}/computeMetadata/v1/instance/attributes/{name}",
        headers={"Metadata-Flavor": "Google"},
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=5) as answer:
            return answer.read().decode()
    except (urllib.error.URLError, OSError):
        return ""


def first_host(nodes: str) -> str:
    """The first host of a SLURM node list: node001 of `node[001-004,007],login`."""
    first = re.match(r"(?:\[[^\]]*\]|[^,\[])*", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0] if first else "")


def _own_gpu(environ: Environ, name: str, tasks: int) -> int | None:
    """This process's GPU where several share a host and the scheduler did not split them."""
    is_split = environ.get("CUDA_VISIBLE_DEVICES", "").isdigit()
    return _whole(environ, name) if tasks > 1 and not is_split and name in environ else None


def _address(host: str, environ: Environ) -> str:
    return f"{host}:{environ.get('JAX_COORDINATOR_PORT') or PORT}" if host else ""


def _whole(environ: Environ, name: str) -> int:
    text = environ.get(name, "")
    if not text.isdigit():
        raise ConfigError(
            f"{name}={text} is not a whole number. "
            "Unset it, or use --coordinator, --num_processes and --process_id."
        )
    return int(text)
