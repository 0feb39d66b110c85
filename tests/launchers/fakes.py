"""Fake engines: they start what they were given as real processes on this machine.

    python fakes.py PROGRAM ARGUMENTS

plays gcloud, kubectl, sbatch, srun, scontrol or xpk. Each appends its arguments to $FAKES_LOG. Two
hosts become two processes on loopback, and each sees what it would see there: a metadata server,
the variables of a TPU pod, or those of a SLURM step.
"""

import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

NAMES = ("gcloud", "kubectl", "sbatch", "srun", "scontrol", "xpk")
HOSTS = 2


def install(folder: Path) -> None:
    """Writes a program of each name into a folder for the path."""
    for name in NAMES:
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" {name} "$@"\n')
        program.chmod(0o755)


def together(commands: list[list[str]], environs: list[dict[str, str]]) -> int:
    """Runs the commands at the same time; returns the first exit status other than 0."""
    pairs = zip(commands, environs, strict=True)
    here = {k: v for k, v in os.environ.items() if k != "TPU_SKIP_MDS_QUERY"}  # set by JAX
    started = [subprocess.Popen(c, env=here | e) for c, e in pairs]
    statuses = [process.wait(timeout=500) for process in started]
    return next((s for s in statuses if s), 0)


def metadata_server(worker: int) -> dict[str, str]:
    """Variables of a TPU VM with a metadata server, which is started."""
    known = {"worker-network-endpoints": "127.0.0.1,127.0.0.1", "agent-worker-number": str(worker)}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.rpartition("/")[2]
            self.send_response(200 if name in known else 404)
            self.end_headers()
            self.wfile.write(known.get(name, "").encode())

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return {"GCE_METADATA_IP": f"127.0.0.1:{server.server_port}"}


def flag(args: list[str], name: str) -> str:
    """The value of --name=VALUE; '' if it is not given."""
    return next((a.partition("=")[2] for a in args if a.startswith(f"--{name}=")), "")


def gcloud(args: list[str]) -> int:
    """All workers run a script, given as the command or as the startup script."""
    action = args[:4]
    if action == ["compute", "tpus", "tpu-vm", "ssh"] and flag(args, "worker") == "all":
        script = ["bash", "-c", flag(args, "command")]
    elif action == ["compute", "tpus", "queued-resources", "create"]:
        script = ["bash", flag(args, "metadata-from-file").removeprefix("startup-script=")]
    else:
        return 0
    return together([script] * HOSTS, [metadata_server(i) for i in range(HOSTS)])


def kubectl(args: list[str]) -> int:
    """The pods of a JobSet."""
    manifest = json.loads(Path(flag(args, "filename")).read_text())
    [replicated] = manifest["spec"]["replicatedJobs"]
    pods = replicated["template"]["spec"]
    assert pods["completions"] == pods["parallelism"] == HOSTS
    [container] = pods["template"]["spec"]["containers"]
    given = {item["name"]: item["value"] for item in container["env"]}
    return together([container["command"]] * HOSTS, [given | pod(i) for i in range(HOSTS)])


def pod(worker: int) -> dict[str, str]:
    """Variables of a pod on a TPU node."""
    return {"TPU_WORKER_ID": str(worker), "TPU_WORKER_HOSTNAMES": "127.0.0.1,127.0.0.1"}


def xpk(args: list[str]) -> int:
    """The command, in every pod."""
    assert args[:2] == ["workload", "create"]
    command = ["bash", "-c", flag(args, "command")]
    return together([command] * HOSTS, [pod(i) for i in range(HOSTS)])


def sbatch(args: list[str]) -> int:
    """The batch script, once, in its directory."""
    script = Path(args[-1]).read_text()
    nodes = re.findall(r"^#SBATCH --nodes=(\d+)$", script, re.MULTILINE)
    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": nodes[0], "FAKE_NODES": nodes[0]}
    return subprocess.run(
        ["bash", "-c", script], env=os.environ | job, cwd=flag(args, "chdir")
    ).returncode


def srun(args: list[str]) -> int:
    """The command as every task of a step."""
    num = int(os.environ["FAKE_NODES"])
    command = args[next(i for i, arg in enumerate(args) if not arg.startswith("--")) :]
    steps = [
        {
            "SLURM_STEP_NODELIST": "127.0.0.1",
            "SLURM_STEP_NUM_TASKS": str(num),
            "SLURM_STEP_TASKS_PER_NODE": f"1(x{num})",
            "SLURM_PROCID": str(i),
            "SLURM_LOCALID": "0",
        }
        for i in range(num)
    ]
    return together([command] * num, steps)


def scontrol(args: list[str]) -> int:
    """Nothing: the log has its arguments."""
    return 0


if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    with open(os.environ["FAKES_LOG"], "a") as log:
        log.write(json.dumps([name, *rest]) + "\n")
    sys.exit(globals()[name](rest))
