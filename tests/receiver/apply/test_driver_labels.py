"""Driver labels at Hello: exactly what it advertises, in one statement that writes nothing when nothing changed (SPEC B1)."""

from dataclasses import replace

import pytest

from receiver.apply.session import hello, hello_again
from receiver.store.database import Connection
from receiver.store.labels import set_system_labels
from receiver.values import Driver, HelloFacts
from tests.receiver.builders import FACTS, NODE, OTHER

KVM = Driver("libvirt-kvm", "10.0.0", ("vm",))
K8S = Driver("k8s", "1.31", ("pod",))
INSERT = "INSERT INTO node_labels (node_id, tenant_id, key, value, source) VALUES (%s, 'default', %s, 'x', %s)"


def labels(tx: Connection, node: str = NODE) -> dict[str, str]:
    rows = tx.execute("SELECT key, value FROM node_labels WHERE node_id = %s AND source = 'system' ORDER BY key", [node])
    return dict(rows.fetchall())


def with_drivers(*drivers: Driver) -> HelloFacts:
    return replace(FACTS, drivers=drivers)


def versions(tx: Connection) -> list[tuple[object, ...]]:
    """Which transaction wrote or locked each row last."""
    return tx.execute("SELECT key, xmin::text, xmax::text, ctid::text FROM node_labels ORDER BY key").fetchall()


def test_a_hello_writes_what_it_advertises(tx: Connection) -> None:
    hello(tx, NODE, with_drivers(KVM, K8S))
    assert labels(tx) == {
        "bc.dev/driver-kind.k8s.pod": "1",
        "bc.dev/driver-kind.libvirt-kvm.vm": "1",
        "bc.dev/driver.k8s": "1.31",
        "bc.dev/driver.libvirt-kvm": "10.0.0",
    }
    assert tx.execute("SELECT DISTINCT tenant_id FROM node_labels").fetchall() == [("default",)]


def test_what_is_no_longer_advertised_goes(tx: Connection) -> None:
    hello(tx, NODE, with_drivers(KVM, K8S))
    hello(tx, NODE, replace(with_drivers(Driver("k8s", "1.32")), previous_epoch=1))
    assert labels(tx) == {"bc.dev/driver.k8s": "1.32"}
    hello(tx, NODE, replace(FACTS, previous_epoch=2))
    assert labels(tx) == {}


def test_a_hello_that_advertises_the_same_writes_and_locks_no_label(tx: Connection) -> None:
    hello(tx, NODE, with_drivers(KVM, K8S))
    tx.commit()
    before = versions(tx)
    hello(tx, NODE, replace(with_drivers(K8S, KVM), previous_epoch=1))
    tx.commit()
    assert versions(tx) == before


def test_labels_of_others_and_of_other_nodes_stay(tx: Connection) -> None:
    hello(tx, OTHER, with_drivers(KVM))
    hello(tx, NODE, with_drivers(KVM))
    tx.execute(INSERT, [NODE, "rack", "operator"])
    tx.execute(INSERT, [NODE, "gpu.model", "inventory"])
    hello(tx, NODE, replace(FACTS, previous_epoch=1))
    assert tx.execute("SELECT key FROM node_labels WHERE node_id = %s ORDER BY key", [NODE]).fetchall() == [
        ("gpu.model",),
        ("rack",),
    ]
    assert "bc.dev/driver.libvirt-kvm" in labels(tx, OTHER)


def test_a_key_of_the_systems_is_the_systems_whoever_wrote_it(tx: Connection) -> None:
    hello(tx, NODE, FACTS)
    tx.execute(INSERT, [NODE, "bc.dev/driver.k8s", "operator"])
    hello(tx, NODE, replace(with_drivers(K8S), previous_epoch=1))
    assert labels(tx)["bc.dev/driver.k8s"] == "1.31"


def test_another_hello_on_the_stream_changes_them_too(tx: Connection) -> None:
    hello(tx, NODE, with_drivers(KVM))
    assert hello_again(tx, NODE, 1, with_drivers(K8S))
    assert labels(tx) == {"bc.dev/driver-kind.k8s.pod": "1", "bc.dev/driver.k8s": "1.31"}


def test_a_superseded_session_labels_nothing(tx: Connection) -> None:
    hello(tx, NODE, with_drivers(KVM))
    hello(tx, NODE, replace(with_drivers(KVM), previous_epoch=1))
    assert not hello_again(tx, NODE, 1, with_drivers(K8S))
    set_system_labels(tx, NODE, 1, {"bc.dev/driver.k8s": "1"})
    assert "bc.dev/driver.k8s" not in labels(tx)


def test_a_hello_of_a_node_that_a_tenant_has_labels_nothing(tx: Connection) -> None:
    hello(tx, NODE, with_drivers(KVM))
    tx.execute("UPDATE nodes SET trust = 'tenant-controlled', lease_id = 'lease-1' WHERE id = %s", [NODE])
    hello(tx, NODE, replace(with_drivers(K8S), previous_epoch=1))
    assert hello_again(tx, NODE, 2, FACTS)
    assert set(labels(tx)) == {"bc.dev/driver.libvirt-kvm", "bc.dev/driver-kind.libvirt-kvm.vm"}


@pytest.mark.parametrize("version", ["", "\0", "v" * 200])
def test_any_version_of_a_driver_is_one_that_a_label_takes(tx: Connection, version: str) -> None:
    hello(tx, NODE, with_drivers(Driver("d", version)))
    assert 0 < len(labels(tx)["bc.dev/driver.d"]) <= 63
