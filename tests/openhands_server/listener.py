"""Writes what both sockets of a conversation say; run by the Python of the agent server.

    SESSION_KEY=… listener.py PORT CONVERSATION FILE

It says `listening` when both have said something, and ends with its standard input.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TextIO

import websockets

PORT, CONVERSATION = sys.argv[1:3]
PLACES = ("session/{}?after_seq=-1", "events/{}?resend_mode=all")


async def listen(place: str, frames: TextIO, heard: asyncio.Event) -> None:
    url = f"ws://127.0.0.1:{PORT}/sockets/{place.format(CONVERSATION)}"
    async with websockets.connect(url, max_size=None) as socket:
        await socket.send(
            json.dumps({"type": "auth", "session_api_key": os.environ["SESSION_KEY"]})
        )
        async for frame in socket:
            frames.write(f"{place} {frame!s}\n")
            frames.flush()
            heard.set()


async def main(frames: TextIO) -> None:
    heard = {place: asyncio.Event() for place in PLACES}
    tasks = [asyncio.create_task(listen(place, frames, heard[place])) for place in PLACES]
    for event in heard.values():
        await event.wait()
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


with Path(sys.argv[3]).open("w", encoding="utf-8") as file:
    asyncio.run(main(file))
