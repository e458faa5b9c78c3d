"""Commands through real processes: queued at a real receiver, run by a real bcd, with a `systemctl` that reboots a recorded host.

A reboot is what it is for bcd: it is killed, and its next start finds another boot id. `make proof-watch` repeats the kills ten
times as often.
"""

import asyncio
import itertools
import json
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bettercompute.agent.v1 import session_pb2 as pb

from tests.agent.processes import process
from tests.agent.session.fake_gateway import FakeGateway, Stream
from tests.end_to_end.processes import BIN, Fleet, Process, fleet, wait_for
from tests.end_to_end.rebooting import Machine, machine
from tests.hosts_catalog import lose_gpu
from tests.queue_command import ended, queue
from tests.repetitions import times

HOST = "l4-cloud-vm"
_serial = itertools.count(1)


@pytest.fixture(scope="module")
def run() -> Iterator[Fleet]:
    """One receiver for the tests of this file."""
    with tempfile.TemporaryDirectory(prefix="bc-") as directory, fleet(Path(directory)) as started:
        yield started


def folder(run: Fleet) -> Path:
    path = run.base / f"m{next(_serial)}"
    path.mkdir()
    return path


@dataclass
class Node:
    """A bcd of the fleet, whose machine can be rebooted."""

    run: Fleet
    name: str
    machine: Machine
    id: str = ""

    def start(self) -> None:
        self.boot()
        self.id = self.run.applied(self.name)["nodeId"]

    def boot(self) -> None:
        """Starts bcd, which may go down again at once."""
        self.run.daemon(self.name, self.machine.host, self.machine.env)

    def order(self, kind: str, **payload: Any) -> str:
        return queue(str(self.run.base / "receiver"), self.id, kind, payload)

    def answer(self, command_id: str, seconds: float = 30.0) -> dict[str, Any]:
        return ended(str(self.run.base / "receiver"), command_id, seconds)


@pytest.fixture
def node(run: Fleet) -> Iterator[Node]:
    base = folder(run)
    made = Node(run, base.name + "-data", machine(base, HOST))
    made.start()
    yield made
    run.daemons.pop(made.name).stop()


def test_a_refresh_collects_and_answers_what_the_receiver_said(node: Node) -> None:
    (node.machine.host / "root/etc/hostname").write_text("renamed\n")
    facts = json.loads((node.machine.host / "host.json").read_text())
    facts["uname"]["hostname"] = "renamed"
    (node.machine.host / "host.json").write_text(json.dumps(facts))
    answer = node.answer(node.order("inventory.refresh"))
    assert (answer["state"], answer["result"].get("status")) == ("succeeded", "applied"), answer
    assert node.run.api("nodes.get", nodeId=node.id)["appliedDigest"] == answer["result"]["digest"]


def test_diag_nvml_counts_and_names_each_check(node: Node) -> None:
    good = node.answer(node.order("diag.nvml", expect={"gpuCount": 1}))
    bad = node.answer(node.order("diag.nvml", expect={"gpuCount": 8}))
    assert (good["state"], bad["state"]) == ("succeeded", "succeeded")
    results = {check["check"]: check["result"] for check in bad["result"]["checks"]}
    assert (bad["result"]["passed"], results["gpu.count"], results["nvml.init"]) == (False, "fail", "pass")
    assert {check["check"]: check["result"] for check in good["result"]["checks"]}["gpu.count"] == "pass"


def test_a_kind_that_is_not_allowed_or_not_known_here_is_answered_so(run: Fleet) -> None:
    base = folder(run)
    cautious = Node(run, base.name + "-data", machine(base, HOST))
    run.daemon(cautious.name, cautious.machine.host, {"BCD_SETTLE": "0s"})
    cautious.id = run.applied(cautious.name)["nodeId"]
    answer = cautious.answer(cautious.order("node.reboot"))
    assert (answer["state"], answer["reason"], cautious.machine.reboots) == ("refused", "NotAllowed", 0)


