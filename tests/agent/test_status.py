"""What the node says of itself, to the receiver and on the local socket."""

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import encode

from agent import status
from agent.faults import Ledger, Places, Seen
from agent.inventory import Inventory
from agent.sections import Failed, Section
from agent.session import messages as m
from agent.triggers import Fingerprint


def inventory(*failed: Failed, gpus: pb.GpusSection | None = None) -> Inventory:
    sections = (Section("cpu", b"c"), *((Section("gpus", encode(gpus)),) if gpus else ()))
    ages = dict.fromkeys([s.name for s in sections] + [f.name for f in failed], 50.0)
    return Inventory("boot-1", "refresh", 100.25, Fingerprint("0.1.0", None, None), sections, failed, ages)


def test_before_the_first_collection_there_is_no_digest() -> None:
    assert status.report(None) == m.Status()
    assert status.describe(None)["digest"] is None


def test_a_missing_section_is_there_with_its_error_and_settling_is_one_word() -> None:
    found = inventory(Failed("disks", "Hang", "no answer within 60 s"), Failed("gpus", "settling", "1 of 8 GPUs answer"))
    missing = (m.Missing("disks", "Hang: no answer within 60 s"), m.Missing("gpus", "settling"))
    assert status.report(found).missing == missing
    assert status.offer(found).missing == missing
    assert status.describe(found)["missing"][1]["detail"] == "1 of 8 GPUs answer"


def test_a_gpus_section_whose_nvml_did_not_answer_has_its_error_too() -> None:
    found = pb.GpusSection(error=pb.NvmlFailure(reason="DriverNotLoaded", message="nvmlInit"))
    errors = {s["name"]: s.get("error") for s in status.describe(inventory(gpus=found))["sections"]}
    assert errors["gpus"] == "NVML does not answer: DriverNotLoaded: nvmlInit"
    assert not any(error for name, error in errors.items() if name != "gpus")


def test_conditions_are_sorted_so_that_the_same_state_is_the_same_report() -> None:
    conditions = [m.Condition("Xid79", "true", 1.0, device_id="GPU-2"), m.Condition("Xid79", "true", 1.0, device_id="GPU-1")]
    again = status.report(None, conditions=reversed(conditions))
    assert status.report(None, conditions=conditions) == again
    assert [c.device_id for c in again.conditions] == ["GPU-1", "GPU-2"]


def test_the_offer_carries_boot_trigger_and_time() -> None:
    offer = status.offer(inventory())
    assert (offer.boot_id, offer.trigger, offer.collected_at, offer.digest) == ("boot-1", "refresh", 100.25, inventory().digest)


def test_nvml_is_a_capability_only_when_it_answered_in_this_boot() -> None:
    answered = pb.GpusSection(driver=pb.NvidiaDriver(nvml_version="12.550"))
    failed = pb.GpusSection(driver=pb.NvidiaDriver(nvml_version="12.550"), error=pb.NvmlFailure(reason="Error"))
    assert status.capabilities(inventory(gpus=answered), "boot-1") == ("nvml",)
    assert status.capabilities(inventory(gpus=answered), "boot-2") == ()
    assert status.capabilities(inventory(gpus=failed), "boot-1") == ()
    assert status.capabilities(inventory(gpus=pb.GpusSection(unreadable=[pb.Unreadable(path="/x")])), "boot-1") == ()
    assert status.capabilities(None, "boot-1") == ()


def test_devices_are_offered_only_when_they_are_well_and_here() -> None:
    found = pb.GpusSection(
        gpus=[
            pb.Gpu(uuid="GPU-1", bus_id="a", state="ok"),
            pb.Gpu(uuid="GPU-2", bus_id="b", state="lost"),
            pb.Gpu(uuid="GPU-3", bus_id="c", state="ok", assigned=True),
        ]
    )
    devices = status.describe(inventory(gpus=found))["devices"]
    assert [(device["deviceId"], device["offer"]) for device in devices] == [("GPU-1", True), ("GPU-2", False), ("GPU-3", False)]


def test_times_are_rfc_3339_in_utc() -> None:
    assert status.moment(None) is None
    assert status.moment(1717171717.25) == "2024-05-31T16:08:37.250Z"
    assert status.describe(inventory())["collectedAt"] == "1970-01-01T00:01:40.250Z"


def test_a_report_holds_256_conditions_and_counts_the_others() -> None:
    conditions = [m.Condition(f"Xid{n}", "true", 1.0, device_id="GPU-1") for n in range(300)]
    found = status.report(None, conditions=conditions, kernel_log=m.KernelLog(True, True, overflow=1))
    assert {c.type for c in found.conditions} == {f"Xid{n}" for n in range(256)}, "the first handed in are the worst"
    assert found.kernel_log == m.KernelLog(True, True, overflow=45)


def test_a_device_shows_its_faults_and_is_not_offered_with_one_that_has_a_policy() -> None:
    bus = "00000000:18:00.0"
    places = Places(shown={bus: "GPU-1", "00000000:2A:00.0": "GPU-2"})
    seen = [Seen("Xid", 79, bus, "79, gone", 1, 10.0), Seen("Xid", 43, "00000000:2A:00.0", "43, Ch 8", 2, 20.0, gi=7, ci=0)]
    ledger = Ledger("boot-1").add(seen[0], places).add(seen[1], places)
    gpus = pb.GpusSection(gpus=[pb.Gpu(uuid=f"GPU-{n}", bus_id=str(n), state="ok") for n in (1, 2, 3)])
    devices = status.describe(inventory(gpus=gpus), ledger)["devices"]
    assert [(d["offer"], [f["type"] for f in d["faults"]]) for d in devices] == [
        (False, ["Xid79"]),
        (True, ["Xid43"]),
        (True, []),
    ]
    assert devices[0]["faults"][0] == {
        "type": "Xid79",
        "name": "GPU has fallen off the bus",
        "policy": "node",
        "action": "reboot-node",
        "count": 1,
        "since": "1970-01-01T00:00:10.000Z",
        "last": "1970-01-01T00:00:10.000Z",
        "message": "79, gone",
        "remembered": False,
    }
    assert (devices[1]["faults"][0]["gi"], devices[1]["faults"][0]["ci"]) == (7, 0)


def test_conditions_for_a_person_are_the_report_s() -> None:
    found = status.describe_conditions([m.Condition("Xid79", "true", 1.5, message="79, gone", device_id="GPU-1", count=2)])
    assert [(c["type"], c["deviceId"], c["count"], c["since"]) for c in found] == [
        ("Xid79", "GPU-1", 2, "1970-01-01T00:00:01.500Z")
    ]
