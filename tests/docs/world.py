"""What the commands in the documentation are run in: a receiver with certificates, a node that has joined, a fault on it.

Programs of this project run for real. Those of the machine (apt, systemctl and others) are scripts that look at what they are
given: whether the unit, the package or the target is one that there is. tests/packaging runs them for real.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.end_to_end.processes import BIN, Process, free_port, wait_for
from tests.hosts_catalog import copy, wear_out_gpu

ROOT = Path(__file__).resolve().parents[2]
LONG_RUNNING = ("bcd run", "bc-receiver serve")
FRESH = ("bcd join", "bc-receiver migrate")  # what a machine runs that has not joined, and a receiver that does not serve
STANDS = re.compile(r"info ready |info bcd: bcd [0-9.]+ ")  # what such a one says when it has begun
# A program of the machine -> what it may be given, as a pattern; {units}, {packages}, {targets}: those that there are.
SYSTEM: Mapping[str, str] = {
    "apt": r"(install \./({packages})_[0-9.]+\+py3\.[0-9]+_amd64\.deb|(remove|purge) ({packages}))",
    "systemctl": r"(enable --now|restart|reload|status) ({units})",
    "runuser": r"-u bc-receiver -- bc-receiver (init|migrate)",
    "journalctl": r"-u ({units})",
    "psql": r"-c SELECT prune_snapshots\(now\(\) - interval '90 days'\)",
    "pip": r"install (\.|\.\[receiver\])",
    "make": r"({targets})( PYTHON=python3\.[0-9]+)?",
}


@dataclass
class World:
    """`env`: of every command. `ids`: what the documentation's placeholders stand for."""

    base: Path
    env: Mapping[str, str]
    ids: Mapping[str, str]
    token: str  # to join with, as often as the pages do

    def run(self, command: str) -> "subprocess.CompletedProcess[str]":
        """Runs a line as a person would type it; one that runs for ever is ended when it has begun, and answers 0 then."""
        filled = re.sub(r"([A-Za-z]+[_-])\.\.\.(?!\w)", lambda match: self.ids[match[1]], command).replace(
            "reason=...", "reason=x"
        )
        if filled.startswith("bcd join --token-file"):  # what another command has put there is used up
            (self.base / "token.txt").write_text(self.token)
        if filled.startswith(LONG_RUNNING):
            return self._begun(filled)
        own = (
            {"BCD_DATA_DIR": str(self.base / "other"), "BC_DATA_DIR": str(self.base / "other-rc")}
            if filled.startswith(FRESH)
            else {}
        )
        env = {**self.env, **own}
        argv = ["bash", "-c", filled]
        return subprocess.run(argv, cwd=self.base, env=env, capture_output=True, text=True, timeout=120, check=False)

    def _begun(self, command: str) -> "subprocess.CompletedProcess[str]":
        fresh = self.base / f"fresh-{abs(hash(command))}"
        fresh.mkdir()
        env = {**self.env, **addresses(fresh), "BCD_DATA_DIR": str(fresh / "bcd"), "BC_DATA_DIR": str(fresh / "rc")}
        if command.startswith("bc-receiver"):
            data = ["--data-dir", "rc"] if "--data-dir" in command else []
            subprocess.run([BIN / "bc-receiver", "init", *data], cwd=fresh, env=env, check=True, capture_output=True, timeout=60)
        process = Process(command, ["bash", "-c", f"exec {command}"], fresh / "log", env, fresh)
        process.start()

        def said() -> bool:
            return bool(STANDS.search(process.log.read_text())) or process.popen.poll() is not None  # type: ignore[union-attr]

        wait_for(command, said, 60.0)
        code = process.popen.poll()  # type: ignore[union-attr]
        process.stop()
        return subprocess.CompletedProcess(command, 0 if code is None else code, "", process.log.read_text())


def addresses(base: Path) -> dict[str, str]:
    """Settings of listeners that nobody has."""
    free = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    names = ("BC_LISTEN_JOIN", "BC_LISTEN_SESSION", "BC_LISTEN_API")
    return {**dict(zip(names, free, strict=True)), "BC_METRICS_LISTEN": "", "BETTER_COMPUTE_SERVER": free[2]}


