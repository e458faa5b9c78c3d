"""Who asks, and what of which tenant may be seen: the one place that says so.

Until tokens exist (issue Identity) the API listens on this machine only, and its caller is the platform's operator: tenant `*`.
"""

from dataclasses import dataclass

ALL = "*"


class Forbidden(Exception):
    """The caller's token does not allow this."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Rows of this tenant; `*`: of all."""

    tenant: str


def caller() -> Scope:
    """What the caller's token allows."""
    return Scope(ALL)


def scope(requested: str | None) -> Scope:
    """What a request may read. `requested`: its tenantId, or None for the token's. Raises Forbidden for another tenant."""
    return narrowed(caller(), requested)


def narrowed(token: Scope, requested: str | None) -> Scope:
    """A token's scope, narrowed to the tenant that a request names. Raises Forbidden when it names another.

    >>> narrowed(Scope("*"), "acme"), narrowed(Scope("acme"), None)
    (Scope(tenant='acme'), Scope(tenant='acme'))
    """
    if not requested or requested == token.tenant:
        return token
    if token.tenant != ALL:
        raise Forbidden(f"this token is of tenant {token.tenant}, not of {requested}")
    return Scope(requested)
