"""Chromium or Chrome without a window, told what to do by the DevTools protocol."""

import asyncio
import contextlib
import itertools
import shutil
import subprocess

import aiohttp

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]


@contextlib.asynccontextmanager
async def browser(address, folder):
    """Opens a page; yields a function that evaluates JavaScript in it and returns its value.

    Args:
        address: of the page.
        folder: empty, a path for the browser's files.
    """
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (file := folder / "DevToolsActivePort").exists() or not file.read_text():
            assert process.poll() is None, "the browser has ended"
            await asyncio.sleep(0.1)
        tools = f"http://127.0.0.1:{file.read_text().split()[0]}"
        async with aiohttp.ClientSession() as session:
            async with session.put(f"{tools}/json/new?{address}") as answer:
                target = (await answer.json())["webSocketDebuggerUrl"]
            async with session.ws_connect(target, max_msg_size=0) as socket:
                numbers = itertools.count(1)

                async def call(method, **parameters):
                    number = next(numbers)
                    await socket.send_json({"id": number, "method": method, "params": parameters})
                    while (answer := await socket.receive_json()).get("id") != number:
                        pass
                    return answer["result"]

                async def evaluate(script):
                    answer = await call("Runtime.evaluate", expression=script, returnByValue=True)
                    assert "exceptionDetails" not in answer, answer
                    return answer["result"].get("value")

                yield evaluate
    finally:
        process.terminate()
        process.wait()


async def until(evaluate, script, seconds=30):
    """Waits until a script gives something true, and returns it."""
    async with asyncio.timeout(seconds):
        while not (value := await evaluate(script)):
            await asyncio.sleep(0.05)
        return value
