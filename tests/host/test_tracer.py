"""The profiler trace: between which updates, and how to open it."""

from pathlib import Path

import jax
import pytest

from dtc.host.tracer import Tracer


@pytest.fixture
def profiler(monkeypatch):
    """The calls of JAX's profiler, which writes one file instead of a trace."""
    calls = []

    def start(directory, create_perfetto_trace):
        calls.append(("start", create_perfetto_trace))
        start.directory = directory

    def stop():
        folder = Path(start.directory) / "plugins" / "profile" / "now"
        folder.mkdir(parents=True)
        (folder / "perfetto_trace.json.gz").touch()
        calls.append(("stop",))

    monkeypatch.setattr(jax.profiler, "start_trace", start)
    monkeypatch.setattr(jax.profiler, "stop_trace", stop)
    return calls


@pytest.mark.parametrize("ends", [20, None])
def test_a_trace_says_how_to_open_it_in_perfetto(tmp_path, profiler, ends):
    said = []
    tracer = Tracer((10, 20), tmp_path / "profile", said.append)
    for update in (0, 10, 15, ends):
        tracer.at(update)
    assert profiler == [("start", True), ("stop",)]
    (line,) = said
    assert "/perfetto_trace.json.gz at https://ui.perfetto.dev" in line


def test_without_a_span_nothing_is_traced(tmp_path, profiler):
    tracer = Tracer((0, 0), tmp_path, print)
    for update in (0, 5, None):
        tracer.at(update)
    assert profiler == []
