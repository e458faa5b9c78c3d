"""`tokens.create`, `tokens.revoke`; and what both kinds of tokens have in common: their lives and their secrets."""

import os
import re
from datetime import timedelta

from bettercompute.contract import tokens as secrets
from bettercompute.contract.tokens import SECRET_BYTES, Token

from receiver.config_kinds import DURATION
from receiver.errors import Invalid, OverLimit
from receiver.ids import Mint
from receiver.operate.call import Call
from receiver.read.tokens import Forbidden
from receiver.store import tokens as rows
from receiver.values import PERMISSIONS, TOKEN_DAYS

LIFE = "24h"  # of a token of the API, where the call does not say
LONGEST = timedelta(days=TOKEN_DAYS)
NAME_LENGTH = 63
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def create(call: Call) -> Token:
    """A new token, with its secret."""
    permissions = checked_permissions(tuple(call.request.permissions))
    for one in permissions:
        if not call.scope.allows(one):  # `tokens.create` needs compute:admin, which allows all: this holds should that change
            raise Forbidden(f"a token gives no more than it has, and this one has no {one}")
    made = new(call.mint)
    name = checked_name(call.request.name)
    rows.add_api(call.tx, made, call.scope.tenant, permissions, name, call.by, life(call.request.expires_in, LIFE))
    return made


def revoke(call: Call, token_id: str) -> None:
    """A token opens nothing any more."""
    rows.revoke_api(call.tx, token_id)


def new(mint: Mint) -> Token:
    """A token nobody has yet."""
    return secrets.make(mint("tok"), os.urandom(SECRET_BYTES))


def checked_permissions(words: tuple[str, ...]) -> tuple[str, ...]:
    """Permissions, each once. Raises Invalid that lists them."""
    if not words:
        raise Invalid(f"permissions is needed: some of {', '.join(PERMISSIONS)}")
    for word in words:
        if word not in PERMISSIONS:
            raise Invalid(f"permissions: {word[:64]!r} is none of {', '.join(PERMISSIONS)}")
    return tuple(one for one in PERMISSIONS if one in words)


def checked_name(text: str) -> str:
    """Whose a token is, or what for: it stands in audits and in tables. Raises Invalid."""
    if len(text) > NAME_LENGTH or _UNPRINTABLE.search(text):
        raise Invalid(f"name has {len(text)} characters; it is a line of at most {NAME_LENGTH}")
    return text


def life(text: str, default: str) -> timedelta:
    """How long a token lives. Raises Invalid.

    >>> life("90d", LIFE), life("", LIFE)
    (datetime.timedelta(days=90), datetime.timedelta(days=1))
    """
    try:
        found = timedelta(seconds=DURATION.parse(text or default))
    except (ValueError, OverflowError):
        raise Invalid(f'expiresIn {text[:64]!r} is not a duration above zero, such as "{default}"') from None
    if found > LONGEST:
        raise OverLimit("days a token", f"expiresIn is {text[:64]}; a token lives {LONGEST.days} days at most")
    return found
