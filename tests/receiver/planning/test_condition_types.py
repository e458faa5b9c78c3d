"""The table of conditions says what SPEC B3's does."""

from typing import get_args

import pytest

from receiver.planning.condition_types import DAEMON_NODE_CONDITIONS, NODE_CONDITION_TYPES, Writer, condition_type, types_of
from receiver.planning.reasons import RULES

# SPEC B3: types, who raises them, and when they are NoSchedule.
SPEC = (
    ("GpuModelUnknown", "inventory", "yes"),
    ("GpuModelMismatch", "inventory", "yes"),
    ("FabricManagerDown", "status", "yes"),
    ("MPSDown", "status", "in mps pools"),
    ("RebootRequired HostManagedExternally", "status", "no"),
    (
        "ForeignGpuExposure PodResourcesUnavailable KubernetesReleaseStuck KubernetesReleasesUnreadable",
        "status",
        "yes",
    ),
    ("KubernetesReleased KubernetesTaintsDrift", "status", "no"),
    ("CpuPressure MemoryPressure IoPressure CpuSteal", "pressure", "in vps-host pools"),
    ("DaemonOutdated ProtocolUnsupported CertificateExpiring InventoryStale NotReporting", "hygiene", "yes"),
    ("AcceptanceFailed", "acceptance", "yes"),
    ("GpuLost", "inventory", "yes"),
    ("GpuMissing", "inventory", "policy.onGpuMissing"),
    ("GpuCountMismatch", "inventory", "no"),
    ("NvmlUnavailable", "status", "yes"),
    ("KernelLogUnavailable PcieReplayHigh", "status", "no"),
    ("Xid<n> SXid<n>", "xid", "as written"),
    ("ClockSkew", "clock", "no"),
    ("SharingMismatch", "inventory", "no"),
    ("NvLinkDegraded IbLinkDown", "inventory", "policy.links"),
    ("DuplicateIdentity", "identity", "yes"),
    ("MigLayoutMismatch", "inventory", "no"),  # B2
)


def test_the_table_is_the_specs() -> None:
    listed = {(kind, writer, rule) for kinds, writer, rule in SPEC for kind in kinds.split()}
    assert {(row.type, row.writer, row.no_schedule) for row in NODE_CONDITION_TYPES.values()} == listed


def test_a_status_report_may_set_the_types_of_status_and_no_other() -> None:
    listed = {kind for kinds, writer, _ in SPEC for kind in kinds.split() if writer == "status"}
    assert set(DAEMON_NODE_CONDITIONS) == listed == types_of("status")
    assert len(listed) == 13


def test_every_type_has_a_meaning_and_a_rule_that_is_decided() -> None:
    for row in NODE_CONDITION_TYPES.values():
        assert row.meaning
        assert row.no_schedule in RULES


def test_every_writer_writes_something() -> None:
    assert {writer for writer in get_args(Writer) if not types_of(writer)} == {"other"}


@pytest.mark.parametrize(
    ("name", "row"), [("Xid79", "Xid<n>"), ("Xid0", "Xid<n>"), ("SXid12028", "SXid<n>"), ("GpuLost", "GpuLost")]
)
def test_an_xid_of_any_number_has_the_row_of_xids(name: str, row: str) -> None:
    assert condition_type(name).type == row


@pytest.mark.parametrize("name", ["Xid", "Xid079", "xid79", "Xid79x", "SXid-1", "GpuLoss", ""])
def test_a_type_that_is_in_no_row_is_left_as_another_receiver_wrote_it(name: str) -> None:
    row = condition_type(name)
    assert (row.type, row.writer, row.no_schedule) == (name, "other", "as written")