def _fakes(directory: Path) -> None:
    directory.mkdir()
    known = {
        "units": "|".join(re.escape(path.stem) for path in (ROOT / "packaging/systemd").glob("*.service")),
        "packages": "bcd|bc-receiver",
        "targets": "|".join(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)),
    }
    for program, pattern in SYSTEM.items():
        wanted = pattern
        for name, value in known.items():
            wanted = wanted.replace(f"{{{name}}}", value)
        script = directory / program
        script.write_text(
            f"#!{sys.executable}\nimport re, sys\nsaid = ' '.join(sys.argv[1:])\n"
            f"sys.exit(0 if re.fullmatch({wanted!r}, said) else f'{program} is not to be given: {{said}}')\n"
        )
        script.chmod(0o755)


@contextmanager
def world(base: Path) -> Iterator[World]:
    """The receiver and the node run for the length of the block."""
    _fakes(base / "fakes")
    host = copy("h100-sxm-8", base)
    wear_out_gpu(host, 1)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("BC", "BETTER"))}
    env = {
        **clean,
        **addresses(base),
        "PATH": f"{base}/fakes:{BIN}:{os.environ['PATH']}",
        "BC_DATA_DIR": str(base / "rc"),
        "BCD_DATA_DIR": str(base / "bcd"),
    }
    made = subprocess.run([BIN / "bc-receiver", "init"], env=env, capture_output=True, text=True, timeout=60, check=True)
    env |= {"BETTER_COMPUTE_TOKEN": made.stdout.strip(), "BETTER_COMPUTE_CA": str(base / "rc/tls/server-ca.pem")}
    failed: list[str] = []
    receiver = Process("bc-receiver", [str(BIN / "bc-receiver"), "serve"], base / "receiver.log", env)
    bcd = Process("bcd", [str(BIN / "bcd"), "--host", str(host), "--data-dir", str(base / "bcd"), "run"], base / "bcd.log", env)

    def ask(program: str, *words: object) -> Any:
        argv = [str(BIN / program), *map(str, words)]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
        failed.append(f"{argv}: {done.stderr}") if done.returncode else None
        return json.loads(done.stdout) if done.returncode == 0 else None

    def api(method: str, *keys: str) -> Any:
        return ask("better-compute", "api", method, *keys, "--format", "json")

    receiver.start()
    try:
        wait_for("the receiver", lambda: receiver.running() and api("nodes.list"), 60.0)
        pool = api("pools.create", "name=docs")["id"]
        joined = api("joinTokens.create", f"poolId={pool}", "uses=2")
        (base / "token.txt").write_text(joined["token"])
        told = ask("bcd", "--host", host, "--data-dir", base / "bcd", "join", "--token-file", base / "token.txt", "--json")
        assert told, failed
        node = told["nodeId"]
        bcd.start()
        gpus = wait_for(
            "its inventory", lambda: bcd.running() and (api("nodes.get", f"nodeId={node}") or {}).get("devices"), 60.0
        )
        wait_for("its fault", lambda: any(not gpu["healthy"] for gpu in api("nodes.get", f"nodeId={node}")["devices"]))
        run = api("nodes.diag", f"nodeId={node}", "reason=docs")["id"]
        ids = {"node_": node, "pool_": pool, "run_": run, "tok_": joined["facts"]["id"], "GPU-": gpus[1]["id"]}
        recorded = base / "recorded.txt"
        recorded.write_text((host / "kmsg").read_text())
        recorded.rename(base / "dmesg.txt")
        (base / "tests").symlink_to(ROOT / "tests")
        yield World(base, env, ids, joined["token"])
    finally:
        bcd.stop()
        receiver.stop()


def commands(page: Path) -> list[str]:
    """The commands of a page, in order: each line of an indented block, without its comment."""
    lines = re.findall(r"^    (?![ $>|])(\S.*)$", page.read_text(), re.MULTILINE)
    return [line for line in (_bare(one) for one in lines) if line]


def _bare(line: str) -> str:
    """A line without its comment; empty for one that is no command."""
    line = re.sub(r"\s{2,}#.*$|\s#\s.*$", "", line).strip()
    try:
        first = shlex.split(line)[0]
    except (ValueError, IndexError):
        return ""
    return line if first in (*SYSTEM, "bcd", "bc-receiver", "better-compute", "export", "python") else ""
