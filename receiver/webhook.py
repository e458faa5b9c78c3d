"""DOOR: HTTP. Tells events to one endpoint (SPEC B10): signed, in their order, at least once; what is skipped is counted.

A POST carries `{"events": [...]}`, each as `events.list` has it, signed as Standard Webhooks does: `webhook-id`,
`webhook-timestamp` (Unix seconds) and `webhook-signature`, which is `v1,` and the base64 of HMAC-SHA256 over
`<webhook-id>.<webhook-timestamp>.<body>`; several of them, with blanks between, while a secret is rotated. Whoever takes events
checks that, refuses old timestamps, passes over ids of events that it has, and answers 2xx. What follows from its answer is
planning/webhook.py's; the place in the log and the pace are a row in Postgres, so whichever receiver has the lease goes on.
"""

import base64
import binascii
import contextlib
import hmac
import json
import logging
import random
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import urllib3
from google.protobuf.timestamp_pb2 import Timestamp

from receiver.config import Config, is_local
from receiver.errors import ReceiverError
from receiver.planning import webhook as rules
from receiver.singletons import Run
from receiver.store import webhooks
from receiver.store.webhooks import Due, Row
from receiver.store.words import text

EVERY = 2.0  # seconds: how late an event may be whose notification came before an older transaction had ended
CONNECT, ANSWER = 5.0, 10.0  # seconds that the endpoint has
KEPT = 200  # bytes of an answer that is not 2xx, for a person
SECRET = 16  # bytes at least
LOG = logging.getLogger("receiver.webhook")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a POST. `error` is for a person; empty: all is well."""

    verdict: rules.Verdict
    error: str = ""
    retry_after: float = 0.0


class Webhook:
    """The endpoint. Its secrets are read anew for each batch: they can be rotated without a restart."""

    def __init__(self, url: str, secret_file: Path, ca: str = "", chance: Callable[[], float] = random.random) -> None:
        self.url = url
        self.secret_file = secret_file
        self.chance = chance
        self.timeout = urllib3.Timeout(connect=CONNECT, read=ANSWER)
        self.http = urllib3.PoolManager(1, ssl_context=ssl.create_default_context(cafile=ca or None), retries=False)
        self.said = ""

    def work(self, run: Run) -> None:
        """Tells all that is due, until there is no more or the endpoint has to be waited for."""
        while (due := run(webhooks.due)) is not None:
            answer = self.post(due)
            step = rules.after(due.progress, len(due.events), answer.verdict, self.chance(), answer.retry_after)
            run(partial(webhooks.settle, sent=due, step=step, error=text(answer.error)))
            self._say(due, step, answer)
            if step.delay:
                return

    def post(self, due: Due) -> Answer:
        """Sends a batch."""
        body = json.dumps({"events": [described(row) for row in due.events]}, separators=(",", ":")).encode()
        try:
            headers = signed(message_id(due.events), int(time.time()), body, secrets(self.secret_file))
            reply = self.http.request(
                "POST",
                self.url,
                body=body,
                headers=headers,
                timeout=self.timeout,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
            with contextlib.closing(reply):  # not kept open: who answers without end would hold up the next batch
                verdict = rules.verdict(reply.status)
                kept = b"" if verdict == "delivered" else reply.read(KEPT)
        except ReceiverError as error:
            return Answer("failed", " ".join(str(error).split()))
        except urllib3.exceptions.HTTPError as error:
            return Answer("failed", f"no answer: {type(error).__name__}: {_reason(error)}")
        if verdict == "delivered":
            return Answer(verdict)
        said = f"HTTP {reply.status} {' '.join(kept.decode(errors='replace').split())}".strip()
        return Answer(verdict, said, _retry_after(reply.headers.get("retry-after")))

    def _say(self, due: Due, step: rules.Step, answer: Answer) -> None:
        """Logs what a person has to know: a cause that repeats itself once."""
        if step.skip:
            one = due.events[0]
            LOG.error("skipped an event that is refused", extra={"event": one.id, "type": one.type, "reason": answer.error})
        elif answer.verdict == "failed" and answer.error != self.said:
            LOG.warning("events wait for the webhook", extra={"reason": answer.error, "again": round(step.delay, 1)})
        elif answer.verdict == "delivered" and self.said:
            LOG.info("the webhook takes events again")
        self.said = answer.error if answer.verdict == "failed" else ""


def opened(config: Config) -> Webhook | None:
    """The endpoint of the settings, or None where there is none. Raises ReceiverError for whatever is wrong with them."""
    if not config.webhook_url:
        return None
    attempted = "use webhook.url"
    try:
        url = urllib3.util.parse_url(config.webhook_url)
    except urllib3.exceptions.LocationParseError as error:
        raise ReceiverError(attempted, "it is no URL", "such as https://HOST/PATH") from error
    if url.scheme not in ("https", "http") or not url.host or url.auth:
        raise ReceiverError(attempted, "it is no https://HOST/PATH without a password", "webhook.secretFile is how it knows us")
    if url.scheme == "http" and not is_local(f"{url.host}:0"):
        raise ReceiverError(attempted, "http:// would tell events to whoever listens", "use https://, or http:// on loopback")
    if not config.webhook_secret_file:
        raise ReceiverError(attempted, "webhook.secretFile is not set", "name a file with a secret that the endpoint knows")
    secrets(Path(config.webhook_secret_file))
    try:
        return Webhook(config.webhook_url, Path(config.webhook_secret_file), config.webhook_ca)
    except OSError as error:  # an SSLError is one
        raise ReceiverError(f"use webhook.ca {config.webhook_ca}", error.strerror or str(error), "name a file of PEM") from error


def secrets(file: Path) -> list[bytes]:
    """The secrets in a file, one a line: the newest first. `whsec_` and base64, or the text itself. Raises ReceiverError."""
    attempted = f"read the secret of the webhook: {file}"
    try:
        lines = [line.strip() for line in file.read_text().splitlines() if line.strip()]
        found = [
            base64.b64decode(line.removeprefix("whsec_"), validate=True) if line.startswith("whsec_") else line.encode()
            for line in lines
        ]
    except OSError as error:
        raise ReceiverError(attempted, error.strerror or str(error)) from error
    except (UnicodeDecodeError, binascii.Error):
        raise ReceiverError(attempted, "it is no text, or no base64 behind whsec_") from None
    if not found or min(map(len, found)) < SECRET:
        raise ReceiverError(attempted, f"a secret has at least {SECRET} bytes", "such as: openssl rand -base64 32")
    return found


def signed(name: str, now: int, body: bytes, keys: Sequence[bytes]) -> Mapping[str, str]:
    """The headers of a POST."""
    content = f"{name}.{now}.".encode() + body
    digests = [base64.b64encode(hmac.digest(key, content, "sha256")).decode() for key in keys]
    return {
        "content-type": "application/json",
        "user-agent": "bc-receiver",
        "webhook-id": name,
        "webhook-timestamp": str(now),
        "webhook-signature": " ".join(f"v1,{digest}" for digest in digests),
    }


def message_id(events: Sequence[Row]) -> str:
    """The same for the same events, and no other: they have one order, without gaps."""
    return events[0].id if len(events) == 1 else f"{events[0].id}-{events[-1].id}"


def described(row: Row) -> Mapping[str, object]:
    """An event as `events.list` has it."""
    stamp = Timestamp()
    stamp.FromDatetime(row.time)
    return {
        "id": row.id,
        "time": stamp.ToJsonString(),
        "tenantId": row.tenant_id,
        "poolId": row.pool_id,
        "nodeId": row.node_id,
        "type": row.type,
        "payload": row.payload,
    }


def _reason(error: urllib3.exceptions.HTTPError) -> str:
    """Without the URL: its path may be a secret."""
    cause = error.__cause__ or error.__context__
    return " ".join(str(cause or "").split())[:KEPT] or "no more is known"


def _retry_after(value: str | None) -> float:
    try:
        return urllib3.Retry().parse_retry_after(value) if value else 0.0
    except urllib3.exceptions.InvalidHeader:
        return 0.0
