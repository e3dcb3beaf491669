"""Commands `python -m kplane.controlplane_operator.backup save` and `open`. Both report a failure in one sentence."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kplane.controlplane_operator.backup.archive import decrypt, identities, recipients
from kplane.controlplane_operator.backup.objects import collect
from kplane.controlplane_operator.backup.saving import save
from kplane.controlplane_operator.backup.storage import ENCRYPTED, PLAIN, Bucket, Storage, Volume
from kplane.controlplane_operator.errors import BackupFailed, OperatorError
from kplane.data import Client as Etcd
from kplane.data import Credentials, DataError
from kplane.pki.errors import PkiError
from kplane.provider import Client, ClusterConfig, ProviderError

__all__ = ["main"]

_EXPECTED: Final = (OperatorError, DataError, PkiError, ProviderError, OSError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, or 1 after a failure."""
    given = _parser().parse_args(arguments)
    try:
        given.run(given)
    except _EXPECTED as error:
        sys.stderr.write(f"failed to {given.command} a backup: {error}\n")
        if given.advice:
            sys.stderr.write(f"{given.advice}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--volume", type=Path, required=True, metavar="DIR", help="where backups are")
    common.add_argument("--bucket", metavar="URL", help="where backups are instead, such as s3://backups/kplane")
    common.add_argument("--bucket-endpoint", metavar="URL", help="of S3-compatible storage (default: AWS)")
    common.add_argument("--bucket-region", metavar="NAME")
    common.add_argument(
        "--bucket-credentials", type=Path, metavar="DIR", help="access-key-id, secret-access-key, ca.crt"
    )
    common.add_argument("--advice", metavar="TEXT", help="said after a failure")
    parser = argparse.ArgumentParser(
        prog="backup", description="Backups of the shared etcd and the keys of control planes"
    )
    commands = parser.add_subparsers(dest="command", required=True)

    saving = commands.add_parser("save", parents=[common], help="make a backup")
    saving.add_argument("--etcd", required=True, metavar="URL")
    saving.add_argument(
        "--credentials", type=Path, required=True, metavar="DIR", help="with ca.crt, client.crt, client.key"
    )
    saving.add_argument("--keep", type=int, required=True, metavar="N", help="number of backups that stay")
    saving.add_argument(
        "--recipient",
        action="append",
        default=[],
        metavar="KEY",
        help="public key of age; with one the backup is encrypted, and has the keys of control planes in it",
    )
    saving.add_argument("--namespace", required=True, metavar="NAME", help="namespace of --etcd-secret")
    saving.add_argument("--etcd-secret", required=True, metavar="NAME", help="Secret with the keys of the etcd")
    saving.set_defaults(run=_save)

    opening = commands.add_parser(
        "open",
        parents=[common],
        help="write the snapshot of an encrypted backup to the volume, and its objects to stdout",
        description="Reads the private key, as age-keygen writes it, from stdin.",
    )
    opening.add_argument("name", metavar="NAME", nargs="?", help="of the backup (default: the newest)")
    opening.set_defaults(run=_open)
    return parser


def _storage(given: argparse.Namespace) -> Storage:
    if given.bucket is None:
        return Volume(given.volume)
    if given.bucket_credentials is None:
        raise BackupFailed("--bucket needs --bucket-credentials")
    return Bucket(
        given.bucket,
        credentials=given.bucket_credentials,
        endpoint=given.bucket_endpoint,
        region=given.bucket_region,
    )


def _save(given: argparse.Namespace) -> None:
    asyncio.run(_saved(given))


async def _saved(given: argparse.Namespace) -> None:
    to = recipients(given.recipient)
    storage = _storage(given)
    async with contextlib.AsyncExitStack() as stack:
        etcd = await stack.enter_async_context(
            Etcd(given.etcd, credentials=Credentials.in_directory(given.credentials))
        )
        objects = None
        if to:
            client = await stack.enter_async_context(Client(ClusterConfig.in_cluster(), field_manager="kplane"))
            objects = collect(client, namespace=given.namespace, etcd_secret=given.etcd_secret)
        await save(etcd, objects=objects, storage=storage, to=to, keep=given.keep, say=_say)


def _open(given: argparse.Namespace) -> None:
    keys = identities(sys.stdin.read())
    storage = _storage(given)
    backups = [name for name in storage.names() if name.endswith(ENCRYPTED)]
    if not backups:
        raise BackupFailed("there is no encrypted backup")
    name: str = given.name or backups[-1]
    if name not in backups:
        raise BackupFailed(f"there is no encrypted backup {name}; there are: {', '.join(backups)}")
    snapshot = name.removesuffix(ENCRYPTED) + PLAIN
    with Volume(given.volume).file(snapshot) as partial, storage.reader(name) as source:
        objects = decrypt(source, keys=keys, into=partial)
    sys.stdout.write(objects.decode())
    sys.stderr.write(f"opened {name}: its snapshot is {snapshot} on the volume\n")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
