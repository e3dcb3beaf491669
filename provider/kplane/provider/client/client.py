"""A thin client for one API server: plain dicts in and out, a deadline on every call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kplane.provider.client.listing import ObjectList
from kplane.provider.client.reader import Reader
from kplane.provider.client.rest import Object
from kplane.provider.client.writer import Writer

if TYPE_CHECKING:
    from kplane.provider.client.pods import Pods

__all__ = ["Client", "Object", "ObjectList"]


class Client(Reader, Writer):
    """Talks to the API server of a `ClusterConfig`, with plain dicts. Close it with `aclose()`, or use `async with`.

    A kind is a Resource or a name, such as `"apps/v1/Deployment"`; see `resource`. An object is named by its name, and
    `namespace` for namespaced kinds, or by something that has both, such as a `Request`. For a class that `typed_kind`
    has declared, objects are its instances. A call that cannot decode an answer raises DecodeFailed; a write
    is done then.

    `timeout_seconds` bounds a call with its retries, `connect_timeout_seconds` the making of a connection; by default
    those of `config.calls`, else 30 s and 5 s. Each method raises ApiError if the server refuses, Unreachable if it
    gives no valid answer in time, and KubeconfigError if the credentials cannot be used. 429 is retried within the
    deadline.

    `limits` bound the answers; a larger one raises AnswerTooLarge, an Unreachable. By default they are those of
    `config.calls`, else 64 MiB for an answer, and lists of any length: set limits if you do not trust the server. A
    call needs memory for one answer, a list for all its pages, and concurrent calls for each of theirs, unless
    `limits.together` bounds the sum.

    The API server notes `field_manager` as the owner of written fields. Without one it takes the first word of
    `user_agent`, and `apply` is refused. `user_agent` is by default the field manager with the version of this package.

    `field_validation` tells the API server to refuse unknown and duplicate fields (`Strict`), to warn about them, or to
    drop them silently (`Ignore`). Each warning of the server is logged once for its kind, with the object and the name
    `cluster`, and handed to `on_warning`, each time.

    A reconcile whose call stays unanswered leaves its worker to others (see `Controller`). `keeps_worker` turns this
    off, for the one server that all reconciles work with.

    `before_write` is called before each write, and again before its body is sent; if it raises, nothing is sent. So a
    process that may write only while it holds a Lease cannot forget to check. If it returns a number, the write may
    take that many seconds, and the server gets the same deadline.
    """

    @property
    def pods(self) -> Pods:
        """Logs of pods, commands in them, and ports that are forwarded to them."""
        # Pods load aiohttp, which takes 0.2 s.
        from kplane.provider.client.pods import Pods

        return Pods(self, calls=self._calls, adapted=self._adapted)
