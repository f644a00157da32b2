"""Which requests are answered together, without a server."""

import asyncio
import random
import time

import numpy as np
import pytest
from starlette.requests import ClientDisconnect

from train.serve.batches import Batches


class Model:
    """Doubles texts, and notes the batches that it gets; refuses the text "bad"."""

    def __init__(self):
        self.batches, self.at_once, self.most_at_once = [], 0, 0

    def run_merged(self, signature, requests):
        self.batches.append((signature, [inputs["text"].tolist() for inputs in requests]))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(0.002)
        self.at_once -= 1
        if any("bad" in inputs["text"] for inputs in requests):
            raise RuntimeError("This text is bad.")
        return [{"twice": inputs["text"] + inputs["text"]} for inputs in requests]


class Request:
    def __init__(self, has_gone=False):
        self.has_gone = has_gone

    async def is_disconnected(self):
        return self.has_gone


def texts(*values):
    return {"text": np.array(values, object)}


def all_answers(batches, requests):
    async def ask():
        asked = (batches.answer(*request) for request in requests)
        return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 30)

    return asyncio.run(ask())


def test_alike_requests_that_arrive_together_are_one_batch():
    one, other, here = Model(), Model(), Request()
    requests = [
        (here, one, "a", texts("b", "c")),
        (here, other, "a", texts("d")),
        (here, one, "a", texts("e")),
        (here, one, "z", texts("f")),
        (here, one, "a", texts("g", "h")),  # does not fit
        (here, one, "a", texts("i")),
    ]
    found = all_answers(Batches(4, 0.01), requests)
    expected = [["bb", "cc"], ["dd"], ["ee"], ["ff"], ["gg", "hh"], ["ii"]]
    assert [answer["twice"].tolist() for answer in found] == expected
    assert ("a", [["b", "c"], ["e"], ["i"]]) in one.batches and ("z", [["f"]]) in one.batches
    assert other.batches == [("a", [["d"]])] and len(one.batches) == 3


def test_what_a_model_raises_is_the_answer_of_its_batch_and_who_has_gone_has_none():
    model, here = Model(), Request()
    batches = Batches(1, 0)
    requests = [
        (here, model, "a", texts("bad")),
        (Request(has_gone=True), model, "a", texts("b")),
        (here, model, "a", texts("c")),
    ]
    bad, gone, sound = all_answers(batches, requests)
    assert isinstance(bad, RuntimeError) and sound["twice"].tolist() == ["cc"]
    assert isinstance(gone, ClientDisconnect) and ("a", [["b"]]) not in model.batches


@pytest.mark.parametrize("seed", range(5))
def test_every_request_is_answered_by_two_batches_at_a_time(seed):
    """Whenever it comes, also when the last batch has just ended."""
    draw, model, batches = random.Random(seed), Model(), Batches(4, 0.001)

    async def client(number):
        for turn in range(10):
            text = f"{number} {turn}"
            answer = await batches.answer(Request(), model, draw.choice("ab"), texts(text))
            assert answer["twice"].tolist() == [2 * text]
            await asyncio.sleep(draw.choice((0, 0, 0.002)))

    async def ask():
        await asyncio.wait_for(asyncio.gather(*map(client, range(8))), 30)

    asyncio.run(ask())
    assert model.most_at_once == 2
    assert sum(len(rows) for _, rows in model.batches) == 80
    assert max(len(rows) for _, rows in model.batches) <= 4
