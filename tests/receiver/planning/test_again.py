"""Planning twice plans nothing, and what always holds, over random inventories, bookings, pools and boots (seeded)."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from receiver.planning.atoms import GONE
from receiver.planning.faults import count
from receiver.planning.node import conclude, plan_sections
from receiver.planning.policy import Policy
from receiver.planning.view import TABLES, Booking, Draft, Facts, Node, Pool
from receiver.values import Fault
from tests.receiver.builders import NODE, gpu, gpus
from tests.receiver.planning.scenes import SECTIONS, instance

PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb")


@dataclass(slots=True)
class World:
    """A node, what it says, and what others do to it. Each step is drawn from `rng`."""

    rng: random.Random
    draft: Draft = field(default_factory=lambda: Draft(node=Node(status="adopted")))
    bookings: dict[tuple[str, int], Booking] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    pool: Pool | None = None
    boot: int = 1
    fresh: frozenset[str] = SECTIONS
    section: pb.GpusSection = field(default_factory=pb.GpusSection)

    def facts(self) -> Facts:
        sections = {"gpus": self.section}
        return Facts(
            NODE,
            boot_id=f"boot-{self.boot}",
            online=True,
            pool=self.pool,
            sections=sections,
            fresh=self.fresh,
            bookings=tuple(self.bookings.values()),
            owners=self.owners,
        )

    def step(self) -> None:
        """Something changes, or a few things do."""
        for change in self.rng.sample((self.hardware, self.policy, self.book, self.end, self.reboot, self.own, self.miss), 3):
            change()

    def hardware(self) -> None:
        listed = [self.gpu(number) for number in range(5) if self.rng.random() < 0.8]
        self.section = gpus(*listed, driver=self.rng.choice(("550.1", "570.1")), on_pci=self.rng.choice((-1, 5)))
        for function in self.section.pci_functions:
            function.driver = self.rng.choice(("nvidia", "nvidia", "vfio-pci", ""))

    def gpu(self, number: int) -> pb.Gpu:
        rng = self.rng
        mode = rng.choice((None, False, True))
        listed = [instance(f"{number}{name}", rng.choice(PROFILES), rng.randrange(4)) for name in "abc"[: rng.randrange(4)]]
        mig = pb.Mig(capable=True, current=mode, pending=rng.choice((mode, mode, not mode)), instances=listed if mode else [])
        return gpu(
            number,
            uuid=rng.choice((gpu(number).uuid, gpu(number).uuid, f"GPU-new-{number}", None)),
            state=rng.choice(("ok", "ok", "ok", "lost")),
            assigned=rng.random() < 0.1,
            mig=None if mode is None else mig,
            name=rng.choice(("NVIDIA H100 80GB HBM3", "NVIDIA Something New")),
            row_remap=pb.RowRemap(pending=rng.random() < 0.2, failure=rng.random() < 0.05),
            ecc=pb.Ecc(current=True, volatile=pb.EccCounts(total=rng.choice((0, 0, 0, 3)))),
        )

    def policy(self) -> None:
        rng = self.rng
        if rng.random() < 0.2:
            self.pool = None
            return
        layout = tuple(sorted(rng.sample(PROFILES, rng.randrange(3))))
        policy = Policy(replicas=rng.choice((None, 1, 3, 48)), mig_layout=layout, expect_gpu_count=rng.choice((None, 4)))
        sharing = rng.choice(("exclusive", "mig", "timeslice", "mps"))
        self.pool = Pool("pool_1", sharing=sharing, mode=rng.choice(("enforce", "observe")), policy=policy)

    def book(self) -> None:
        free = [one for one in self.draft.atoms.values() if one.bookable and one.key not in self.bookings]
        for atom in self.rng.sample(free, min(len(free), 2)):
            self.bookings[atom.key] = Booking(f"b{self.rng.random()}", atom.device_id, atom.id, atom.generation)

    def end(self) -> None:
        for key in [key for key in self.bookings if self.rng.random() < 0.4]:
            del self.bookings[key]

    def reboot(self) -> None:
        self.boot += self.rng.randrange(2)

    def own(self) -> None:
        reported = {one.uuid for one in self.section.gpus if one.uuid} - self.draft.devices.keys()
        self.owners = {uuid: "node_2" for uuid in sorted(reported) if self.rng.random() < 0.3}

    def miss(self) -> None:
        self.fresh = self.rng.choice((SECTIONS, SECTIONS, SECTIONS - {"gpus"}))

    def planned(self) -> Draft:
        """The rows of the draft, planned (again)."""
        after, facts = self.draft.copy(), self.facts()
        facts = replace(facts, owners={key: one for key, one in facts.owners.items() if key not in after.devices})
        after.node = replace(after.node, inventory_boot=facts.boot_id)
        plan_sections(facts, after)
        conclude(facts, self.draft, after)
        return after


def worlds(steps: int, seed: int) -> Iterator[World]:
    """A history, planned after each step."""
    world = World(random.Random(seed))
    for _ in range(steps):
        world.step()
        world.draft = world.planned()
        yield world


@pytest.mark.parametrize("seed", range(25))
def test_planning_twice_plans_nothing(seed: int) -> None:
    for world in worlds(12, seed):
        again = world.planned()
        for table in TABLES:
            assert getattr(again, table) == getattr(world.draft, table), table
        assert again.node == world.draft.node
        assert again.hardware == world.draft.hardware
        assert (again.events, again.history, again.notices, again.released) == ([], [], [], set())


@pytest.mark.parametrize("seed", range(25))
def test_what_is_booked_stays_until_its_booking_ends(seed: int) -> None:
    for world in worlds(12, seed):
        assert world.bookings.keys() <= world.draft.atoms.keys()
        kept = [key for key, one in world.draft.atoms.items() if one.retiring or one.reason == GONE]
        assert set(kept) <= world.bookings.keys()
        missing = {one.id for one in world.draft.devices.values() if not one.present}
        assert missing <= {one.device_id for one in world.bookings.values()}


@pytest.mark.parametrize("seed", range(25))
def test_what_is_bookable_is_all_that_it_has_to_be(seed: int) -> None:
    for world in worlds(12, seed):
        devices = world.draft.devices
        for atom in world.draft.atoms.values():
            device = devices[atom.device_id]
            assert atom.bookable == (atom.reason is None)
            if atom.bookable:
                assert (device.present, device.healthy) == (True, True)
                assert (device.assigned, device.partition_pending, atom.retiring) == (False, False, False)
        assert not devices.keys() & {row.device_id for row in world.draft.conditions.values() if _disputed(row.status, row.type)}


def _disputed(status: str, kind: str) -> bool:
    return (status, kind) == ("true", "DuplicateIdentity")


@pytest.mark.parametrize("seed", range(25))
def test_a_generation_is_never_used_for_two_instances(seed: int) -> None:
    born: dict[tuple[str, int], tuple[object, ...]] = {}
    for world in worlds(12, seed):
        for key, atom in world.draft.atoms.items():
            told = (atom.device_id, atom.profile, atom.placement)
            assert born.setdefault(key, told) == told


@pytest.mark.parametrize("seed", range(10))
def test_counting_a_report_of_faults_twice_counts_nothing(seed: int) -> None:
    rng = random.Random(seed)
    for world in worlds(8, seed):
        listed = [
            Fault("xid", rng.choice((31, 48, 63, 79, 94, 154)), device, "00000000:18:00.0", rng.randrange(1, 9), "text")
            for device in sorted(world.draft.devices)
        ]
        first = world.draft.copy()
        count(world.facts(), first, listed)
        conclude(world.facts(), world.draft, first)
        again = first.copy()
        count(world.facts(), again, listed)
        conclude(world.facts(), first, again)
        for table in TABLES:
            assert getattr(again, table) == getattr(first, table), table
        assert (again.events, again.history, again.notices) == ([], [], [])
        world.draft = first
