"""SLURM: a batch script whose step is the run."""

from pathlib import Path

from dtc.launchers.job import Job, exports, train
from dtc.launchers.plan import File, Plan
from dtc.launchers.restarts import FINAL, SAVED

NOTICE = 120  # seconds before the end of the allocation: time to save


def slurm(job: Job) -> Plan:
    """`sbatch --wait`, which ends with the exit status of the run."""
    file = File("run.sbatch", script(job))
    where = f"--chdir={Path(job.args.directory).resolve()}"
    return Plan((("sbatch", "--wait", where, file.name),), (file,))


def script(job: Job) -> str:
    """The batch script: it is queued again where the run can go on."""
    args = job.args
    options = {
        "job-name": job.name,
        "nodes": args.nodes,
        "ntasks-per-node": args.tasks_per_node,
        "partition": args.partition,
        "time": args.time,
        "gpus-per-node": args.gpus_per_node,
        "signal": f"TERM@{NOTICE}",
        "open-mode": "append",
    }
    lines = [f"#SBATCH --{name}={value}" for name, value in options.items() if value]
    final = "|".join(map(str, FINAL))
    setup = f"{args.setup}\n" if args.setup else ""
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            *lines,
            "#SBATCH --requeue",
            "set -uo pipefail",
            f"{exports(job)}{setup}status=0",
            f"srun --kill-on-bad-exit=1 {train(job, args.python)} || status=$?",
            'case "$status" in',
            f"    {final}) ;;",
            f'    {SAVED}) scontrol requeue "$SLURM_JOB_ID" ;;',
            "    *)",
            f'        if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {args.identical_failures - 1} ]; then',
            '            scontrol requeue "$SLURM_JOB_ID"',
            "        fi",
            "        ;;",
            "esac",
            'exit "$status"',
            "",
        ]
    )
