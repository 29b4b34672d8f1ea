"""A real FastMCP 3 for the tests of the bridge: a worker that asks, or a subscriber that prints.

    fastmcp_peer.py worker URL DOCKET             a client calls a tool that asks the user; nobody subscribes in this process
    fastmcp_peer.py subscriber URL DOCKET SESSION prints what FastMCP's subscriber sends to the session's client
"""

import asyncio
import json
import os
import sys

mode, url, docket_name = sys.argv[1:4]
os.environ["FASTMCP_DOCKET_URL"] = url
os.environ["FASTMCP_DOCKET_NAME"] = docket_name

from fastmcp import Client, Context, FastMCP
from fastmcp.server.tasks import notifications


def say(**what):
    print(json.dumps(what), flush=True)


async def worker():
    async def nobody(session_id, *_):
        say(session=session_id)

    notifications.ensure_subscriber_running = nobody
    server = FastMCP("asks")

    @server.tool(task=True)
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("Which colour?", response_type=str)
        return f"{answer.action}: {getattr(answer, 'data', None)}"

    async with Client(server) as client:
        task = await client.call_tool("ask", {}, task=True)
        say(result=(await task.result()).data)


async def subscriber(session_id):
    from docket import Docket

    class Session:
        async def send_notification(self, notification):
            say(sent=notification.model_dump(mode="json", by_alias=True, exclude_none=True))

    session = Session()
    async with Docket(name=docket_name, url=url) as docket:
        await notifications.ensure_subscriber_running(session_id, session, docket, None)
        say(subscribed=session_id)
        await asyncio.to_thread(sys.stdin.read)
        await notifications.stop_subscriber(session_id)


asyncio.run(worker() if mode == "worker" else subscriber(*sys.argv[4:]))
