"""Whatever a caller sends, the API answers or refuses by name: nothing ends as an error of ours."""

from typing import Any

import grpc
import pytest
from google.protobuf import struct_pb2
from google.protobuf.descriptor import FieldDescriptor

from receiver.client.methods import Field, Method, methods
from tests.receiver.builders import gpu, host
from tests.receiver.live import Live, live

NASTY = [
    "\0",
    "a\0b",
    "'; DROP TABLE nodes; --",
    "ü" * 40,
    "x" * 100_000,
    "node_01hf7yat000000000000000009",
    "%s",
    "-1",
    "18446744073709551616",
]
FINE = {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION}


async def code_of(served: Live, method: Method, request: object) -> tuple[grpc.StatusCode, str]:
    async with grpc.aio.insecure_channel(served.receiver.config.listen_api) as channel:
        call: Any = channel.unary_unary(method.path, lambda message: message.SerializeToString(), method.response.FromString)
        try:
            await call(request)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        return grpc.StatusCode.OK, ""


def texts(method: Method) -> list[Field]:
    return [one for one in method.request.DESCRIPTOR.fields if one.type == FieldDescriptor.TYPE_STRING and not one.is_repeated]


@live
async def test_no_text_of_any_request_is_an_error_of_ours(served: Live) -> None:
    node = (await served.in_service(host(1))).node_id
    pool = (await served.api("pools.create", name="h100"))["id"]
    good = {"node_id": node, "pool_id": pool, "device_id": gpu(0).uuid, "reason": "why not", "name": "p", "to_node": node}
    for method in methods().values():
        if method.streaming or method.name in ("nodes.retire", "nodes.delete", "pools.delete"):  # they end what is asked about
            continue
        keys = {one.name: good[one.name] for one in texts(method) if one.name in good}
        for field in texts(method):
            for text in NASTY:
                code, says = await code_of(served, method, method.request(**{**keys, field.name: text}))
                assert code in FINE, (method.name, field.name, text[:20], code, says[:200])
                assert len(says) < 5000, (method.name, field.name, "what is refused is not echoed whole")


@pytest.mark.parametrize("kind", ["deep", "wide", "nan"])
def test_no_policy_is_an_error_of_ours(database: str, kind: str) -> None:
    policy = struct_pb2.Struct()
    if kind == "deep":
        inner = policy
        for _ in range(30):  # each is three messages, and protobuf takes 100
            inner = inner.get_or_create_struct("expect")
    elif kind == "wide":
        policy.update({f"key{number}": None for number in range(10_000)})
        policy.update({"acceptance": [{"kind": f"k{number}"} for number in range(10_000)]})
    else:
        policy.update({"expect": {"gpuCount": float("nan")}})

    @live
    async def check(served: Live) -> None:
        method = methods()["pools.create"]
        code, says = await code_of(served, method, method.request(name="p", policy=policy))
        assert (code, len(says) < 5000) == (grpc.StatusCode.INVALID_ARGUMENT, True), says

    check(database)
