"""DOOR. Asks a container runtime for its images over its CRI socket. The only part of a collection that needs gRPC."""

import contextlib
import errno
import socket as sockets

import grpc

from agent.cri.runtime_pb2 import Image, ListImagesRequest, ListImagesResponse
from agent.errors import Unreadable
from agent.host import CriImage

DEADLINE = 5.0  # seconds, for the connection and for the answer
_MAX_ANSWER = 16 << 20  # bytes: some 20,000 images
_METHOD = "/runtime.v1.ImageService/ListImages"

# What a failed call is in errno's words; anything else is EPROTO.
_ERRNOS = {
    grpc.StatusCode.DEADLINE_EXCEEDED: errno.ETIMEDOUT,
    grpc.StatusCode.UNAVAILABLE: errno.ECONNREFUSED,
    grpc.StatusCode.PERMISSION_DENIED: errno.EACCES,
    grpc.StatusCode.UNIMPLEMENTED: errno.ENOSYS,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errno.EMSGSIZE,
}


def list_images(socket: str) -> tuple[CriImage, ...]:
    """The images of the runtime that listens on `socket`. Raises Unreadable with the socket's path, within 2 x DEADLINE."""
    _connect(socket)
    options = [("grpc.max_receive_message_length", _MAX_ANSWER), ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(f"unix:{socket}", options) as channel:
        ask = channel.unary_unary(
            _METHOD, request_serializer=ListImagesRequest.SerializeToString, response_deserializer=ListImagesResponse.FromString
        )
        try:
            answer = ask(ListImagesRequest(), timeout=DEADLINE)
        except grpc.RpcError as error:
            raise Unreadable(socket, _ERRNOS.get(error.code(), errno.EPROTO)) from error
    return tuple(_image(image) for image in answer.images)


def _connect(path: str) -> None:
    """Finds out what is wrong with a socket in errno's words (absent, refused, not permitted): gRPC has one for all."""
    with contextlib.closing(sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)) as probe:
        probe.settimeout(DEADLINE)
        try:
            probe.connect(path)
        except OSError as error:  # without a number: the path is longer than a socket's may be, or the time is over
            late = isinstance(error, TimeoutError)
            raise Unreadable(path, error.errno or (errno.ETIMEDOUT if late else errno.ENAMETOOLONG)) from error


def _image(image: Image) -> CriImage:
    """One image has several tags and digests; the first of each in sorted order is as good as any and stable."""
    digests = sorted(d for d in image.repo_digests if "@" in d)
    names = sorted(t for t in image.repo_tags if "<none>" not in t) or [d.partition("@")[0] for d in digests]
    return CriImage(
        digest=digests[0].partition("@")[2] if digests else None,
        name=names[0] if names else None,
        bytes=image.size or None,
    )
