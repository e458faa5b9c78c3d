"""Section `images`: what is in the node's image cache, and in the container runtime's where its CRI socket is configured.

A provisioner puts an image into `image_dir` as a file NAME and then writes NAME.json beside it, at most 64 KiB:

    {"digest": "sha256:0f1e...", "name": "ubuntu-22.04", "format": "qcow2"}     every key optional

The image's bytes are never hashed here: the digest is what the provisioner verified. A file without a description is listed
with its name and size. Names that begin with a dot or end in .part are still being written; links and directories are none.
"""

import errno
import json
import re
import stat

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.collectors import Context, Files, printable
from agent.errors import Unreadable

MAX_SIDECAR = 64 << 10  # bytes
MAX_IMAGES = 10_000
_SIDECAR = ".json"
_DIGEST = re.compile(r"[a-z0-9]+([+._-][a-z0-9]+)*:[0-9a-fA-F]{32,}")


def collect(ctx: Context) -> pb.ImagesSection:
    """Reads `image_dir` and asks `cri_socket`. A runtime that does not answer is in `unreadable`. Never fails as a whole."""
    images = [*_directory(ctx.files, ctx.options.image_dir), *_runtime(ctx)]
    return pb.ImagesSection(
        images=sorted(images, key=lambda i: (i.source, i.digest, i.name, i.bytes)),
        unreadable=ctx.files.unreadable(),
    )


def _directory(files: Files, directory: str) -> list[pb.Image]:
    """The images of a directory, the first MAX_IMAGES by name; more are named by EOVERFLOW on the directory."""
    names = [n for n in files.names(directory) if not n.startswith(".") and not n.endswith((_SIDECAR, ".part"))]
    if len(names) > MAX_IMAGES:
        files.failures[directory] = errno.EOVERFLOW
    found = (_file(files, f"{directory}/{name}", name) for name in names[:MAX_IMAGES])
    return [image for image in found if image is not None]


def _file(files: Files, path: str, name: str) -> pb.Image | None:
    status = files.stat(path, follow=False)
    if status is None or not stat.S_ISREG(status.st_mode):
        return None
    said = _sidecar(files, path + _SIDECAR)
    return pb.Image(
        digest=said.get("digest"),
        name=said.get("name", printable(name)),
        format=said.get("format"),
        bytes=status.st_size,
        source="directory",
    )


def _sidecar(files: Files, path: str) -> dict[str, str]:
    """A description's texts. One that is a link, too large or not of that form is named in `unreadable` and counts as none."""
    data = files.bytes(path, limit=MAX_SIDECAR, follow=False)
    if data is None:
        return {}
    try:
        said = json.loads(data.decode())
        texts = {key: said[key] for key in ("digest", "name", "format") if said.get(key) not in (None, "")}
        json.dumps(texts, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, AttributeError, RecursionError):
        texts = {"": None}
    if not all(isinstance(text, str) for text in texts.values()) or not _DIGEST.fullmatch(texts.get("digest", "a:" + "0" * 32)):
        files.failures[path] = errno.EBADMSG
        return {}
    return texts


def _runtime(ctx: Context) -> list[pb.Image]:
    socket = ctx.options.cri_socket
    if not socket:
        return []
    try:
        found = ctx.host.cri_images(socket)
    except Unreadable as error:  # configured and absent is a failure too
        ctx.files.failures[socket] = error.errno
        return []
    return [pb.Image(digest=i.digest, name=i.name, format="oci", bytes=i.bytes, source="cri") for i in found]
