"""Program `controlplane-operator`: runs the operator by its flags until a signal."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from typing import Final

import uvloop

from kplane.api.configuration import ConfigurationError
from kplane.controlplane_operator.app import run_operator
from kplane.controlplane_operator.config import OperatorConfig
from kplane.controlplane_operator.errors import OperatorError
from kplane.pki.errors import PkiError
from kplane.provider import ProviderError
from kplane.provider.logs import json_logging
from kplane.provider.serving.open_files import raise_limit
from kplane.provider.serving.process import run_until_signalled
from kplane.workloads import WorkloadsError

__all__ = ["main"]

_log: Final = logging.getLogger(__name__)

_EXPECTED: Final = (OperatorError, PkiError, ProviderError, WorkloadsError, OSError)
"""Errors that are logged by their message, without a traceback."""

_OK: Final = 0
_FAILED: Final = 1
_BAD_USAGE: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the operator; return 0 after SIGTERM or SIGINT, 1 after a failure, 2 for invalid flags."""
    try:
        config = OperatorConfig.parse(sys.argv[1:] if arguments is None else arguments)
    except ConfigurationError as error:
        sys.stderr.write(f"controlplane-operator: {error}\n")
        return _BAD_USAGE
    raise_limit()
    with json_logging(config.log_level), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(run_until_signalled(lambda stop: run_operator(config, stop=stop)))
        except _EXPECTED as error:
            _log.error("failed to run: %s", error)
            return _FAILED
        except ExceptionGroup as group:
            if group.split(_EXPECTED)[1] is None:
                _log.error("failed: %s", _first(group))
            else:
                _log.exception("stopped by an error")
            return _FAILED
    return _OK


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


if __name__ == "__main__":
    sys.exit(main())
