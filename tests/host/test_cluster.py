"""Which processes a run finds in the environment."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dtc.config.errors import ConfigError
from dtc.host import devices
from dtc.host.cluster import ALONE, Processes, detect, first_host

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "node[003-004]",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
}
GKE = {"TPU_WORKER_HOSTNAMES": "a-0.a,a-1.a", "TPU_WORKER_ID": "1"}
JAX = {"JAX_COORDINATOR_ADDRESS": "h:9", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}


@pytest.fixture
def metadata_server():
    """Starts a metadata server with these attributes; returns its address."""
    servers = []

    def start(attributes):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.rpartition("/")[2]
                known = name in attributes and self.headers["Metadata-Flavor"] == "Google"
                self.send_response(200 if known else 404)
                self.end_headers()
                self.wfile.write(attributes.get(name, "none").encode())

            def log_message(self, *args):
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ALONE),
        (SLURM, Processes("node003:8476", 8, 5, "SLURM", 1)),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, ALONE),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "1"}, Processes("node003:8476", 8, 5, "SLURM")),
        (SLURM | {"CUDA_VISIBLE_DEVICES": "2"}, Processes("node003:8476", 8, 5, "SLURM")),
        (SLURM | {"JAX_COORDINATOR_PORT": "90"}, Processes("node003:90", 8, 5, "SLURM", 1)),
        (OPEN_MPI, Processes("10.96.0.1:8476", 8, 5, "Open MPI", 1)),
        (
            OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8", "OMPI_MCA_orte_hnp_uri": ""},
            Processes("127.0.0.1:8476", 8, 5, "Open MPI", 1),
        ),
        (GKE, Processes("a-0.a:8476", 2, 1, "the TPU slice")),
        (GKE | {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}, ALONE),
        (GKE | {"TPU_WORKER_HOSTNAMES": "WARNING: could not determine"}, ALONE),
        (
            GKE
            | {
                "MEGASCALE_NUM_SLICES": "2",
                "MEGASCALE_SLICE_ID": "1",
                "MEGASCALE_COORDINATOR_ADDRESS": "b-0.b:8080",
            },
            Processes("b-0.b:8476", 4, 3, "the TPU slice"),
        ),
        (JAX, Processes("h:9", 4, 3, "JAX_NUM_PROCESSES")),
        (SLURM | JAX, Processes("h:9", 4, 3, "JAX_NUM_PROCESSES")),
        (SLURM | {"JAX_COORDINATOR_ADDRESS": "h:9"}, Processes("h:9", 8, 5, "SLURM", 1)),
    ],
)
def test_a_scheduler_s_variables_name_the_processes(environ, expected):
    assert detect(environ) == expected


def test_a_batch_script_is_no_step_though_slurm_describes_its_job():
    script = {k: v for k, v in SLURM.items() if "STEP" not in k} | {"SLURM_NTASKS": "8"}
    assert detect(script) == ALONE


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node001", "node001"),
        ("node001,node002", "node001"),
        ("node[001-004,007],login", "node001"),
        ("node[12,14]", "node12"),
        ("rack[1-2]n[3-4],x", "rack1n3"),
    ],
)
def test_the_first_host_of_a_node_list(nodes, host):
    assert first_host(nodes) == host


def test_a_tpu_vm_asks_its_metadata_server(metadata_server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # no proxy knows this server
    monkeypatch.delenv("no_proxy", raising=False)
    for endpoints in ("10.0.0.2,10.0.0.3", "unknown:unknown:10.0.0.2,unknown:unknown:10.0.0.3"):
        at = metadata_server({"worker-network-endpoints": endpoints, "agent-worker-number": "1"})
        expected = Processes("10.0.0.2:8476", 2, 1, "the TPU slice")
        assert detect({"GCE_METADATA_IP": at}) == expected
        assert detect({"GCE_METADATA_IP": at, "TPU_SKIP_MDS_QUERY": "1"}) == ALONE


def test_several_slices_are_one_run(metadata_server):
    said = "ZONE: 'z'\nMEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '1'\n"
    at = metadata_server(
        {
            "worker-network-endpoints": "10.0.1.2,10.0.1.3",
            "agent-worker-number": "0",
            "tpu-env": said + "MEGASCALE_COORDINATOR_ADDRESS: '10.0.0.2'\n",
        }
    )
    found = detect({"GCE_METADATA_IP": at})
    assert found == Processes("10.0.0.2:8476", 4, 2, "the TPU slice")


def test_a_metadata_server_without_a_slice_means_one_process(metadata_server):
    assert detect({"GCE_METADATA_IP": metadata_server({})}) == ALONE
    assert detect({"GCE_METADATA_IP": "127.0.0.1:1"}) == ALONE


@pytest.mark.parametrize(
    ("environ", "part"),
    [
        (JAX | {"JAX_PROCESS_ID": "x"}, "JAX_PROCESS_ID=x is not a whole number. Unset it"),
        (JAX | {"JAX_PROCESS_ID": "4"}, "JAX_NUM_PROCESSES says process 4 of 4"),
        (JAX | {"JAX_COORDINATOR_ADDRESS": ""}, "Set JAX_COORDINATOR_ADDRESS=HOST:8476"),
        (OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": ""}, "Open MPI started 8 processes and does not"),
    ],
)
def test_incomplete_variables_are_refused_in_one_sentence(environ, part):
    with pytest.raises(ConfigError) as error:
        detect(environ)
    assert part in str(error.value) and "\n" not in str(error.value)


def test_process_0_listens_at_its_address_alone_unless_others_could_not_reach_it(monkeypatch):
    known = {"node1": "10.0.0.2", "debian": "127.0.1.1"}
    monkeypatch.setattr(devices.socket, "gethostbyname", lambda host: known[host])
    for address in ("127.0.0.1:5", "localhost:5", "10.0.0.2:5", "node1:5"):
        assert devices._bind_address(address) == address
    assert devices._bind_address("debian:5") == "[::]:5"


def test_jax_s_variable_for_simulated_devices_counts_them_by_process(monkeypatch):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    assert devices._num_in_environment() == 2
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "two")
    with pytest.raises(ConfigError, match="JAX_NUM_CPU_DEVICES=two is not a whole number"):
        devices._num_in_environment()
