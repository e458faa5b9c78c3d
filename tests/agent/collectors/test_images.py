"""Section `images`: the provisioner's directory and the container runtime, good and bad."""

import errno
import json
import socket as sockets
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.collectors import Context, Files, Options
from agent.collectors.images import MAX_IMAGES, collect
from agent.cri import client
from agent.cri.runtime_pb2 import Image, ListImagesRequest, ListImagesResponse
from agent.errors import Unreadable
from agent.host import CriImage, Host
from agent.recorded import RecordedHost
from tests.agent.collectors.tree import Content, Link, NoNvml, context

DIR = "/var/lib/bcd/images"
DIGEST = "sha256:" + "ab" * 32


def section(tmp_path: Path, files: Mapping[str, Content], errors: Mapping[str, int] | None = None) -> pb.ImagesSection:
    return collect(context(tmp_path, {f"{DIR}/{name}": content for name, content in files.items()}, errors=errors))


def test_an_image_with_its_description(tmp_path: Path) -> None:
    said = json.dumps({"digest": DIGEST, "name": "ubuntu-22.04", "format": "qcow2", "more": [1]})
    [image] = section(tmp_path, {"jammy.qcow2": b"x" * 10, "jammy.qcow2.json": said}).images
    assert image == pb.Image(digest=DIGEST, name="ubuntu-22.04", format="qcow2", bytes=10, source="directory")


def test_a_file_without_a_description_has_its_name_and_size(tmp_path: Path) -> None:
    [image] = section(tmp_path, {"jammy.raw": "abc"}).images
    assert image == pb.Image(name="jammy.raw", bytes=3, source="directory")


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ("{", errno.EBADMSG),
        (b"\xff", errno.EBADMSG),
        ("[]", errno.EBADMSG),
        ("null", errno.EBADMSG),
        ("", errno.EBADMSG),
        ("[" * 60000, errno.EBADMSG),
        ('{"digest": 5}', errno.EBADMSG),
        ('{"name": "\\ud800"}', errno.EBADMSG),
        ('{"digest": "latest"}', errno.EBADMSG),
        ('{"name": ["a"]}', errno.EBADMSG),
        (" " * (64 * 1024 + 1), errno.EFBIG),
        (Link("/etc/shadow"), errno.ELOOP),
    ],
)
def test_a_broken_description_is_named_and_its_image_still_listed(tmp_path: Path, said: Content, number: int) -> None:
    found = section(tmp_path, {"a.raw": "abc", "a.raw.json": said, "../../../../etc/shadow": '{"name": "root"}'})
    assert list(found.images) == [pb.Image(name="a.raw", bytes=3, source="directory")]
    assert [(u.path, u.errno) for u in found.unreadable] == [(f"{DIR}/a.raw.json", number)]


def test_links_directories_and_what_is_still_written_are_no_images(tmp_path: Path) -> None:
    files: dict[str, Content] = {
        "link": Link("/etc/passwd"),
        "sub": None,
        ".new": "x",
        "b.raw.part": "x",
        "lonely.json": "{}",
        "../../../../etc/passwd": "x",
    }
    assert section(tmp_path, files) == pb.ImagesSection()


def test_a_name_that_is_no_text_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    assert section(tmp_path, {"caf\udce9.raw": "x"}).images[0].name == "caf\ufffd.raw"


def test_no_image_directory_is_no_images(tmp_path: Path) -> None:
    assert collect(context(tmp_path, {})) == pb.ImagesSection()


def test_a_directory_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    found = section(tmp_path, {"a.raw": "x"}, errors={DIR: errno.EACCES})
    assert [(u.path, u.errno) for u in found.unreadable] == [(DIR, errno.EACCES)]


def test_more_images_than_the_limit_are_named(tmp_path: Path) -> None:
    ctx = context(tmp_path, {f"{DIR}/a": "x"})
    (tmp_path / "var/lib/bcd/many").mkdir()
    for number in range(MAX_IMAGES + 1):
        (tmp_path / f"var/lib/bcd/many/{number:05}").touch()
    found = collect(replace(ctx, options=Options(image_dir="/var/lib/bcd/many")))
    assert (len(found.images), found.images[-1].name) == (MAX_IMAGES, "09999")
    assert [(u.path, u.errno) for u in found.unreadable] == [("/var/lib/bcd/many", errno.EOVERFLOW)]


