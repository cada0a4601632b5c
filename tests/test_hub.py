"""Models of a hub are read by range requests, here from a server of this machine."""

import http.server
import json
import os
import re
import struct
import subprocess
import sys
import threading

import pytest

from scantling.errors import FieldError
from scantling.formats import hub, safetensors

huggingface_hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")

CONFIG = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 96}


def safetensors_file(n_tensor, prefix="t"):
    """A file of n tensors of 2 numbers, and a megabyte at the end that nobody should fetch."""
    header = {
        f"{prefix}{i}": {"dtype": "F32", "shape": [2], "data_offsets": [8 * i, 8 * i + 8]}
        for i in range(n_tensor)
    }
    end = 8 * n_tensor
    header[f"{prefix}.big"] = {"dtype": "U8", "shape": [2**20], "data_offsets": [end, end + 2**20]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end + 2**20)


FILES = {
    "some/small": {"config.json": json.dumps(CONFIG).encode(),
                   "model.safetensors": safetensors_file(3)},
    "some/long": {"config.json": json.dumps(CONFIG).encode(),
                  "model.safetensors": safetensors_file(3000)},
    "some/sharded": {
        "config.json": json.dumps(CONFIG).encode(),
        safetensors.INDEX: json.dumps({"weight_map": {
            "a0": "model-1.safetensors", "a.big": "model-1.safetensors",
            "b0": "model-2.safetensors", "b.big": "model-2.safetensors"}}).encode(),
        "model-1.safetensors": safetensors_file(1, "a"),
        "model-2.safetensors": safetensors_file(1, "b")},
    "some/config-only": {"config.json": json.dumps(CONFIG).encode()},
    "some/broken": {"config.json": b"{", "model.safetensors": b"12345678"},
    "some/binary": {"config.json": b"\xff\xfe"},
    "some/lost": {},
}  # fmt: skip


class Server(http.server.BaseHTTPRequestHandler):
    """Files of FILES at the paths of a hub, by range; what was sent is counted."""

    sent = 0
    ranges = True

    def do_GET(self):
        match = re.fullmatch(r"/(\w+/[\w-]+)/resolve/main/([\w.-]+)", self.path)
        if match and match[1] == "some/gated":
            self.send_error(403)
            return
        raw = FILES.get(match[1], {}).get(match[2]) if match else None
        if raw is None:
            self.send_error(404)
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted and type(self).ranges:
            begin, end = int(wanted[1]), min(int(wanted[2]) + 1, len(raw))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(raw)}")
            raw = raw[begin:end]
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        type(self).sent += len(raw)
        self.wfile.write(raw)

    def log_message(self, *_):
        """Nothing on stderr."""


@pytest.fixture(scope="module")
def address():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(5)


@pytest.fixture
def online(address, monkeypatch, tmp_path):
    """The hub of this machine, with an empty cache."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE",
        address + "/{repo_id}/resolve/{revision}/{filename}",
    )  # fmt: skip
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    huggingface_hub.close_session()
    monkeypatch.setattr(Server, "sent", 0)
    monkeypatch.setattr(Server, "ranges", True)
    yield
    huggingface_hub.close_session()


@pytest.mark.usefixtures("online")
def test_a_config_is_fetched():
    assert hub.fetch_config("some/small") == (CONFIG, [])


@pytest.mark.usefixtures("online")
def test_headers_come_by_range_and_weights_stay_where_they_are():
    found = hub.fetch_checkpoint("some/small")

    assert found.logical_parameters == 2**20 + 6
    assert found.file_bytes == len(FILES["some/small"]["model.safetensors"])
    assert found.config == CONFIG
    assert Server.sent <= hub.FIRST_BYTES + 1000


@pytest.mark.usefixtures("online")
def test_a_long_header_takes_a_second_request():
    raw = FILES["some/long"]["model.safetensors"]
    header = 8 + int.from_bytes(raw[:8], "little")
    assert header > hub.FIRST_BYTES

    found = hub.fetch_checkpoint("some/long")

    assert len(found.tensors) == 3001
    assert Server.sent <= header + 1000


@pytest.mark.usefixtures("online")
def test_a_sharded_model_is_read_through_its_index():
    found = hub.fetch_checkpoint("some/sharded")

    assert [t.name for t in found.tensors] == ["a0", "a.big", "b0", "b.big"]
    assert Server.sent <= 2 * hub.FIRST_BYTES + 1000


@pytest.mark.usefixtures("online")
def test_a_server_that_ignores_ranges_is_read_no_further_than_needed(monkeypatch):
    monkeypatch.setattr(Server, "ranges", False)

    assert len(hub.fetch_checkpoint("some/long").tensors) == 3001


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize(
    ("repo", "message"),
    [
        ("some/lost", "does not exist"), ("no/such", "does not exist"),
        ("some/gated", "may not be read"), ("some/broken", "is no JSON"),
        ("some/binary", "is no text file"), ("some/config-only", "has no model.safetensors"),
        ("some/--x", "is no hub id"),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_one_line(repo, message):
    with pytest.raises(FieldError, match=message) as error:
        hub.fetch_checkpoint(repo)
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("online")
def test_offline_is_one_line_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    with pytest.raises(FieldError, match="cannot be fetched offline; give the path"):
        hub.fetch_config("some/small")


@pytest.mark.usefixtures("online")
def test_a_network_that_does_not_answer_is_one_line(monkeypatch):
    template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")

    with pytest.raises(FieldError, match=r"cannot be fetched: .*check the network"):
        hub.fetch_config("some/small")


def test_a_cached_model_needs_no_network(monkeypatch, tmp_path):
    snapshot = tmp_path / "models--some--cached" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc", "utf-8")
    (snapshot / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))

    assert hub.fetch_config("some/cached") == (CONFIG, [])


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    with pytest.raises(FieldError, match=r"needs huggingface_hub; pip install 'scantling\[hub\]'"):
        hub.fetch_config("some/small")


def test_the_environment_of_the_package_is_respected(address, tmp_path):
    """HF_ENDPOINT and HF_HUB_OFFLINE, in a process of its own."""
    code = (
        "from scantling.errors import FieldError\n"
        "from scantling.formats import hub\n"
        "try:\n"
        "    print(len(hub.fetch_checkpoint('some/small').tensors))\n"
        "except FieldError as error:\n"
        "    print(error)\n"
    )
    answers = {}
    for offline in ("0", "1"):
        env = {**os.environ, "HF_ENDPOINT": address, "HF_HUB_OFFLINE": offline,
               "HF_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}  # fmt: skip
        answers[offline] = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60,
            check=True,
        ).stdout.strip()  # fmt: skip

    assert answers["0"] == "4"
    assert answers["1"].startswith("some/small/config.json cannot be fetched offline")
