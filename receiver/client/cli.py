"""`better-compute api METHOD key=value ...`: asks the receiver, prints the answer. Part of the base install: grpc, and rich or
yaml only when they are needed. `better-compute gpu-name` asks nobody: names.py."""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from datetime import UTC, datetime

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when it is imported; what it would print is in our errors

import grpc
from google.protobuf.message import Message

from receiver.client.channel import add_flags, channel, metadata, unreachable
from receiver.client.methods import Method, UsageError, answer, find, methods, parse
from receiver.client.render import render, render_line

SERVER = "127.0.0.1:7701"
NEGATIVE = {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED}

HELP = """\
exit codes:
  0  answered
  1  answered no: not found, not allowed, or not in the present state
  2  not asked or not answered: wrong use, receiver unreachable, timed out, or failed

who asks, and over what:
  export BETTER_COMPUTE_SERVER=receiver:7701 BETTER_COMPUTE_CA=server-ca.pem BETTER_COMPUTE_TOKEN=tok_...
  over a unix socket there is no TLS; --insecure is for a receiver on this machine that runs with --insecure

examples:
  better-compute api nodes.list status=adopted
  better-compute api inventory.get nodeId=node_01jd... --format json
  better-compute api inventory.diff nodeId=node_01jd... from=inv_01jd...
  better-compute api nodes.why nodeId=node_01jd...
  better-compute api devices.clear deviceId=GPU-... reason='reseated, burn-in passed'
  better-compute api nodes.reboot nodeId=node_01jd... reason='it hangs'
  better-compute api remediation.list state=open
  better-compute api tokens.create permissions=compute:nodes:read expiresIn=90d name=grafana
  better-compute api joinTokens.create poolId=pool_01jd... uses=8 reason='rack 12'
  better-compute api pools.create name=h100 gpuModel=H100 policy='{"expect": {"gpuCount": 8}}' reason='new racks'

without a receiver:
  better-compute gpu-name "NVIDIA H100 80GB HBM3"     how a GPU is named here; see its --help

methods and their keys:
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; answers the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if next((word for word in argv if word in ("api", "gpu-name")), "") == "gpu-name":  # options may stand before it
        from receiver.client import names

        at = list(argv).index("gpu-name")
        return names.main([*argv[:at], *argv[at + 1 :]])
    arguments = _parser().parse_intermixed_args(argv)
    try:
        method = find(arguments.method)
        request = parse(method, arguments.pairs)
        return _ask(method, request, arguments)
    except UsageError as error:
        return _fail(2, str(error), error.hint)
    except grpc.RpcError as error:
        return _refused(error, arguments)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 0 if method.streaming else 2


def _ask(method: Method, request: Message, arguments: argparse.Namespace) -> int:
    who = metadata(arguments)
    with channel(arguments) as to:
        read = method.response.FromString
        if method.streaming:
            _end_when_interrupted()
            for message in to.unary_stream(method.path, _serialize, read)(request, metadata=who):
                render_line(answer(message), arguments.format, sys.stdout, datetime.now(UTC))
        else:
            message = to.unary_unary(method.path, _serialize, read)(request, timeout=arguments.timeout, metadata=who)
            render(answer(message), arguments.format, sys.stdout, datetime.now(UTC), method.name)
    sys.stdout.flush()
    return 0


def _end_when_interrupted() -> None:
    """Who watches ends it with Ctrl-C, and that is no failure. At once: an exception can be lost in a callback of gRPC's."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda *_: os._exit(0))


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _refused(error: grpc.RpcError, arguments: argparse.Namespace) -> int:
    """Says what the server (or the way to it) answered. `error` is a grpc.Call too."""
    code, details = error.code(), error.details() or ""
    if code == grpc.StatusCode.UNAVAILABLE:
        return _fail(2, f"{arguments.server}: cannot reach the receiver: {details}", unreachable(details))
    if code == grpc.StatusCode.UNAUTHENTICATED:
        return _fail(2, f"{arguments.server}: not let in: {details}", "give a token with --token-file or BETTER_COMPUTE_TOKEN")
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return _fail(2, f"{arguments.server}: no answer within {arguments.timeout:g} s", "wait longer with --timeout")
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return _fail(
            2, f"{arguments.server} does not know {arguments.method}", "is it the API listener, and not older than this command?"
        )
    return _fail(1 if code in NEGATIVE else 2, f"{arguments.method}: {code.name}: {details}")


def _fail(code: int, message: str, hint: str = "") -> int:
    sys.stderr.write(f"better-compute: {message}\n" + (f"  {hint}\n" if hint else ""))
    return code


def _parser() -> argparse.ArgumentParser:
    known = methods()
    width = max(map(len, known)) + 1
    keys = "\n".join(f"  {name:<{width}} {' '.join(f'{key}=' for key in method.keys) or '-'}" for name, method in known.items())
    parser = argparse.ArgumentParser(
        "better-compute",
        description="Asks a better-compute receiver.",
        epilog=HELP + keys,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=["api"], help="ask the receiver")
    parser.add_argument("method", metavar="METHOD", help="what to ask, such as inventory.get")
    parser.add_argument("pairs", metavar="key=value", nargs="*", help="the method's keys; a list is a,b,c, an object JSON")
    parser.add_argument(
        "--format",
        choices=["table", "json", "yaml"],
        default="table",
        help="how to print: a table is for people, json and yaml have every field (default: table)",
    )
    parser.add_argument(
        "--server",
        default=os.environ.get("BETTER_COMPUTE_SERVER") or SERVER,
        metavar="TARGET",
        help=f"HOST:PORT or unix:/PATH of the receiver's API (default: $BETTER_COMPUTE_SERVER, else {SERVER})",
    )
    add_flags(parser)
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS", help="how long to wait for an answer (default: 30)"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
