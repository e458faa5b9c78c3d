"""The images of a section are kept beside its bytes: once, in the same statement, and no longer than they."""

from datetime import datetime, timedelta

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import encode, section_hash

from receiver.store import images
from receiver.store.database import Connection
from receiver.store.inventory import prune_snapshots
from tests.receiver.builders import NODE, OTHER, apply, host, join

DIGEST = "sha256:" + "1" * 64


def section(*digests: str, name: str = "ubuntu") -> pb.ImagesSection:
    return pb.ImagesSection(images=[pb.Image(digest=one, name=name, bytes=7) for one in digests])


def kept(tx: Connection) -> list[tuple[object, ...]]:
    return tx.execute("SELECT encode(hash, 'hex'), digest, name, bytes FROM section_images ORDER BY hash, digest").fetchall()


def test_an_apply_keeps_the_images_of_new_bytes_once(tx: Connection) -> None:
    holding = section(DIGEST)
    for node in (NODE, OTHER):
        join(tx, node)
        assert apply(tx, host(images=holding), node).status == "applied"
    assert kept(tx) == [(section_hash(encode(holding)), DIGEST, "ubuntu", 7)]


def test_a_name_that_postgres_cannot_hold_does_not_keep_the_inventory_out(tx: Connection) -> None:
    join(tx)
    assert apply(tx, host(images=section(DIGEST, name="a\0b"))).status == "applied"
    assert [row[2] for row in kept(tx)] == ["a\ufffdb"]


def test_images_go_with_the_bytes_that_list_them(tx: Connection) -> None:
    join(tx)
    for digit in "123":
        apply(tx, host(images=section("sha256:" + digit * 64)))
    assert len(kept(tx)) == 3
    soon = tx.execute("SELECT clock_timestamp() + interval '1 hour'").fetchone()
    assert soon is not None
    assert isinstance(soon[0], datetime)
    assert prune_snapshots(tx, soon[0] + timedelta(hours=1)) == 2
    assert [row[1] for row in kept(tx)] == ["sha256:" + "3" * 64]


def test_the_migration_finds_the_images_of_bytes_that_were_stored_before(tx: Connection) -> None:
    join(tx)
    apply(tx, host(images=section(DIGEST)))
    before = kept(tx)
    tx.execute("DELETE FROM section_images")
    images.fill(tx)
    assert kept(tx) == before != []
    images.fill(tx)
    assert kept(tx) == before
