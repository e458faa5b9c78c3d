"""Who asks, and what of which tenant may be seen or done: the one place that says so.

Until tokens exist (issue Identity) the API listens on this machine only, and its caller is the platform's operator: tenant `*`.
"""

from dataclasses import dataclass, replace

ALL = "*"
READ, PROVISION, ADMIN = "compute:nodes:read", "compute:nodes:provision", "compute:admin"
PERMISSIONS = (READ, PROVISION, ADMIN)


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

    def require(self, permission: str, method: str) -> None:
        """Raises Forbidden unless the token has the permission; who may administer may do all."""
        if permission not in self.permissions and ADMIN not in self.permissions:
            raise Forbidden(f"{method} needs the permission {permission}; this token has {', '.join(self.permissions) or 'none'}")


def caller() -> Scope:
    """What the caller's token allows."""
    return Scope(ALL, platform=True)


def scope(requested: str | None) -> Scope:
    """What a request may read. `requested`: its tenantId, or None for the token's. Raises Forbidden for another tenant."""
    return narrowed(caller(), requested)


def narrowed(token: Scope, requested: str | None) -> Scope:
    """A token's scope, narrowed to the tenant that a request names. Raises Forbidden when it names another.

    >>> narrowed(Scope("*"), "acme").tenant, narrowed(Scope("acme"), None).tenant
    ('acme', 'acme')
    """
    if not requested or requested == token.tenant:
        return token
    if token.tenant != ALL:
        raise Forbidden(f"this token is of tenant {token.tenant}, not of {requested}")
    return replace(token, tenant=requested)
