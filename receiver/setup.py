"""What is done once where a receiver runs, without asking it: both CAs, and tokens made with nothing but the database."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bettercompute.contract.tokens import Token
from bettercompute.control.v1.tokens_pb2 import TokensServiceCreateRequest

from receiver.authority import create_ca
from receiver.config import Config
from receiver.errors import ReceiverError, Refusal
from receiver.operate.call import Call
from receiver.operate.methods import WRITES, perform
from receiver.read.tokens import Scope, narrowed
from receiver.service import DATABASE, own_database
from receiver.store import database, embedded
from receiver.tls import Identity, ca_paths
from receiver.values import ALL

_CREATE = "tokens.create"
KEY_MODE, CERTIFICATE_MODE, FOLDER_MODE = 0o600, 0o644, 0o700


@dataclass(frozen=True, slots=True)
class Ca:
    """A CA on this disk. `of`: whom it signs. `made`: just now; else it was there, and nothing of it was touched."""

    of: str
    certificate: Path
    key: Path
    made: bool


@dataclass(frozen=True, slots=True)
class Made:
    """A token that was made, and when it ends."""

    token: Token
    expires_at: datetime


@contextmanager
def at_database(config: Config, make: bool) -> Iterator[str]:
    """The URL of the receiver's database. An embedded one is used as it runs under `serve`, else started for the block.

    `make`: an embedded one that is not there is made. To be entered in the main thread. Raises ReceiverError.
    """
    if config.database_url:
        yield config.database_url
        return
    directory = Path(config.data_dir)
    _check_owner(directory)
    if not make and not embedded.is_made(directory):
        hint = "name it with --data-dir, or --database-url; `bc-receiver init` makes one"
        raise ReceiverError(f"use the database in {directory}", "there is none", hint)
    if (url := embedded.running_url(directory, DATABASE)) is not None:
        yield url
        return
    with own_database(directory) as (url, _):
        yield url


def _check_owner(directory: Path) -> None:
    """Raises ReceiverError when root would make a database in which its user finds files that are not its own."""
    if os.geteuid() == 0 and directory.is_dir() and (owner := directory.stat().st_uid) != 0:
        hint = f"run it as that user: sudo -u '#{owner}' bc-receiver ..."
        raise ReceiverError(f"use the database in {directory}", f"the directory is of user {owner}, and this is root", hint)


def create_token(url: str, by: str, request: TokensServiceCreateRequest) -> Made:
    """A token, as the API's `tokens.create` makes it, audited as made by `by`. Raises ReceiverError."""
    database.check_schema(url)
    caller = Scope(ALL, by=f"{by}, uid {os.getuid()}", platform=True)
    with database.connect(url) as tx:
        try:
            scope = narrowed(caller, request.tenant_id)
            made = perform(Call(tx, scope, _CREATE, request), WRITES[_CREATE])
        except Refusal as error:
            raise ReceiverError("create a token", str(error)) from error
        ((expires_at,),) = tx.execute("SELECT expires_at FROM api_tokens WHERE id = %s", [made.id]).fetchall()
    return Made(made, expires_at)


def ensure_cas(config: Config) -> tuple[Ca, ...]:
    """Makes the CAs that are not there, and reads all of it as `serve` will. Raises ReceiverError.

    Nothing that is there is written to, and of a CA that is half there the other half is not made.
    """
    paths = ca_paths(config)
    brought = bool(config.tls_certificate)  # then somebody else's CA signed the receiver, and its key is not here
    with _alone(paths.folder):
        cas = (
            _ensure("receivers", "better-compute receivers", paths.server_ca, paths.server_ca_key, brought),
            _ensure("nodes", "better-compute nodes", paths.node_ca, paths.node_ca_key, False),
        )
        Identity(config)
    return cas


def _ensure(of: str, name: str, certificate: Path, key: Path, brought: bool) -> Ca:
    there = os.path.exists(certificate), os.path.exists(key)  # also of a folder that may not be entered
    if there == (True, True) or (brought and there[0]):
        return Ca(of, certificate, key, made=False)
    if brought:
        hint = "it is the CA that signed tls.certificate; name its file with tls.serverCa"
        raise ReceiverError(f"find the CA of {of}", f"{certificate} is not there", hint)
    if any(there):
        here, missing = (certificate, key) if there[0] else (key, certificate)
        hint = f"bring {missing} from where it was made; or move {here} away, and what it signed is worth nothing any more"
        raise ReceiverError(f"make the CA of {of}", f"{here} is there and {missing} is not", hint)
    key_pem, certificate_pem = create_ca(name, datetime.now(UTC))
    _place(key, key_pem, KEY_MODE)
    _place(certificate, certificate_pem, CERTIFICATE_MODE)
    return Ca(of, certificate, key, made=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two that make CAs take turns."""
    try:
        _make_folder(folder)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    if not folder.parent.is_dir():
        _make_folder(folder.parent)
    folder.mkdir(mode=FOLDER_MODE)
    _give(folder)


def _place(path: Path, content: bytes, mode: int) -> None:
    """A whole new file, or none. Raises ReceiverError, also when one is there meanwhile."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _make_folder(path.parent)
        unfinished.unlink(missing_ok=True)
        file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(file, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(file)
        _give(unfinished)
        os.link(unfinished, path)  # never over another
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _give(path: Path) -> None:
    """What root makes is its directory's owner's, as whom the receiver runs."""
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid)


def _unwritable(path: Path, error: OSError) -> ReceiverError:
    hint = "run it as the receiver's user, or say where with --tls-dir or --data-dir"
    return ReceiverError(f"write {path}", error.strerror or str(error), hint)