def test_a_reset_of_a_lost_gpu_clears_its_fault_when_it_comes_back_healthy(node: Node) -> None:
    nvml = (node.machine.host / "nvml.json").read_text()
    lose_gpu(node.machine.host, 0)
    node.run.bcd(node.name, "refresh")
    uuid = json.loads(nvml)["devices"][0]["uuid"]
    wait_for("the fault", lambda: any(c["type"] == "Xid79" for c in node.run.status(node.name)["conditions"]))
    smi = node.machine.systemctl.with_name("nvidia-smi")
    smi.write_text(f'#!/bin/sh\necho "$*" > {smi}.calls\ncp {smi}.repaired {node.machine.host}/nvml.json\n')
    smi.chmod(0o755)
    Path(f"{smi}.repaired").write_text(nvml)
    node.run.daemons[node.name].stop()
    node.run.daemon(node.name, node.machine.host, {**node.machine.env, "BCD_TOOLS_NVIDIA_SMI": str(smi)})
    answer = node.answer(node.order("gpu.reset", deviceId=uuid))
    assert (answer["state"], answer["reason"]) == ("succeeded", "")
    assert Path(f"{smi}.calls").read_text() == f"--gpu-reset -i {uuid}\n"
    assert not any(c["type"] == "Xid79" for c in node.run.status(node.name)["conditions"])
    wait_for("the collection after it", lambda: [d["offer"] for d in node.run.status(node.name)["devices"]] == [True])
    again = node.answer(node.order("gpu.reset", deviceId=uuid))
    assert (again["state"], again["reason"]) == ("refused", "RateLimited")


def test_a_held_gpu_is_not_reset_and_its_node_not_rebooted(node: Node) -> None:
    uuid = json.loads((node.machine.host / "nvml.json").read_text())["devices"][0]["uuid"]
    holds = node.run.base / node.name / "holds"
    holds.mkdir(exist_ok=True)
    (holds / "a.json").write_text(json.dumps({"id": "a", "owner": "metal", "kind": "allocation", "devices": [uuid]}))
    reset, reboot = (node.answer(node.order(kind, deviceId=uuid)) for kind in ("gpu.reset", "node.reboot"))
    assert (reset["state"], reset["reason"]) == ("refused", "gpu-busy")
    assert (reboot["state"], reboot["reason"], node.machine.reboots) == ("refused", "node-busy", 0)
    assert reset["result"]["users"] == [{"what": "hold", "name": "a (allocation) of metal", "devices": [uuid]}]
    assert [hold["state"] for hold in node.run.status(node.name)["holds"]] == ["held"]
    (holds / "a.json").unlink()
    process(node.machine.host / "root", 4711, "python3", "/dev/nvidia0")
    busy = node.answer(node.order("node.reboot"))
    assert [(user["name"], user["pid"]) for user in busy["result"]["users"]] == [("python3", 4711)]


def test_a_reboot_is_answered_by_the_boot_after_it(node: Node) -> None:
    command = node.order("node.reboot")
    wait_for("bcd to go down with its machine", lambda: node.run.daemons[node.name].popen.poll() is not None)  # type: ignore[union-attr]
    node.machine.wait_until_up()
    node.start()
    answer = node.answer(command)
    assert (answer["state"], node.machine.reboots) == ("succeeded", 1)
    assert answer["result"]["bootId"] == node.run.status(node.name)["bootId"] != answer["result"]["previousBootId"]
    limited = node.answer(node.order("node.reboot"))
    assert (limited["state"], limited["reason"], node.machine.reboots) == ("refused", "RateLimited", 1)


def test_killed_at_any_point_a_reboot_happens_exactly_once(run: Fleet) -> None:
    chance = random.Random(11)
    for _ in range(times(30)):
        base = folder(run)
        node = Node(run, base.name + "-data", machine(base, HOST))
        node.start()
        command = node.order("node.reboot")
        time.sleep(chance.uniform(0.0, 0.15))
        run.daemons[node.name].kill()
        node.machine.wait_until_up()
        node.boot()
        while not _answered(node, command):  # the machine goes down under bcd when it had not been asked before
            node.machine.wait_until_up()
            node.boot()
        assert node.answer(command)["state"] == "succeeded"
        assert node.machine.reboots == 1
        run.daemons.pop(node.name).stop()


