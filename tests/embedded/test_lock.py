"""The lock of a directory of an embedded cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kplane.embedded import lock
from kplane.embedded.errors import DirectoryInUse


def test_lock_has_a_single_holder_until_it_is_released(tmp_path: Path) -> None:
    assert lock.holder(tmp_path) is None
    with lock.hold(tmp_path):
        assert lock.holder(tmp_path) == os.getpid()
        with pytest.raises(DirectoryInUse, match=str(os.getpid())), lock.hold(tmp_path):
            pass
        assert lock.holder(tmp_path) == os.getpid()
    assert lock.holder(tmp_path) is None
    with lock.hold(tmp_path):
        pass
