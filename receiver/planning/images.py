"""The images of an images section, as `images.list` looks for them: by digest."""

import re
from dataclasses import dataclass

from bettercompute.agent.v1 import inventory_pb2 as pb

_DIGEST = re.compile(r"[A-Za-z0-9_+.-]{1,32}:[0-9a-fA-F]{32,128}")
_BYTES = 1 << 63  # more is no size, and no number of the database


@dataclass(frozen=True, slots=True)
class CachedImage:
    """An image that a node holds. `name` and `bytes` where the node tells them."""

    digest: str
    name: str | None = None
    bytes: int | None = None


def cached(section: pb.ImagesSection) -> list[CachedImage]:
    """Its images that have a digest, sorted by it; of several with the same one the first. (A name is no identity.)

    >>> cached(pb.ImagesSection(images=[pb.Image(digest="sha256:" + "0" * 64, name="ubuntu-22.04", bytes=7), pb.Image(name="x")]))
    [CachedImage(digest='sha256:0000000000000000000000000000000000000000000000000000000000000000', name='ubuntu-22.04', bytes=7)]
    """
    found: dict[str, CachedImage] = {}
    for one in section.images:
        if _DIGEST.fullmatch(one.digest):
            size = one.bytes if one.HasField("bytes") and one.bytes < _BYTES else None
            found.setdefault(one.digest, CachedImage(one.digest, one.name or None, size))
    return [found[digest] for digest in sorted(found)]
