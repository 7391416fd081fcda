"""`jitwatch sweep --target URL`: a stand-in server under `jitwatch run`, on a driver that isn't."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from jitwatch.targets.callable import TargetRequest
from jitwatch.targets.server import ServerTarget
from tests.fake_cuda import ROOT, build_fake

#: Serves in a process of its own, as engines do: a prompt above 64 tokens loads a module, once.
SERVER = """
import ctypes, http.server, json, multiprocessing, os, sys

MODE = os.environ["MODE"]

def load(image):
    fake = ctypes.CDLL(os.environ["FAKE"])
    fake.fake_cuModuleLoadData.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    fake.fake_cuInit()
    fake.fake_cuModuleLoadData(image, len(image))

def work(pipe):
    load(b"x")
    pipe.send("up")
    loaded = set()
    while True:
        tokens = pipe.recv()
        if tokens > 64 and not loaded:
            loaded.add(64)
            load(b"y")
        pipe.send(tokens)

class Answer(http.server.BaseHTTPRequestHandler):
    def say(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.say(200, {"data": [{"id": "stand-in"}]} if MODE != "modelless" else {})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = asked["prompt"]
        assert asked["model"] == "stand-in", asked
        if isinstance(prompt, str):
            tokens = len(prompt.split()) + 1  # and a begin token
        elif MODE == "texts":
            return self.say(422, {"error": "prompt must be a string"})
        else:
            tokens = len(prompt)
            assert prompt[0] not in FIRST, "a prefix hit"
            FIRST.add(prompt[0])
        if MODE == "fails" and tokens == 65:
            return self.say(500, {"error": "no"})
        PIPE.send(tokens)
        PIPE.recv()
        counted = tokens - 1 if MODE == "miscounts" else tokens
        self.say(200, {"usage": {"prompt_tokens": counted}, "max": asked["max_tokens"]})

    def log_message(self, *_): pass

if __name__ == "__main__":
    FIRST = set()
    PIPE, other = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    context.Process(target=work, args=(other,), daemon=True).start()
    PIPE.recv()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Answer)
    print("serving", flush=True)
    server.serve_forever()
"""


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    return build_fake(tmp_path_factory.mktemp("fake") / "libcupti.so.13")


@pytest.fixture
def server(tmp_path, fake):
    """Starts the stand-in under `jitwatch run`; its URL and run directory."""
    (tmp_path / "server.py").write_text(SERVER)
    started = []

    def start(mode="ids"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = {**os.environ, "FAKE": str(fake), "PORT": str(port), "MODE": mode}
        environment["PYTHONPATH"] = str(ROOT)
        run_dir = tmp_path / "run"
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jitwatch", "run", "--run-dir", str(run_dir)),
                *("--ready-log", "serving", "--", sys.executable, "server.py"),
            ],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "serving\n"
        return f"http://127.0.0.1:{port}", run_dir

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        process.wait()


def sweep(url, *options):
    command = [sys.executable, "-m", "jitwatch", "sweep", "--target", url, *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def swept(url, run_dir, *options, lengths="63,64,65,66"):
    done = sweep(url, "--run-dir", str(run_dir), "--lengths", lengths, "--json", "-", *options)
    return done, json.loads(done.stdout) if done.stdout else None


@pytest.mark.parametrize("mode", ["ids", "texts"])
def test_what_another_process_loads_is_charged_to_the_request_open(server, mode):
    url, run_dir = server(mode)
    done, report = swept(url, run_dir, "--fail-on", "any")
    assert done.returncode == 1, done.stderr
    assert [s["requests"] for s in report["stalls"]] == [["len65"]]
    assert [(r["prompt_tokens"], r["error"]) for r in report["requests"]] == [
        (63, None),
        (64, None),
        (65, None),
        (66, None),
    ]
    # The server runs on, and knows these lengths now.
    again, report = swept(url, run_dir, "--fail-on", "any", lengths="65,66")
    assert again.returncode == 1
    names = [r["id"] for r in report["requests"]]
    assert len(set(names)) == 6
    assert [s["requests"] for s in report["stalls"]] == [["len65"]]


def test_a_request_that_fails_makes_the_sweep_inconclusive(server):
    url, run_dir = server("fails")
    done, report = swept(url, run_dir, "--param", "temperature=1")
    assert done.returncode == 2
    assert "answered 500" in report["requests"][2]["error"]
    assert report["verdict"]["outcome"] == "inconclusive"


def test_a_server_that_counts_other_tokens_is_not_believed(server):
    url, run_dir = server("miscounts")
    done, report = swept(url, run_dir)
    assert done.returncode == 2
    assert "counted 62 prompt tokens of 63" in report["requests"][0]["error"]


def test_a_server_without_models_is_told(server):
    url, run_dir = server("modelless")
    done, _ = swept(url, run_dir)
    assert (done.returncode, "/v1/models names no model" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "--run-dir is missing"),
        (["--run-dir", "/no/such"], "--run-dir /no/such: no program is watched there"),
        (["--run-dir", "x", "--keys-only", "--device", "sim:h200"], "takes no --keys-only"),
        (["--run-dir", "x", "--repo", "."], "takes no --repo"),
        (["--run-dir", "x", "--layers", "2"], "takes no option of the engine's"),
    ],
)
def test_what_a_server_can_not_be_swept_with_is_told(options, text):
    done = sweep("http://127.0.0.1:9", *options)
    assert done.returncode == 2
    assert text in done.stderr


def test_a_url_with_the_apis_path_is_the_same(server):
    url, _ = server()
    target = ServerTarget(f"{url}/v1/")
    assert (target.url, target.model) == (url, "stand-in")
    target.serve(TargetRequest("a", 5, 2))


def test_a_server_that_is_not_there_is_told(server):
    _, run_dir = server()
    done, _ = swept("http://127.0.0.1:9", run_dir)
    assert done.returncode == 2
    assert "--target http://127.0.0.1:9: can't be reached" in done.stderr
