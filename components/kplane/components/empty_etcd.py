"""Snapshot of an etcd without any writes. A restored etcd begins with this snapshot at a higher revision."""

from __future__ import annotations

import base64
import zlib
from typing import Final

__all__ = ["empty_snapshot"]

# Output of `etcdctl snapshot save` of etcd 3.6.16 right after the first start: 20,512 bytes, most of them 0.
_SNAPSHOT: Final = (
    "eNrt2z1v00AABmA7SaGgqkVsiKHoBqaQOnZix5YqVcBSiQEFFQlBiExyIVb9UdmXqFXVoRML4h8gmNk6IAQ/oerQgYmVORsrhTM+"
    "h8QipBIKquB9Kte+3p19l3OH96pKUqIgzoNPC4NcfHEpKeelcd+EOVG+IM5H8+vO5Z3VAwkAAAAAAAAAzhz5D/P/fNqvXmNX12rH"
    "+EQBAAAAAAAAzp7c8HxxuB/wmh9xvr8mym/F/sBtUR5Iyd/90/pz8nh5mX87z8+3RPmBnOwjpPWuPH7/fdH+vSiX+aCWRurv5pLn"
    "f+SH7dqhN20ydo91J7eRh9fxHseClGxixH3qtO9ETuCLavnHzwKXRqd54EZEw6kNW24vYjQ87eAWxUqIbvf5E/jwtJJeUjbpzrSH"
    "udSO6LRGHvWe/Hbg4yOKj/jBNWpSpdqqqmW9opuV9i5x2sQqK6qh61XDqGimpppGtaIZRbJFabhRvxMR6yHpMrZlray4Qct2u0HE"
    "LFWrKaRRJL7tUWKRNu3YPZeRImm5DvVZpl9ZNUoK/ypbmqoZJmnsifE3Q+oFfdqePl1mT25TGF6viXe8kvYTc0/3u3ojqxPbFr8j"
    "cX0r8Dv3mM3oLukHfNniCfzqk+Gz5i9O0OTr1Odz79huRPd458jhi+2zpuO36ba4fyFiQWg/paOvAL+1l5keAAAAAADARHnkf+R/"
    "5H/kfwAAAAAA+OcVZpj/07Keyf/rmfz/OJP/FzP5/4bI/wf/Qf5PINzPINz//FcWJRPuG5lwT2cc5vNI7gAAAAAA8Pe9ye0/j9QP"
    "5svDnDZ3/OXk84ujR9fd/NelV1eevTs8ufkdnqyQrQ=="
)


def empty_snapshot() -> bytes:
    """Return the snapshot file, as input of `etcdutl snapshot restore`."""
    return zlib.decompress(base64.b64decode(_SNAPSHOT))
