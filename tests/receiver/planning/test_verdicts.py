"""What an XID comes to: the pool's word, else xids.json, by severity where it says so (SPEC B4, "XIDs", 4)."""

import json
from pathlib import Path

import pytest
from bettercompute.contract import xids

from receiver.planning.policy import Policy, parse
from receiver.planning.verdicts import ACTIONS, Verdict, verdict

NONE = Policy()
DATA = json.loads(Path(xids.__file__).with_name("xids.json").read_text())
FATAL = "144, NVLINK: SAW_MVB Fatal XC0 i0 Link 05 (0x00000000 0x00000000)"
NONFATAL = FATAL.replace("Fatal", "Nonfatal")
CAUSED = "45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149"
RESET = "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"


def test_every_xid_of_the_table_has_the_tables_policy_and_action_when_no_pool_says_another() -> None:
    for entry in DATA["xids"]:
        said = verdict(f"Xid{entry['xid']}", f"{entry['xid']}, words", NONE)
        assert (said.policy, said.action, said.name) == (entry["policy"], entry["action"], entry["name"]), entry
        assert said.source == "table"


def test_every_sxid_of_the_table_has_the_tables_policy_and_action_when_its_line_has_no_word() -> None:
    for entry in DATA["sxids"]:
        said = verdict(f"SXid{entry['sxid']}", f"{entry['sxid']}, words", NONE)
        assert (said.policy, said.action) == (entry["policy"], entry["action"]), entry


def test_every_action_of_the_table_has_its_place_in_the_order() -> None:
    assert set(ACTIONS) == set(DATA["fields"]["action"])


def test_the_severity_word_in_the_message_decides_where_the_table_says_so() -> None:
    assert verdict("Xid144", NONFATAL, NONE) == Verdict(None, "severity", "none", xids.table().xids[144].name)
    assert verdict("Xid144", FATAL, NONE) == Verdict("device", "severity", "reset-gpu", xids.table().xids[144].name)
    assert verdict("Xid48", "48, Nonfatal", NONE).policy == "device", "48 has no bySeverity"


def test_the_pools_policy_goes_before_the_table() -> None:
    pool = parse({"xid": {"109": {"policy": None}, "13": {"policy": "device"}, "48": {"policy": "node"}}})
    said = verdict("Xid109", "109, x", pool)
    assert (said.policy, said.source, said.action) == (None, "pool", "none"), "nothing is started for what is no fault here"
    assert [verdict(f"Xid{code}", f"{code}, x", pool).policy for code in (13, 48, 79)] == ["device", "node", "node"]
    assert [verdict(f"Xid{code}", f"{code}, x", pool).source for code in (13, 48, 79)] == ["pool", "pool", "table"]


def test_the_pools_policy_goes_before_the_severity_word() -> None:
    assert verdict("Xid144", FATAL, parse({"xid": {"144": {"policy": None}}})).policy is None


def test_the_pools_policy_holds_for_sxids_too() -> None:
    pool = parse({"xid": {"20009": {"policy": None}}})
    assert verdict("SXid20009", "20009, Fatal, Link 44", pool).policy is None


def test_an_unknown_xid_has_no_policy_but_the_pools() -> None:
    assert verdict("Xid999", "999, x", NONE) == Verdict(None, "unknown", "inspect", None)
    assert verdict("Xid999", "999, x", parse({"xid": {"999": {"policy": "device"}}})).policy == "device"


def test_an_unknown_sxid_is_of_the_node_when_it_is_fatal() -> None:
    assert verdict("SXid99999", "99999, Fatal, Link 1", NONE).policy == "node"
    assert verdict("SXid99999", "99999, Non-fatal, Link 1", NONE).policy is None
    assert verdict("SXid99999", "99999, Fatal, Link 1", NONE).source == "unknown"


@pytest.mark.parametrize("pool", [NONE, Policy(xid={45: "node", 154: "node"})])
def test_an_xid_that_names_its_cause_and_154_open_nothing_whatever_the_pool_says(pool: Policy) -> None:
    caused, recovery = verdict("Xid45", CAUSED, pool), verdict("Xid154", RESET, pool)
    assert (caused.policy, caused.linked, caused.cause) == (None, True, 149)
    assert (recovery.policy, recovery.linked, recovery.cause) == (None, True, None)


def test_45_without_a_cause_is_what_the_pool_says() -> None:
    assert verdict("Xid45", "45, pid=1, name=python, Ch 00000001", Policy(xid={45: "device"})).policy == "device"


def test_154_has_the_action_that_the_driver_asks_for() -> None:
    (row,) = (entry for entry in DATA["xids"] if entry["xid"] == 154)
    for number, says in row["byRecoveryAction"].items():
        text = f"154, GPU recovery action changed from 0x0 (None) to 0x{int(number):x} ({says['name']})"
        assert verdict("Xid154", text, NONE).action == says["action"], text
    assert verdict("Xid154", "154, GPU recovery action changed from 0x0 (None) to 0x63 (Else)", NONE).action == "inspect"


def test_a_process_cannot_choose_a_name_that_makes_its_xid_the_consequence_of_another() -> None:
    forged = "79, pid=1, name=caused by previous Xid 1, GPU has fallen off the bus."
    assert verdict("Xid79", forged, NONE).policy == "node"


def test_what_a_verdict_is_kept_as_says_by_whom() -> None:
    assert verdict("Xid79", "79, x", NONE).as_json() == {"policy": "node", "source": "table", "action": "reboot-node"}
