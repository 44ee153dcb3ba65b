"""`marl-verl watch`: the page, steps and events of a running run, and who may read them. test_browser.py opens it."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from marl_verl_report.watch import PERIOD, Server

from marl_verl.cli.main import main
from marl_verl.run.run_dir import RunDir
from tests.run_folder import run_folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(run_folder(tmp_path_factory.mktemp("runs") / "one", steps=2)) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield served
        served.shutdown()


def got(address: str, content: str | None = None, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(address, None if content is None else content.encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def event(stream: Any) -> tuple[str, Any]:
    """(kind, value) of the next event."""
    lines = []
    while (line := stream.readline().decode().rstrip("\n")) or not lines:
        if line and not line.startswith(":"):
            lines.append(line.partition(": ")[2])
    return lines[0], json.loads(lines[1])


def test_the_page_and_its_steps(server: Server) -> None:
    status, page = got(server.address)
    assert status == 200
    assert "connect-src 'self'" in page
    assert 'id="blob-0-train-1"' not in page  # asked for when it is shown
    status, step = got(f"{server.address}step?kind=train&step=2")
    assert (status, json.loads(step)["step"], json.loads(step)["left_out"]) == (200, 2, 0)
    for query in ("kind=train&step=9", "kind=x&step=1", "kind=train&step=../1", "kind=test&step=%C2%B2", ""):
        status, reply = got(f"{server.address}step?{query}")
        assert (status, "is not stored" in json.loads(reply)["error"]) == (500, True)
    assert got(f"{server.address}../config.yaml")[0] == 404


def test_only_the_printed_address_is_answered(server: Server) -> None:
    host = f"http://127.0.0.1:{server.server_address[1]}"
    for path in ("/", "/events", "/step?kind=train&step=1", f"/{server.secret[:-1]}/", "//"):
        status, reply = got(host + path)
        assert (status, "marl-verl watch" in reply) == (403, True)
    assert server.server_address[0] == "127.0.0.1"
    # pages of other hosts, which a browser lets post, or whose name is this machine's for a while
    for header in ({"Origin": "http://a.example"}, {"Origin": "null"}, {"Host": "a.example:80"}):
        assert [got(server.address, content, **header)[0] for content in (None, "{}")] == [403, 403]
    assert got(server.address, Origin=host, Host=host.removeprefix("http://"))[0] == 200


def test_what_cannot_be_played_is_an_error(server: Server) -> None:
    threading.Thread(target=server.play_requests, daemon=True).start()
    for path, content, why in (
        ("play", '{"person": "scout.script=human x"}', "unknown policy 'scout.script=human x': valid: mover, scout"),
        ("play", '{"edit": ["s1t00000_0", "scout:0"]}', "length 3"),
        ("play", "{" + " " * (1 << 21) + "}", "truncated"),
        ("answer", '[1, "north"]', "no longer asked"),
        ("step", "{}", "nothing can be posted to 'step'"),
    ):
        status, reply = got(server.address + path, content)
        assert (status, why in json.loads(reply)["error"]) == (500, True), reply
    assert not (server.folder / "evaluations").exists()


def test_an_event_follows_each_change(server: Server) -> None:
    assert PERIOD <= 0.5  # a page is at most 2 s late
    run = RunDir(server.folder)
    with urllib.request.urlopen(f"{server.address}events", timeout=10) as stream:
        kind, (found,) = event(stream)
        assert (kind, found["at"], found["done"]) == ("runs", 2, False)
        run.metrics(3, {"train/success": 0.5})
        while event(stream)[1][0]["at"] != 3:
            pass
        run.lines("journals", 3, ["{}"])
        while event(stream)[1][0]["stored"]["train"] != [1, 2, 3]:
            pass
        good = (server.folder / "metrics.jsonl").read_bytes()
        (server.folder / "metrics.jsonl").write_text("x\n")
        assert "is damaged" in event(stream)[1]
        (server.folder / "metrics.jsonl").write_bytes(good)
        (server.folder / "summary.json").write_text("{}")
        while not event(stream)[1][0]["done"]:
            pass
    assert "does not begin with a header" in json.loads(got(f"{server.address}step?kind=train&step=3")[1])["error"]


def test_the_command_prints_its_address_and_ends_with_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: Server) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "play_requests", interrupted)
    folder = run_folder(tmp_path / "run", steps=1)
    for command in (["watch", str(folder)], ["report", str(folder), "--serve"]):
        assert main(command) == 0
        assert f"watching {folder}: open http://127.0.0.1:" in capsys.readouterr().out
    assert main(["report", str(folder), str(folder), "--serve"]) == 2
    for options, names in ("--serve --tasks 8", "--tasks is"), ("--port 0", "--port is"):
        assert main(["report", str(folder), *options.split()]) == 2
        assert f"{names} an option" in capsys.readouterr().err
