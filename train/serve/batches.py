"""Batches of requests to served models."""

import asyncio
import concurrent.futures
from typing import NamedTuple

from fastapi import Request
from starlette.requests import ClientDisconnect

from .saved_model import SavedModel


class Waiting(NamedTuple):
    """A request that waits for its batch."""

    request: Request
    key: tuple[SavedModel, str]  # the model, and the name of a signature
    inputs: dict  # {input: array}
    answer: asyncio.Future  # {output: array} or an exception

    def give(self, outputs):
        if not self.answer.done():  # it is cancelled when the server stops
            self.answer.set_result(outputs)


class Batches:
    """Answers requests that arrive together as one batch, and two batches at a time.

    A batch takes the oldest request and others for the same signature of its model. Where more rows
    arrive than are answered, batches fill up by themselves.

    Args:
        max_rows: maximum rows of a batch of several requests.
        seconds: how long a batch waits for further requests.
    """

    MOST_AT_ONCE = 2

    def __init__(self, max_rows, seconds):
        self.max_rows, self.seconds = max_rows, seconds
        self._waiting = []  # oldest first
        self._workers = set()  # tasks
        self._threads = concurrent.futures.ThreadPoolExecutor(self.MOST_AT_ONCE)

    async def answer(self, request, model, signature, inputs):
        """{output: array}; raises what the model raises for these inputs."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(Waiting(request, (model, signature), inputs, answer))
        if len(self._workers) < self.MOST_AT_ONCE:
            self._workers.add(asyncio.create_task(self._work()))
        outputs = await answer
        if isinstance(outputs, Exception):
            raise outputs
        return outputs

    async def _work(self):
        try:
            while self._waiting:
                if sum(num_rows(each.inputs) for each in self._waiting) < self.max_rows:
                    await asyncio.sleep(self.seconds)
                if batch := self._take():
                    await self._run(batch)
        finally:  # at once: who comes next starts another
            self._workers.remove(asyncio.current_task())

    async def _run(self, batch):
        here = []
        for each in batch:
            if await each.request.is_disconnected():
                each.give(ClientDisconnect())
            else:
                here.append(each)
        if not here:
            return
        model, signature = here[0].key
        inputs, loop = [each.inputs for each in here], asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._threads, model.run_merged, signature, inputs)
        except Exception as error:  # whatever it is, the next batch is answered
            answers = [error] * len(here)
        for each, outputs in zip(here, answers, strict=True):
            each.give(outputs)

    def _take(self):
        """The next batch, which waits no longer; empty if another worker has taken all."""
        taken, others, rows = [], [], 0
        for each in self._waiting:
            more = num_rows(each.inputs)
            if not taken or (each.key == taken[0].key and rows + more <= self.max_rows):
                taken.append(each)
                rows += more
            else:
                others.append(each)
        self._waiting = others
        return taken


def num_rows(inputs):
    """The number of rows of a request, {input: array}."""
    return max((len(array) for array in inputs.values() if array.ndim), default=1)
