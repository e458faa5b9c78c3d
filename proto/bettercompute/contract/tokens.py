"""Secrets that people paste (SPEC B1, B9): an API token, and the one string with which a node joins.

    tok_01jdxk3v9w5q8m2r7t4y6n0pbc.Zk3...   the token's id and its secret: 256 random bits in URL-safe base 64
    bcjoin1.<base 64>                       such a token, the address where to join, and the CAs of receivers' certificates

The secret is compared by its hash, which is all that a receiver stores. 256 random bits need no slow hash.
"""

import base64
import binascii
import hashlib
import re
import zlib
from dataclasses import dataclass

from bettercompute.contract.ids import is_id

SECRET_BYTES = 32
PREFIX = "bcjoin1."
LONGEST = 64 << 10  # characters of a join string
_EMPTY_LINE = re.compile(r"\n\s*\n")
_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")
_SEPARATOR = b"\0"


class BadToken(ValueError):
    """A text is no token. `str()` says what is wrong with it, and never holds a secret."""


@dataclass(frozen=True, slots=True, repr=False)
class Token:
    """A token's id, and its secret in base 64. Its repr has no secret."""

    id: str
    secret: str

    def __repr__(self) -> str:
        return f"Token({self.id})"

    @property
    def text(self) -> str:
        """What is shown once, and sent."""
        return f"{self.id}.{self.secret}"

    @property
    def hash(self) -> str:
        """Lower-case hexadecimal SHA-256 of the secret: what is stored."""
        return hashlib.sha256(self.secret.encode()).hexdigest()


def make(token_id: str, randomness: bytes) -> Token:
    """A token with a secret of 32 random bytes.

    >>> make("tok_01hf7yat000000000000000000", bytes(32)).text
    'tok_01hf7yat000000000000000000.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'
    """
    if len(randomness) != SECRET_BYTES:
        raise ValueError(f"a secret is {SECRET_BYTES} random bytes, not {len(randomness)}")
    return Token(token_id, _encode(randomness))


def parse(text: str) -> Token:
    """A token from what was pasted or sent; spaces around it do not count. Raises BadToken."""
    token_id, dot, secret = text.strip().partition(".")
    if not dot or not is_id(token_id, "tok"):
        raise BadToken("a token is tok_<26 characters>.<43 characters>")
    if _SECRET.fullmatch(secret) is None:
        raise BadToken(f"token {token_id}: its secret has {len(secret)} characters, not the 43 that it was shown with")
    return Token(token_id, secret)


@dataclass(frozen=True, slots=True)
class JoinString:
    """What one pasted string carries. `address`: "host:port"; `server_ca`: certificates in DER."""

    token: Token
    address: str
    server_ca: tuple[bytes, ...]

    @property
    def text(self) -> str:
        """The string: its parts, compressed, behind a checksum, so that one that was cut short is told from a wrong one."""
        parts = [self.token.text.encode(), self.address.encode(), *(binascii.hexlify(one) for one in self.server_ca)]
        body = zlib.compress(_SEPARATOR.join(parts), 9)
        return PREFIX + _encode(_checksum(body) + body)


def parse_join(text: str) -> JoinString:
    """A join string from what was pasted, or from all that `joinTokens.create` prints: it goes on to the first empty line; line
    breaks and spaces within it do not count. Raises BadToken."""
    before, found, after = text[: LONGEST + 1].partition(PREFIX)
    joined = "".join((found + _EMPTY_LINE.split(after, maxsplit=1)[0] if found else before).split())
    if not joined:
        raise BadToken("it is empty")
    if len(text) > LONGEST:
        raise BadToken(f"it has more than {LONGEST} characters")
    if not joined.startswith(PREFIX):
        hint = "; this is a token of the API" if joined.startswith("tok_") else ""
        raise BadToken(f"a join token begins with {PREFIX}{hint}")
    try:
        data = _decode(joined.removeprefix(PREFIX))
        if _checksum(data[4:]) != data[:4]:
            raise BadToken("it is damaged: a part of it is missing or was changed when it was pasted")
        # Bounded: what a hostile string unpacks to is not known before.
        secret, address, *cas = zlib.decompressobj().decompress(data[4:], 1 << 20).split(_SEPARATOR)
        return JoinString(parse(secret.decode()), address.decode(), tuple(binascii.unhexlify(one) for one in cas))
    except BadToken:
        raise
    except (ValueError, zlib.error) as error:  # binascii.Error and UnicodeDecodeError are ValueErrors
        raise BadToken("it is damaged: a part of it is missing or was changed when it was pasted") from error


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:4]


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
