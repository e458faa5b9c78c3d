"""An applied inventory labels its node (SPEC B2, "Labels")."""

from bettercompute.agent.v1 import inventory_pb2 as pb

from receiver.store.database import Connection
from tests.receiver.builders import NODE, apply, gpu, gpus, host, join


def labels(tx: Connection) -> dict[str, str]:
    rows = tx.execute("SELECT key, value FROM node_labels WHERE node_id = %s AND source = 'inventory' ORDER BY key", [NODE])
    return dict(rows.fetchall())


def test_an_inventory_labels_its_node_and_the_next_one_only_changes_what_differs(tx: Connection) -> None:
    join(tx)
    apply(tx, host(2))
    first = labels(tx)
    assert (first["gpu.count"], first["gpu.model"], first["cpu.model"]) == ("2", "H100", "Intel-Xeon-Platinum-8480C")
    tx.commit()
    before: dict[str, str] = dict(tx.execute("SELECT key, xmin::text FROM node_labels").fetchall())
    apply(tx, host(3))
    tx.commit()
    after: dict[str, str] = dict(tx.execute("SELECT key, xmin::text FROM node_labels").fetchall())
    assert {key for key in after if after[key] != before[key]} == {"gpu.count"}


def test_a_section_that_is_missing_for_a_while_takes_no_label_away(tx: Connection) -> None:
    join(tx)
    apply(tx, host(2))
    first = labels(tx)
    apply(tx, host(gpus=None), gpus="time limit")
    assert labels(tx) == first
    apply(tx, host(gpus=gpus(error="VersionMismatch")))
    assert labels(tx) == first


def test_a_label_goes_when_its_section_no_longer_tells_it(tx: Connection) -> None:
    join(tx)
    fabric = pb.Fabric(cluster_uuid="6f8b1c2d-93a4-4e57-8d10-2b7c5e9f3a61", clique_id=3, state="completed", status="success")
    apply(tx, host(gpus=gpus(gpu(0, fabric=fabric))))
    assert labels(tx)["fabric.domain"] == "6f8b1c2d-93a4-4e57-8d10-2b7c5e9f3a61.3"
    apply(tx, host(gpus=gpus(gpu(0))))
    assert "fabric.domain" not in labels(tx)


def test_a_tenants_word_labels_nothing(tx: Connection) -> None:
    join(tx)
    apply(tx, host(2))
    first = labels(tx)
    tx.execute("UPDATE nodes SET trust = 'tenant-controlled', lease_id = 'lease-1'")
    apply(tx, host(7))
    assert labels(tx) == first
