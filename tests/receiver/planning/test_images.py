"""Which images of a section are looked for, and what of a node's word about them is kept."""

from bettercompute.agent.v1 import inventory_pb2 as pb

from receiver.planning.images import CachedImage, cached

ONE, TWO = "sha256:" + "1" * 64, "sha512:" + "2" * 128


def listed(*images: pb.Image) -> list[CachedImage]:
    return cached(pb.ImagesSection(images=images))


def test_images_come_sorted_by_digest_with_what_the_node_tells() -> None:
    given = [pb.Image(digest=TWO, bytes=0), pb.Image(digest=ONE, name="ubuntu-22.04", bytes=7)]
    assert listed(*given) == [CachedImage(ONE, "ubuntu-22.04", 7), CachedImage(TWO, None, 0)]


def test_an_image_that_a_runtime_and_a_directory_hold_is_one() -> None:
    assert listed(pb.Image(digest=ONE, name="a", source="cri"), pb.Image(digest=ONE, name="b", source="directory")) == [
        CachedImage(ONE, "a")
    ]


def test_what_has_no_digest_is_left_out() -> None:
    named = (None, "", "latest", "sha256:xyz", "sha256:" + "0" * 31, "sha256:" + "0" * 129, "a\0:" + "0" * 64, ONE + "\n")
    assert listed(*(pb.Image(digest=digest, name="x") for digest in named)) == []


def test_a_size_that_is_none_is_left_out() -> None:
    assert [one.bytes for one in listed(pb.Image(digest=ONE, bytes=2**63), pb.Image(digest=TWO, bytes=2**63 - 1))] == [
        None,
        2**63 - 1,
    ]
