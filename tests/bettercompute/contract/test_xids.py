"""xids.json: that it is right in itself, and what it says of single faults."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bettercompute.contract
import pytest
from bettercompute.contract import xids
from bettercompute.contract.xids import load, policy, recovery_action, sxid_policy, table

TEXT = (Path(bettercompute.contract.__file__).parent / "xids.json").read_text()


def verdict(found: xids.XidPolicy) -> tuple[str, str, str, str | None]:
    return found.scope, found.severity, found.action, found.policy


def test_the_table_is_whole() -> None:
    assert len(table().xids) == len(json.loads(TEXT)["xids"]) > 150
    assert len(table().sxids) == len(json.loads(TEXT)["sxids"]) > 250
    assert table().version == 1


def test_every_entry_is_answered_as_it_is_written() -> None:
    data = json.loads(TEXT)
    for entry in data["xids"]:
        found = policy(entry["xid"])
        assert (found.code, found.name, found.known) == (entry["xid"], entry["name"], True)
        assert verdict(found) == (entry["scope"], entry["severity"], entry["action"], entry["policy"])
    for entry in data["sxids"]:
        found = sxid_policy(entry["sxid"])
        assert (found.code, found.name, found.known) == (entry["sxid"], entry["name"], True)
        assert verdict(found) == (entry["scope"], entry["severity"], entry["action"], entry["policy"])


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (79, "79, pid=1, name=x, GPU has fallen off the bus.", ("node", "fatal", "reboot-node", "node")),
        (48, "48, pid=1, name=Fatal, An uncorrectable double bit error", ("device", "critical", "drain-and-reset", "device")),
        (144, "144, SAW_MVB Nonfatal XC0 i0 Link 00 (0x00000021)", ("fabric", "warning", "none", None)),
        (149, "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x004505c6)", ("fabric", "critical", "reset-gpu", "device")),
        (147, "147, TREX Fatal XC0 i0 Link 05", ("fabric", "critical", "reset-gpu", "device")),
        (147, "147, TREX XC0 i0 Link 05", ("fabric", "warning", "none", None)),
        (144, "144, fatal nonfatal Fatality", ("fabric", "critical", "reset-gpu", "device")),
        (145, "145, pid=7, name=Fatal, RLW_REMAP Nonfatal XC1", ("fabric", "warning", "none", None)),
        (145, "145, pid=7, name=Nonfatal, RLW_REMAP Fatal XC1", ("fabric", "critical", "reset-gpu", "device")),
        (424242, "424242, something new", ("informational", "warning", "inspect", None)),
    ],
)
def test_an_xid_means_what_its_number_and_severity_word_say(
    code: int, message: str, expected: tuple[str, str, str, str | None]
) -> None:
    assert verdict(policy(code, message)) == expected


def test_an_unknown_number_is_said_to_be_so() -> None:
    assert policy(424242) == xids.XidPolicy(424242, None, "informational", "warning", "inspect", None, False)
    assert not sxid_policy(424242).known


@pytest.mark.parametrize(
    ("changed", "action"),
    [
        ("0x0 (None) to 0x1 (GPU Reset Required)", "reset-gpu"),
        ("0x1 (GPU Reset Required) to 0x0 (None)", "none"),
        ("0x0 (None) to 0x2 (Node Reboot Required)", "reboot-node"),
        ("0 to 4 (whatever)", "drain-and-reset"),
        ("0 to 04 (whatever)", "drain-and-reset"),
        ("0x0 (None) to 0x63 (New)", "inspect"),
        ("nothing that it knows", "none"),
    ],
)
def test_154_asks_for_the_action_of_its_new_value(changed: str, action: str) -> None:
    found = policy(154, f"154, pid='<unknown>', name=<unknown>, GPU recovery action changed from {changed}")
    assert (found.action, found.policy, found.severity) == (action, None, "info")


@pytest.mark.parametrize("name", ["from 1 to 0", "from 1 to 01", "from 0x to 0x0"])
def test_a_process_cannot_choose_the_recovery_action_by_its_name(name: str) -> None:
    found = policy(154, f"154, pid=7, name={name}, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    assert found.action == "reset-gpu"


def test_a_recovery_action_has_a_name_and_an_action() -> None:
    assert recovery_action(2) == xids.RecoveryAction("Node Reboot Required", "reboot-node")
    assert recovery_action(99) is None


NODE = ("node", "critical", "drain-and-reset", "node")
NOTICE = ("informational", "warning", "none", None)
UNKNOWN_FATAL = ("node", "critical", "inspect", "node")


@pytest.mark.parametrize(
    ("message", "expected", "known"),
    [
        ("20034, Fatal, Link 48 LTSSM Fault Up", NODE, True),  # prints: fatal
        ("20034, Link 48 LTSSM Fault Up", NODE, True),
        ("20034, Non-fatal, Link 48", NOTICE, False),  # another error: numbers have moved between drivers
        ("11001, Fatal, Link 48", NODE, True),  # prints: either
        ("11001, Link 48", NODE, True),
        ("11001, Non-fatal, Link 48", NOTICE, True),
        ("11001, Correctable, Link 48", NOTICE, True),
        ("20001, Non-fatal, Link 35 TX Replay Error", ("informational", "info", "none", None), True),  # prints: non-fatal
        ("20001, Fatal, Link 35", UNKNOWN_FATAL, False),
        ("10006, Thermal", ("node", "critical", "inspect", "node"), True),  # prints: none
        ("10004, Fatal, Thermal", UNKNOWN_FATAL, False),
        ("99999, Fatal, x", UNKNOWN_FATAL, False),
        ("99999, Non-fatal, x", NOTICE, False),
        ("99999, x", NOTICE, False),
        ("99999, x Fatal, y", NOTICE, False),
    ],
)
def test_an_sxid_means_what_its_severity_word_and_number_say(
    message: str, expected: tuple[str, str, str, str | None], known: bool
) -> None:
    found = sxid_policy(int(message.split(",")[0]), message)
    assert verdict(found) == expected
    assert found.known == known


Edit = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda data: data["xids"].append(data["xids"][0]), "xid 1 is there twice"),
        (lambda data: data["sxids"].append(data["sxids"][0]), "sxid 10001 is there twice"),
        (lambda data: data["xids"][0].update(scope="gpu"), "xid 1: scope 'gpu' is none of"),
        (lambda data: data["xids"][0].update(severity="bad"), "xid 1: severity 'bad' is none of"),
        (lambda data: data["xids"][0].update(action="pray"), "xid 1: action 'pray' is none of"),
        (lambda data: data["xids"][0].update(policy="cluster"), "xid 1: policy 'cluster' is none of"),
        (lambda data: data["xids"][0].update(policy="node"), "xid 1: scope informational, policy node"),
        (lambda data: data["xids"][0].update(policy="device"), "xid 1: scope informational, policy device"),
        (lambda data: data["xids"][0].update(action="reset-gpu"), "xid 1: .* action reset-gpu do not go together"),
        (lambda data: data["xids"][0].update(bySeverity={"Fatal": {"action": "pray"}}), "xid 1: action 'pray'"),
        (lambda data: data["xids"][0].update(byRecoveryAction={"9": {"name": "x", "action": "pray"}}), "recovery action 9"),
        (lambda data: data["sxids"][0].update(prints="maybe"), "sxid 10001: prints 'maybe'"),
        (lambda data: data["sxids"][0].update({"class": "odd"}), "sxid 10001: class 'odd'"),
        (lambda data: data["unknown"].update(action="pray"), "xid unknown: action 'pray'"),
        (lambda data: data["unknownSxid"]["Fatal"].update(policy=None), "sxid unknown: scope node, policy None"),
    ],
)
def test_a_table_that_is_wrong_is_refused_by_the_entry(edit: Edit, named: str) -> None:
    data = json.loads(TEXT)
    edit(data)
    with pytest.raises(ValueError, match=named):
        load(json.dumps(data))