def _answered(node: Node, command: str) -> bool:
    """Waits for the answer; False when bcd went down before it."""
    bcd = node.run.daemons[node.name].popen
    assert bcd is not None

    def probe() -> str:
        try:
            return "answered" if node.answer(command, 0.0) else ""
        except TimeoutError:
            return "down" if bcd.poll() is not None else ""

    return wait_for("an answer, or the machine going down", probe) == "answered"


# ---- what a gateway may do: deliver twice, deliver again after the answer


class Talk:
    """A bcd against a gateway that a test plays: `play` gets each session's stream."""

    def __init__(self, base: Path, before: str = "") -> None:
        self.base = base
        self.machine = machine(base, HOST, before)
        self.results: list[pb.CommandResult] = []

    async def life(self, play: Callable[[Stream], Awaitable[None]], until: Callable[[], bool]) -> None:
        """One life of bcd, until something is true or it has died."""
        async with FakeGateway(self.base / "g.sock", play) as gateway:
            argv = [
                str(BIN / "bcd"),
                "--data-dir",
                str(self.base / "data"),
                "--host",
                str(self.machine.host),
                "run",
                "--insecure",
            ]
            bcd = Process("bcd", [*argv, "--server", gateway.target], self.base / "bcd.log", self.machine.env)
            bcd.start()
            try:
                async with asyncio.timeout(30):
                    while bcd.popen is not None and bcd.popen.poll() is None and not until():
                        await asyncio.sleep(0.02)
            finally:
                bcd.kill()
        self.machine.wait_until_up()

    def deliver(self, count: int, acknowledge: bool = False) -> Callable[[Stream], Awaitable[None]]:
        """A gateway that delivers one reboot so often, and keeps what is answered."""

        async def play(stream: Stream) -> None:
            await stream.welcome()
            for _ in range(count):
                await stream.say(command=pb.Command(id="cmd_1", kind="node.reboot"))
            while isinstance(request := await stream.context.read(), pb.SessionRequest):
                if request.WhichOneof("message") == "command_result":
                    self.results.append(request.command_result)
                    if acknowledge:
                        await stream.say(command_ack=pb.CommandAck(id=request.command_result.id))

        return play

    def answered(self) -> bool:
        return bool(self.results)


def never() -> bool:
    return False


def test_delivered_twice_it_reboots_once_and_every_repeat_is_answered(tmp_path: Path) -> None:
    async def story() -> None:
        talk = Talk(tmp_path)
        await talk.life(talk.deliver(2), never)
        assert (talk.machine.reboots, talk.results) == (1, [])
        await talk.life(talk.deliver(0), talk.answered)
        assert [(r.id, r.status) for r in talk.results] == [("cmd_1", pb.COMMAND_STATUS_SUCCEEDED)]
        talk.results.clear()
        await talk.life(talk.deliver(0), talk.answered)
        assert len(talk.results) == 1, "nobody has acknowledged it"
        await talk.life(talk.deliver(1, acknowledge=True), lambda: len(talk.results) >= 3)
        talk.results.clear()
        await talk.life(talk.deliver(1), talk.answered)
        assert {r.status for r in talk.results} == {pb.COMMAND_STATUS_SUCCEEDED}
        assert talk.machine.reboots == 1

    asyncio.run(asyncio.wait_for(story(), 120))


def test_killed_between_the_record_and_the_reboot_its_repeat_reboots_once(tmp_path: Path) -> None:
    async def story() -> None:
        # The first systemctl is bcd's end before anything has happened.
        talk = Talk(tmp_path, f"[ -e {tmp_path}/killed ] || {{ touch {tmp_path}/killed; die; exit 1; }}")
        await talk.life(talk.deliver(1), never)
        assert talk.machine.reboots == 0
        record = json.loads((tmp_path / "data/commands/cmd_1.json").read_text())
        assert (record["result"], record["kind"]) == (None, "node.reboot")
        assert record["began"] is not None
        await talk.life(talk.deliver(1), never)
        assert (talk.machine.reboots, talk.results) == (1, [])
        await talk.life(talk.deliver(1), talk.answered)
        assert {(r.id, r.status) for r in talk.results} == {("cmd_1", pb.COMMAND_STATUS_SUCCEEDED)}
        assert talk.machine.reboots == 1

    asyncio.run(asyncio.wait_for(story(), 120))
