"""Who asks, and what of which tenant may be seen or done: the one place that says so (SPEC B9).

A caller says who it is with `authorization: Bearer tok_<ulid>.<secret>`. Its token's row is looked up at every call, so one that
was revoked opens nothing from then on.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, replace

from bettercompute.contract.tokens import BadToken, Token, parse
from sqlalchemy import func, select
from sqlalchemy.engine import Connection

from receiver.errors import Invalid
from receiver.store.schema_identity import api_tokens
from receiver.values import ADMIN, ALL, PERMISSIONS, rfc3339

HEADER = "authorization"  # of gRPC's metadata
_SCHEME = "bearer "
_NO_HASH = "0" * 64  # compared with when there is no such token, so that this takes as long as a wrong secret
_CREATE = "create another with tokens.create, or with `bc-receiver token create` where the receiver runs"


class Unauthenticated(Exception):
    """Nobody knows who calls: no token, or none that opens anything (any more). Its text holds no secret."""


class Forbidden(Exception):
    """The caller's token does not allow this."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a call may see and do: rows of `tenant` (`*`: of all), with `permissions`, on behalf of `by`.

    `platform`: the token is of tenant `*`, also where the call is narrowed to one tenant.
    """

    tenant: str
    permissions: tuple[str, ...] = PERMISSIONS
    by: str = "operator"
    platform: bool = False

    def allows(self, permission: str) -> bool:
        """Whether the token has the permission; who may administer may do all."""
        return permission in self.permissions or ADMIN in self.permissions

    def require(self, permission: str, method: str) -> None:
        """Raises Forbidden unless the token allows it."""
        if not self.allows(permission):
            raise Forbidden(f"{method} needs the permission {permission}; this token has {', '.join(self.permissions) or 'none'}")


OPERATOR = Scope(ALL, platform=True)  # who asks an insecure receiver without a token


def presented(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """What a call's metadata has as its token, or None. Raises Unauthenticated for two of them, or another scheme.

    >>> presented([("user-agent", "grpc-python"), ("authorization", "Bearer tok_1.x")])
    'tok_1.x'
    """
    found = [value for key, value in metadata if key == HEADER and isinstance(value, str)]
    if not found:
        return None
    if len(found) > 1:
        raise Unauthenticated(f"{len(found)} {HEADER} headers came; one is needed")
    if not found[0].lower().startswith(_SCHEME):
        raise Unauthenticated(f'{HEADER} is to be "Bearer TOKEN"')
    return found[0][len(_SCHEME) :]


def caller(db: Connection, metadata: Iterable[tuple[str, str | bytes]], insecure: bool = False) -> Scope:
    """What the caller's token allows. Raises Unauthenticated, with what to do.

    `insecure`: who brings no token is the platform's operator. Who brings one has what that one allows, there too.
    """
    text = presented(metadata)
    if text is None:
        if insecure:
            return OPERATOR
        raise Unauthenticated(f"a token is needed: better-compute takes it with --token-file or BETTER_COMPUTE_TOKEN; {_CREATE}")
    try:
        return _looked_up(db, parse(text))
    except BadToken as error:
        raise Unauthenticated(str(error)) from None


def _looked_up(db: Connection, token: Token) -> Scope:
    expired = (api_tokens.c.expires_at <= func.bc_clock()).label("expired")
    row = db.execute(select(api_tokens, expired).where(api_tokens.c.id == token.id)).first()
    if not hmac.compare_digest(row.hash if row else _NO_HASH, token.hash) or row is None:
        raise Unauthenticated(f"no token {token.id} with this secret: {_CREATE}")
    if row.revoked_at is not None:
        raise Unauthenticated(f"token {token.id} was revoked at {rfc3339(row.revoked_at)}: {_CREATE}")
    if row.expired:
        raise Unauthenticated(f"token {token.id} expired at {rfc3339(row.expires_at)}: {_CREATE}")
    by = f"{row.id} ({row.name})" if row.name else row.id
    return Scope(row.tenant_id, tuple(row.permissions), by, platform=row.tenant_id == ALL)


def narrowed(token: Scope, requested: str | None) -> Scope:
    """A token's scope, narrowed to the tenant that a request names. Raises Forbidden when it names another, and Invalid for one
    that is empty, as "$TENANT" is where nobody has set it: it would be all of them.

    >>> narrowed(Scope("*"), "acme").tenant, narrowed(Scope("acme"), None).tenant
    ('acme', 'acme')
    """
    if requested == "":
        raise Invalid("tenantId is empty: leave it out, or name a tenant")
    if requested is None or requested == token.tenant:
        return token
    if token.tenant != ALL:
        raise Forbidden(f"this token is of tenant {token.tenant}, not of {requested}")
    return replace(token, tenant=requested)
