"""DOOR. Asks a container runtime for its images over its CRI socket. The only part of a collection that needs gRPC."""

import errno

from agent.errors import Unreadable
from agent.host import CriImage


def list_images(socket: str) -> tuple[CriImage, ...]:
    """The runtime's images. Raises Unreadable with the socket's path."""
    raise Unreadable(socket, errno.ENOSYS)
