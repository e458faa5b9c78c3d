"""An HTTP endpoint that takes events: it checks signatures as Standard Webhooks says, and answers as a test wants."""

import base64
import hashlib
import hmac
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = b"an endpoint's secret, 32 bytes .."


@dataclass
class Post:
    """One that came: its events, and its headers in lower case."""

    events: list[dict[str, Any]]
    headers: Mapping[str, str]
    body: bytes

    @property
    def ids(self) -> list[str]:
        return [one["id"] for one in self.events]

    def signed_by(self, secret: bytes) -> bool:
        """Whether one of its signatures is of this secret."""
        name, stamp = self.headers["webhook-id"], self.headers["webhook-timestamp"]
        digest = hmac.new(secret, b".".join((name.encode(), stamp.encode(), self.body)), hashlib.sha256).digest()
        return f"v1,{base64.b64encode(digest).decode()}" in self.headers["webhook-signature"].split()


@dataclass
class Endpoint:
    """`answer`: the status for a post (or status and headers); raising drops the connection. `taken`: what was answered 2xx."""

    url: str = ""
    answer: Callable[[Post], int | tuple[int, Mapping[str, str]]] = lambda post: 204
    posts: list[Post] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["content-length"]))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        post = Post(json.loads(body)["events"], headers, body)
        self.posts.append(post)
        answered = self.answer(post)
        status, more = answered if isinstance(answered, tuple) else (answered, {})
        text = b"" if status < 300 else b"this will not do"
        if 200 <= status < 300:
            self.taken += post.ids
        handler.send_response(status)
        for name, value in {**more, "content-length": str(len(text))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(text)


@contextmanager
def endpoint(context: ssl.SSLContext | None = None) -> Iterator[Endpoint]:
    """One on loopback; over TLS with `context`."""
    of = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                of.handle(self)
            except ConnectionError:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            pass  # a client that hangs up, or a handshake that fails

    server = Server(("127.0.0.1", 0), Handler)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    of.url = f"{'https' if context else 'http'}://127.0.0.1:{server.server_address[1]}/events"
    serving = threading.Thread(target=server.serve_forever, args=(0.02,))
    serving.start()
    try:
        yield of
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
