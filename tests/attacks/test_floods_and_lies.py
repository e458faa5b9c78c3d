"""Attacks by a node that has joined: more than it may say, and what is not its to say (SPEC A3, B2, B3, B11)."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable

import grpc
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.agent.v1 import session_pb2 as wire
from bettercompute.contract.sections import digest, encode, section_hash

from receiver.gateway import limits
from tests.attacks.arena import BAD_MESSAGE, CODE, ITS_OWN, Arena, attack, refusal
from tests.attacks.world import ACME, SECRET
from tests.fake_daemon import FakeDaemon
from tests.receiver.builders import gpu, gpus

VICTIMS = gpu(900)
PATH = "/bettercompute.agent.v1.AgentService/Session"
OF_AN_INVENTORY = ("events", "inventory_snapshots", "sections", "tenant_sections", "conditions", "hardware_keys", "node_labels")


# ---- floods


@attack
async def test_snapshot_flood(arena: Arena) -> None:
    """As many different inventories as it likes, over as many sessions: a handful are kept, the rest are told to wait."""
    node = arena.attacker()
    results = []
    for session in range(3):
        async with arena.connected(node) as daemon:
            daemon.epoch = session or None
            for number in range(10):
                results.append(await daemon.offer({"os": encode(pb.OsSection(hostname=f"gpu-{session}-{number}"))}))
    applied = [one for one in results if one.status == wire.INVENTORY_STATUS_APPLIED]
    assert len(applied) <= limits.OFFERS.burst + 1
    late = [one for one in results if one.status == wire.INVENTORY_STATUS_RETRY]
    assert len(late) == len(results) - len(applied)
    assert all("offers an hour" in one.reason and one.retry_after.ToSeconds() > 0 for one in late)
    kept = arena.served.rows("SELECT count(*) FROM inventory_snapshots WHERE node_id = %s", node.node_id)
    assert kept == [(len(applied),)]
    await arena.alive()


@attack
async def test_a_flood_of_bytes(arena: Arena) -> None:
    """Each section as large as it may be: 64 MiB a node and day. They are no messages, so nothing of them is kept."""
    node = arena.attacker()
    async with arena.unharmed(*ITS_OWN), arena.connected(node) as daemon:
        used = arena.served.receiver.registry.rates[node.node_id].section_bytes
        used.level, used.at = 9e6, arena.served.receiver.registry.now()  # most of the day's
        bodies = [bytes([number]) * limits.SECTION_BYTES.most for number in (255, 254)]
        results = [await daemon.offer({"os": body}) for body in bodies]
        assert [one.status for one in results] == [wire.INVENTORY_STATUS_REFUSED, wire.INVENTORY_STATUS_RETRY]
        assert limits.DAILY_BYTES.name in results[1].reason
        assert daemon.sent_bytes == limits.SECTION_BYTES.most, "what is over the limit is not even fetched"


async def answered(daemon: FakeDaemon, send: Callable[[], Awaitable[None]]) -> tuple[grpc.StatusCode | None, int | None, str]:
    """How a flood is refused: messages go out until something comes back. (A write to a stream that has just ended is INTERNAL to
    grpc's own client, whatever the server said: then once more.)"""

    async def flood() -> None:
        while True:
            reading = asyncio.ensure_future(daemon.receive())
            try:
                while not reading.done():
                    await send()
                    await asyncio.sleep(0.01)
                await reading
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    for _ in range(10):
        found = await refusal(flood())
        if found[0] is not CODE.INTERNAL:
            break
        await daemon.close()
        await daemon.connect()
    return found


@attack
async def test_a_flood_of_reports(arena: Arena) -> None:
    node = arena.attacker()
    async with arena.unharmed(*ITS_OWN), arena.node_daemon(node) as daemon:
        await daemon.connect()
        code, reason, says = await answered(daemon, daemon.report)
        assert (code, reason) == (CODE.RESOURCE_EXHAUSTED, BAD_MESSAGE)
        assert limits.REPORTS.name in says


@attack
async def test_a_flood_of_hellos(arena: Arena) -> None:
    """Other drivers with each of them, so that each would be written."""
    node = arena.attacker()
    async with arena.node_daemon(node) as daemon:
        await daemon.connect()
        numbers = itertools.count()

        async def greet() -> None:
            await daemon.send(hello=daemon.hello(wire.Driver(id="kvm", version=str(next(numbers)))))

        code, reason, says = await answered(daemon, greet)
        assert (code, reason) == (CODE.RESOURCE_EXHAUSTED, BAD_MESSAGE)
        assert limits.REPORTS.name in says
    await arena.alive()


@attack
async def test_a_result_of_four_megabytes(arena: Arena) -> None:
    """It is not taken apart: all streams would wait for it."""
    node = arena.attacker()
    on = {"nodeId": node.node_id, "reason": "look"}
    command = (await arena.call(arena.operator, "inventory.refresh", **on))["id"]
    async with arena.connected(node) as daemon:
        assert await daemon.finish(command, "succeeded", many=["x"] * 400_000) == command
    ((result,),) = arena.served.rows("SELECT result FROM commands WHERE id = %s", command)
    assert set(result) == {"unreadable"}
    assert len(result["unreadable"]) < 4096


@attack
async def test_a_flood_of_streams(arena: Arena) -> None:
    node = arena.attacker()
    async with arena.unharmed(*ITS_OWN):
        daemons = [arena.node_daemon(node) for _ in range(6)]
        try:
            for daemon in daemons:
                await daemon.open()
            asked = [asyncio.create_task(refusal(daemon.receive())) for daemon in daemons]
            met = [await one for one in itertools.islice(asyncio.as_completed(asked), 4)]
            assert [code for code, _, _ in met] == [CODE.RESOURCE_EXHAUSTED] * 4
            assert all(limits.STREAMS.name in says for _, _, says in met)
        finally:
            for daemon in daemons:
                await daemon.close()
            await asyncio.gather(*asked, return_exceptions=True)


@attack
async def test_ten_thousand_labels_by_drivers(arena: Arena) -> None:
    node = arena.attacker()
    many = [wire.Driver(id=f"d{number}", version="1") for number in range(10_000)]
    wide = [wire.Driver(id="d", version="1", kinds=[f"k{number}" for number in range(10_000)])]
    async with arena.unharmed(*ITS_OWN):
        for drivers, limit in ((many, limits.DRIVERS), (wide, limits.KINDS)):
            async with arena.node_daemon(node) as daemon:
                code, reason, says = await refusal(daemon.connect(*drivers))
                assert (code, reason) == (CODE.INVALID_ARGUMENT, BAD_MESSAGE)
                assert limit.name in says


@attack
async def test_ten_thousand_labels_by_the_api(arena: Arena) -> None:
    node, token = arena.attacker(), arena.served.token_of(ACME)
    async with arena.unharmed():
        labels = json.dumps({f"key-{number}": "x" for number in range(10_000)})
        code, _, says = await refusal(arena.call(token, "nodes.label", nodeId=node.node_id, labels=labels, reason="x"))
        assert code is CODE.INVALID_ARGUMENT
        assert "labels" in says


# ---- about what is not its own


@attack
async def test_a_condition_outside_the_allow_list(arena: Arena) -> None:
    """What no report may set is dropped and counted: neither NoSchedule for itself nor a clean bill."""
    node = arena.attacker()
    async with arena.connected(node) as daemon:
        async with arena.unharmed("node_missing_sections", "nodes"):
            before = arena.served.receiver.registry.dropped["bad-condition"]
            for kind in ("DuplicateIdentity", "AcceptanceFailed", "NotReporting", "DaemonOutdated", "X" * 200, "", "GpuLost"):
                daemon.set_condition(kind, reason="Attack")
            await daemon.report()
            await daemon.dealt_with()
            assert arena.served.receiver.registry.dropped["bad-condition"] == before + 7
        assert arena.served.rows("SELECT count(*) FROM conditions WHERE node_id = %s", node.node_id) == [(0,)]


@attack
async def test_another_nodes_gpus_in_an_inventory(arena: Arena) -> None:
    """The GPU stays where it is, and the liar is bookable no more."""
    node = arena.attacker()
    async with arena.unharmed(*ITS_OWN, *OF_AN_INVENTORY), arena.connected(node) as daemon:
        before = arena.served.rows("SELECT * FROM devices ORDER BY id")
        assert (await daemon.offer({"gpus": encode(gpus(VICTIMS))})).status == wire.INVENTORY_STATUS_APPLIED
        assert arena.served.rows("SELECT * FROM devices ORDER BY id") == before
    told = arena.served.rows("SELECT type, reason, status FROM conditions WHERE node_id = %s", node.node_id)
    assert ("DuplicateIdentity", "DeviceOwned", "true") in told


@attack
async def test_an_xid_of_another_nodes_gpu(arena: Arena) -> None:
    node = arena.attacker()
    async with arena.unharmed(*ITS_OWN, "events", "node_faults"), arena.connected(node) as daemon:
        daemon.xid(79, str(VICTIMS.uuid), str(VICTIMS.bus_id), message="79, GPU has fallen off the bus.")
        await daemon.report()
        await daemon.dealt_with()
    healthy = arena.served.rows("SELECT healthy FROM devices WHERE id = %s", VICTIMS.uuid)
    assert healthy == [(True,)]


@attack
async def test_a_hash_without_bytes_of_another_tenant(arena: Arena) -> None:
    """Who knows the hash of what another tenant's node reported, and not the bytes, gets nothing by offering it."""
    node = arena.attacker()
    theirs = encode(pb.OsSection(hostname=SECRET))
    async with arena.unharmed(*ITS_OWN), arena.connected(node) as daemon:
        hashes = {"os": section_hash(theirs)}
        offer = wire.InventoryOffer(
            digest=digest(hashes),
            sections=[wire.SectionOffer(name="os", schema_version=1, hash=hashes["os"], size=len(theirs))],
            boot_id=daemon.boot_id,
        )
        await daemon.send(inventory_offer=offer)
        answer = await daemon.receive()
        assert list(answer.inventory_request.sections) == ["os"], ("as if nobody had sent it", answer)
        fake = b"x" * len(theirs)
        await daemon.send_sections(offer.digest, {"os": fake}, ["os"])
        result = (await daemon.receive()).inventory_result
        assert (result.status, result.section) == (wire.INVENTORY_STATUS_REFUSED, "os")
    token = arena.served.token_of(ACME)
    assert (await refusal(arena.call(token, "inventory.get", nodeId=node.node_id)))[0] is CODE.NOT_FOUND


@attack
async def test_the_result_of_another_nodes_command(arena: Arena) -> None:
    """Who knows its id cannot say how it went."""
    node = arena.attacker()
    on = {"nodeId": arena.victim.node_id, "reason": "look"}
    command = (await arena.call(arena.operator, "inventory.refresh", **on))["id"]
    assert (await arena.daemon.command()).id == command
    async with arena.unharmed(*ITS_OWN), arena.connected(node) as daemon:
        assert await daemon.finish(command, "succeeded", why="not so") == command
    assert await arena.daemon.finish(command, "succeeded") == command
    assert arena.served.rows("SELECT state, result FROM commands WHERE id = %s", command) == [("succeeded", {})]
