"""bcd-helper: who is served, which verbs there are, what of them this node allows, and what is run of it. Real sockets."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from agent import helper, open_files
from agent.config import Config
from agent.host import Host
from tests.agent.processes import process

GPU = "GPU-6e1fd3ab-0c22-4b0e-9a55-000000000001"
ALL = ("inventory.refresh", "diag.nvml", "gpu.reset", "node.reboot")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Programs that note how they were called."""
    for name in ("nvidia-smi", "systemctl"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/calls\necho done; echo warned >&2; exit 3\n')
        (tmp_path / name).chmod(0o755)
    return Config(
        commands_allow=ALL,
        reset_pause=("nvidia-dcgm", "nvidia-persistenced"),
        tools_nvidia_smi=f"{tmp_path}/nvidia-smi",
        tools_systemctl=f"{tmp_path}/systemctl",
    )


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().splitlines() if (tmp_path / "calls").exists() else []


def ask(data: bytes, config: Config, users: set[int] | None = None) -> dict[str, Any]:
    """What is answered to these bytes, over a socket as systemd hands it over."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = threading.Thread(target=helper.serve, args=(theirs, users or {os.getuid()}, lambda: config))
        thread.start()
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        answer = ours.makefile("rb").readline()
        thread.join(10)
    return dict(json.loads(answer))


def request(config: Config, **fields: Any) -> dict[str, Any]:
    return ask(json.dumps(fields).encode() + b"\n", config)


@pytest.mark.parametrize(
    ("fields", "ran"),
    [
        ({"verb": "reset", "gpus": [GPU, GPU[:-1] + "2"], "limit": 5}, f"nvidia-smi --gpu-reset -i {GPU},{GPU[:-1]}2"),
        ({"verb": "stop", "service": "nvidia-dcgm"}, "systemctl stop nvidia-dcgm.service"),
        ({"verb": "start", "service": "nvidia-persistenced"}, "systemctl start nvidia-persistenced.service"),
        ({"verb": "is-active", "service": "nvidia-dcgm"}, "systemctl is-active nvidia-dcgm.service"),
        ({"verb": "reboot"}, "systemctl reboot"),
    ],
)
def test_each_verb_runs_one_program_and_answers_how_it_ended(
    config: Config, tmp_path: Path, fields: dict[str, Any], ran: str
) -> None:
    assert request(config, **fields) == {"code": 3, "out": "done\n", "err": "warned\n"}
    assert calls(tmp_path) == [ran]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"verb": "reset"}, "gpus is no list"),
        ({"verb": "reset", "gpus": []}, "gpus is no list"),
        ({"verb": "reset", "gpus": [GPU] * 65}, "gpus is no list"),
        ({"verb": "reset", "gpus": ["0"]}, "is no GPU's UUID"),
        ({"verb": "reset", "gpus": [GPU, f"{GPU} --mig=1"]}, "is no GPU's UUID"),
        ({"verb": "reset", "gpus": [f"{GPU}\n"]}, "is no GPU's UUID"),
        ({"verb": "reset", "gpus": [7]}, "is no GPU's UUID"),
        ({"verb": "stop", "service": "sshd"}, "'sshd' is not in reset.pause"),
        ({"verb": "stop", "service": "../nvidia-dcgm"}, "is not in reset.pause"),
        ({"verb": "stop", "service": None}, "is not in reset.pause"),
        ({"verb": "restart", "service": "nvidia-dcgm"}, "there is no verb 'restart'"),
        ({"verb": ["reboot"]}, "there is no verb"),
        ({}, "there is no verb None"),
        ({"verb": "reboot", "limit": 301}, "limit is 301"),
        ({"verb": "reboot", "limit": True}, "limit is True"),
        ({"verb": "reboot", "limit": -1}, "limit is -1"),
    ],
)
def test_whatever_else_is_asked_is_refused_and_nothing_runs(
    config: Config, tmp_path: Path, fields: dict[str, Any], why: str
) -> None:
    assert why in request(config, **fields)["refused"]
    assert calls(tmp_path) == []


@pytest.mark.parametrize(
    "data", [b"", b"reboot\n", b"[]\n", b'{"verb": "reboot"}', b"[" * 60000 + b"\n", b"x" * 70000, b"\xff\n"]
)
def test_what_is_no_request_is_refused(config: Config, tmp_path: Path, data: bytes) -> None:
    assert ask(data, config)["refused"].startswith("the request is ")
    assert calls(tmp_path) == []


def test_a_service_of_the_file_that_is_no_name_of_a_unit_is_refused(config: Config, tmp_path: Path) -> None:
    odd = Config(commands_allow=ALL, reset_pause=("--help",), tools_systemctl=config.tools_systemctl)
    assert "is not in reset.pause" in request(odd, verb="stop", service="--help")["refused"]
    assert calls(tmp_path) == []


@pytest.mark.parametrize(
    ("verb", "kind"), [("reset", "gpu.reset"), ("stop", "gpu.reset"), ("start", "gpu.reset"), ("reboot", "node.reboot")]
)
def test_as_shipped_it_does_nothing_but_look(verb: str, kind: str) -> None:
    fields = {"verb": verb, "gpus": [GPU], "service": "nvidia-dcgm"}
    assert request(Config(), **fields) == {"refused": f"{kind} is not in commands.allow of /etc/bcd/bcd.toml"}
    assert request(Config(), verb="open-files")["code"] == 0


def test_only_the_user_and_root_are_served(config: Config, tmp_path: Path) -> None:
    nobody = {os.getuid() + 1}
    assert ask(b'{"verb": "reboot"}\n', config, nobody) == {"refused": f"user {os.getuid()} is not served"}
    assert calls(tmp_path) == []


def test_a_wrong_configuration_is_a_refusal_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "bcd.toml").write_text("commands.alow = []\n")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        argv = [sys.executable, "-m", "agent.helper", "--user", "root", "--config", str(tmp_path / "bcd.toml")]
        child = subprocess.Popen(argv, stdin=theirs.fileno(), stderr=subprocess.PIPE)
        ours.sendall(b'{"verb": "reboot"}\n')
        answer = json.loads(ours.makefile("rb").readline())
        _, journal = child.communicate(timeout=20)
    assert child.returncode == 0
    assert "bcd.toml:1: unknown key 'commands.alow'" in answer["refused"]
    assert b"unknown key" in journal


def test_a_program_that_does_not_end_is_killed(config: Config, tmp_path: Path) -> None:
    (tmp_path / "systemctl").write_text("#!/bin/sh\nexec sleep 60\n")
    answer = request(config, verb="reboot", limit=0.3)
    assert answer["code"] == -1
    assert "did not end within 0.3 s and was killed" in answer["err"]


def test_a_program_that_is_not_there_is_a_refusal(config: Config, tmp_path: Path) -> None:
    (tmp_path / "systemctl").unlink()
    assert "is not installed" in request(config, verb="reboot")["refused"]
    relative = Config(commands_allow=ALL, tools_systemctl="bin/systemctl")
    assert "is not installed" in request(relative, verb="reboot")["refused"]


def test_a_program_gets_none_of_the_environment(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD_OF_TEST", "evil")
    (tmp_path / "systemctl").write_text("#!/bin/sh\nenv\n")
    assert "LD_PRELOAD_OF_TEST" not in request(config, verb="reboot")["out"]


def test_open_files_are_those_of_gpus_and_vms_by_process(tmp_path: Path) -> None:
    process(tmp_path, 10, "python3", "/dev/nvidia1", "socket:[1]")
    process(tmp_path, 11, "qemu", "anon_inode:kvm-vm", "/dev/dri/renderD128")
    process(tmp_path, 12, "sshd")
    assert open_files.that_matter(Host(tmp_path)) == {"10": ["/dev/nvidia1"], "11": ["anon_inode:kvm-vm", "/dev/dri/renderD128"]}
