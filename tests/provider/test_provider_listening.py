"""HTTP servers of this process, which serve while a block runs."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web

from kplane.provider.errors import ListenFailed
from kplane.provider.serving.listening import listening


async def test_listening_serves_in_its_block_and_frees_the_port(hold_port):
    port = hold_port()
    async with aiohttp.ClientSession() as session:
        async with listening(web.Application(), host="127.0.0.1", port=port) as address:
            assert address == ("127.0.0.1", port)
            async with session.get(f"http://127.0.0.1:{port}/") as answer:
                assert answer.status == 404
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize(("flag", "named"), [(None, ""), ("--listen", " (--listen)")])
async def test_listening_names_a_port_in_use(flag, named):
    async with listening(web.Application(), host="127.0.0.1", port=0) as (host, port):
        with pytest.raises(ListenFailed) as caught:
            async with listening(web.Application(), host=host, port=port, flag=flag):
                pass
    assert str(caught.value).startswith(f"cannot listen on 127.0.0.1:{port}{named}: ")
    assert isinstance(caught.value, OSError)