def test_images_are_sorted_by_source_digest_and_name(tmp_path: Path) -> None:
    host = RecordedHost(root=tmp_path, cri_error=0, cri=(CriImage("sha256:bb", "z", 1), CriImage("sha256:aa", "a", 2)))
    context(tmp_path, {f"{DIR}/a.raw": "x", f"{DIR}/b.raw": "x", f"{DIR}/a.raw.json": json.dumps({"digest": DIGEST})})
    found = collect(Context(Files(host), NoNvml(), options=Options(cri_socket="/run/c.sock")))
    assert [(i.source, i.name) for i in found.images] == [
        ("cri", "a"),
        ("cri", "z"),
        ("directory", "b.raw"),
        ("directory", "a.raw"),
    ]
    assert found.images[0] == pb.Image(digest="sha256:aa", name="a", format="oci", bytes=2, source="cri")


def test_a_runtime_that_is_not_configured_is_not_asked(tmp_path: Path) -> None:
    host = RecordedHost(root=tmp_path, cri_error=0, cri=(CriImage("sha256:bb", "z", 1),))
    assert not collect(Context(Files(host), NoNvml())).images


def test_a_runtime_that_does_not_answer_is_named(tmp_path: Path) -> None:
    socket = str(tmp_path / "c.sock")
    found = collect(Context(Files(Host(tmp_path)), NoNvml(), options=Options(cri_socket=socket)))
    assert [(u.path, u.errno) for u in found.unreadable] == [(socket, errno.ENOENT)]


# -- the client, against a runtime that speaks CRI


class Runtime(grpc.GenericRpcHandler):
    """ImageService.ListImages with one answer, or one failure."""

    answer = ListImagesResponse()
    failure: grpc.StatusCode | None = None

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:  # type: ignore[type-arg]
        if details.method != "/runtime.v1.ImageService/ListImages":
            return None
        return grpc.unary_unary_rpc_method_handler(
            self._list,
            request_deserializer=ListImagesRequest.FromString,
            response_serializer=ListImagesResponse.SerializeToString,
        )

    def _list(self, request: ListImagesRequest, context: grpc.ServicerContext) -> ListImagesResponse:
        if self.failure is not None:
            context.abort(self.failure, "no")
        return self.answer


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[tuple[Runtime, str]]:
    socket, handler = str(tmp_path / "c.sock"), Runtime()
    server = grpc.server(ThreadPoolExecutor(1), [handler])
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    yield handler, socket
    server.stop(None).wait()


def test_asks_a_runtime_for_its_images(runtime: tuple[Runtime, str]) -> None:
    handler, socket = runtime
    handler.answer = ListImagesResponse(
        images=[
            Image(repo_tags=["r/b:2", "r/a:1"], repo_digests=["r/b@sha256:22", "r/a@sha256:11"], size=7),
            Image(repo_tags=["<none>:<none>"], repo_digests=["r/c@sha256:33"]),
            Image(size=1),
        ]
    )
    assert client.list_images(socket) == (
        CriImage("sha256:11", "r/a:1", 7),
        CriImage("sha256:33", "r/c", None),
        CriImage(None, None, 1),
    )


@pytest.mark.parametrize(
    ("status", "number"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, errno.ENOSYS),
        (grpc.StatusCode.PERMISSION_DENIED, errno.EACCES),
        (grpc.StatusCode.INTERNAL, errno.EPROTO),
    ],
)
def test_a_refusal_of_the_runtime_has_a_number(runtime: tuple[Runtime, str], status: grpc.StatusCode, number: int) -> None:
    handler, socket = runtime
    handler.failure = status
    with pytest.raises(Unreadable) as caught:
        client.list_images(socket)
    assert caught.value.errno == number


@pytest.mark.parametrize(("path", "number"), [("/nowhere/c.sock", errno.ENOENT), ("/" + "x" * 200, errno.ENAMETOOLONG)])
def test_a_socket_that_cannot_be_used_has_a_number(path: str, number: int) -> None:
    with pytest.raises(Unreadable) as caught:
        client.list_images(path)
    assert caught.value.errno == number


def test_a_runtime_that_accepts_and_is_silent_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "DEADLINE", 0.3)
    with sockets.socket(sockets.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "c.sock"))
        listener.listen()
        with pytest.raises(Unreadable) as caught:
            client.list_images(str(tmp_path / "c.sock"))
    assert caught.value.errno == errno.ETIMEDOUT
