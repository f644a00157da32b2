"""The web application: TensorFlow Serving's REST API."""

import asyncio
import json
import pathlib
import time

import prometheus_client
import tensorflow as tf
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from .attention_pages import AttentionPages
from .batches import Batches, num_rows
from .requests import ROWS, NotFound, read_request, write_answer

SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # of the histogram
SECONDS_TO_SEND = 60  # the body of a request
LONGEST_BODY = 64 * 2**20  # bytes, of which most may be of texts that are cut
SHORT_BODY = 2**16  # bytes, which are read without making other requests wait
MOST_REQUESTS = 1000  # in flight
MOST_ROWS = 1024  # of a request
MOST_TEXT = 4 * 2**20  # bytes of a request that may be tokenised, which takes 140 times as many
LONGEST_READ = 2**20  # bytes of a text; models cut longer ones, but for the signature `tokenize`
PAGE = pathlib.Path(__file__).with_name("page.html")
REQUEST_SECONDS = prometheus_client.Histogram(
    "keras_transformer_request_seconds",
    "Time to answer a request.",
    ("model", "version", "signature"),
    buckets=SECONDS,
)
ANSWERS = prometheus_client.Counter("keras_transformer_answers", "Answers.", ("status",))


def refuse(code, message):
    """An error as TensorFlow Serving writes it."""
    return JSONResponse({"error": message}, code)


def answer_of_error(request, error):
    """An exception as an answer; `request` is the one that raised it."""
    match error:
        case ValueError():
            return refuse(400, str(error))
        case NotFound():
            return refuse(404, str(error))
        case ClientDisconnect():  # nobody receives it
            return refuse(499, "The client has closed the connection.")
        case TimeoutError():
            return refuse(408, f"A request is sent within {SECONDS_TO_SEND} seconds.")
        case tf.errors.ResourceExhaustedError():
            return refuse(503, error.message)
        case tf.errors.InvalidArgumentError() | tf.errors.OutOfRangeError():
            return refuse(400, error.message)
        case tf.errors.OpError():  # of the server, not of the request
            return refuse(500, error.message)
        case HTTPException(status_code=404 | 405) if request.url.path.startswith("/v1/"):
            return refuse(400, f"Malformed request: {request.method} {request.url.path}")
        case HTTPException():
            return refuse(error.status_code, error.detail)
    return refuse(500, f"{type(error).__name__}: {error}")


async def read_body(request):
    """The body of a request, unless it is too long."""
    body = bytearray()
    async with asyncio.timeout(SECONDS_TO_SEND):
        async for part in request.stream():
            body += part
            if len(body) > LONGEST_BODY:
                raise HTTPException(413, f"A request has at most {LONGEST_BODY} bytes.")
    return bytes(body)


async def read(request, model):
    """What `read_request` returns, unless it would take too much memory to answer."""
    body = await read_body(request)
    if len(body) > SHORT_BODY:
        parsed = await asyncio.to_thread(read_request, body, model.signatures)
    else:
        parsed = read_request(body, model.signatures)
    name, inputs, format = parsed
    if num_rows(inputs) > MOST_ROWS:
        raise HTTPException(413, f"A request has at most {MOST_ROWS} rows.")
    is_cut = "truncated" in model.signatures[name]["outputs"]
    lengths = [list(map(len, array.flat)) for array in inputs.values() if array.dtype == object]
    if is_cut:
        size = sum(min(length, LONGEST_READ) for each in lengths for length in each)
    else:  # rows of ids are as long as the longest
        size = sum(len(each) * max(each, default=0) for each in lengths)
    if size > MOST_TEXT:
        raise HTTPException(
            413,
            f"The texts of a request have at most {MOST_TEXT} bytes together. Of a text that will "
            f"be truncated, {LONGEST_READ} count; of others, as many as of the longest. Send fewer "
            "texts at once.",
        )
    return name, inputs, format


async def events(first, others):
    """Server-sent events, each with the row of an answer as JSON."""
    yield event(first)
    try:
        async for outputs in others:
            yield event(outputs)
    except tf.errors.OpError as error:
        yield f"data: {json.dumps({'error': error.message})}\n\n".encode()


async def in_threads(items):
    """Yields the items of an iterator, each computed by a thread once it is asked for."""
    end = object()
    while (item := await asyncio.to_thread(next, items, end)) is not end:
        yield item


def event(outputs):
    [row] = json.loads(write_answer(outputs, ROWS))["predictions"]
    return f"data: {json.dumps(row)}\n\n".encode()


def model_in(path):
    """The name and the number of the version, or None, in the parts of a path."""
    version = path.get("version")
    if version is None:
        return path["name"], None
    if not (version.isascii() and version.isdecimal() and len(version) < 19):
        raise ValueError(f"A version is a number. Received: {version[:100]!r}.")
    return path["name"], int(version)


def make_app(models, runs, max_batch_rows, batch_seconds):
    """The application.

    Args:
        models: {name: `SavedModel`}.
        runs: folder of the runs that show the attention of the models with their names.
        max_batch_rows: maximum rows of merged requests.
        batch_seconds: seconds that a request waits for others.
    """
    app, server = FastAPI(openapi_url=None), Server(models, runs, max_batch_rows, batch_seconds)
    mistakes = ValueError, NotFound, HTTPException, ClientDisconnect, TimeoutError
    for error in (*mistakes, tf.errors.OpError, Exception):
        app.add_exception_handler(error, answer_of_error)
    app.add_middleware(InFlight, limit=MOST_REQUESTS)
    for path, answer in {
        "/": server.page,
        "/health": server.health,
        "/metrics": server.metrics,
        "/v1/models": server.list_models,
        "/v1/models/{name}/versions/{version}/metadata": server.metadata,
        "/v1/models/{name}/metadata": server.metadata,
        "/v1/models/{name}/versions/{version}": server.status,
        "/v1/models/{name}": server.status,
    }.items():
        app.get(path)(answer)
    for path, answer in {
        "/v1/models/{name}/versions/{version}:predict": server.predict,
        "/v1/models/{name}:{version}:predict": server.predict,
        "/v1/models/{name}:predict": server.predict,
        "/v1/models/{name}:attention": server.attention,
        "/v1/models/{name}:stream": server.stream,
    }.items():
        app.post(path)(answer)
    return app


class InFlight:
    """Counts answers, and refuses requests to models beyond a number that is in flight.

    Args:
        app: the application that answers the others.
        limit: that number.
    """

    def __init__(self, app, limit):
        self.app, self.limit, self.count = app, limit, 0

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def counted(message):
            if message["type"] == "http.response.start":
                ANSWERS.labels(str(message["status"])).inc()
            await send(message)

        if not scope["path"].startswith("/v1/"):  # health and metrics
            return await self.app(scope, receive, counted)
        if self.count >= self.limit:
            answer = refuse(503, f"{self.limit} requests are being answered. Try again later.")
            return await answer(scope, receive, counted)
        self.count += 1
        try:
            return await self.app(scope, receive, counted)
        finally:
            self.count -= 1


class Server:
    """Answers requests; `make_app` has the arguments, and the paths of the methods."""

    def __init__(self, models, runs, max_batch_rows, batch_seconds):
        self.models = models
        self.attention_pages, self.one_page = AttentionPages(runs), asyncio.Lock()
        self.batches = Batches(max_batch_rows, batch_seconds)

    def page(self):
        return HTMLResponse(PAGE.read_text("ascii"))

    def health(self):
        return list(self.models)

    def metrics(self):
        content = prometheus_client.generate_latest()
        return Response(content, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    def list_models(self):
        attention = [name for name in self.models if self.attention_pages.has(name)]
        return {"models": list(self.models), "attention": attention}

    def metadata(self, request: Request):
        return self._model_of(request).metadata()

    def status(self, request: Request):
        try:
            model = self._model_of(request)
        except NotFound:
            name, version = model_in(request.path_params)
            which = "any versions" if version is None else f"version {version}"
            raise NotFound(f"Could not find {which} of model {name}") from None
        status = {"error_code": "OK", "error_message": ""}
        state = {"version": str(model.version), "state": "AVAILABLE", "status": status}
        return {"model_version_status": [state]}

    async def predict(self, request: Request):
        model = self._model_of(request)
        begin = time.perf_counter()
        signature, inputs, format = await read(request, model)
        outputs = await self.batches.answer(request, model, signature, inputs)
        seconds = REQUEST_SECONDS.labels(model.name, str(model.version), signature)
        seconds.observe(time.perf_counter() - begin)
        return Response(write_answer(outputs, format), media_type="application/json")

    async def attention(self, request: Request):
        """A page that shows the attention; see `AttentionPages.page`."""
        model = self._model_of(request)
        body = await read_body(request)
        async with self.one_page:  # others wait without a thread
            if await request.is_disconnected():
                raise ClientDisconnect
            page = await asyncio.to_thread(self.attention_pages.page, model, body)
        return HTMLResponse(page)

    async def stream(self, request: Request):
        """Answers one row for `generate` with an event for each token: the continuation so far."""
        model = self._model_of(request)
        signature, inputs, _ = await read(request, model)
        if signature != "generate" or len(inputs.get("max_tokens", ())) != 1:
            raise ValueError("Expected one row for the signature generate of a language model.")
        outputs = in_threads(model.stream(inputs))
        first = await anext(outputs)  # raises here if the request is invalid
        return StreamingResponse(events(first, outputs), media_type="text/event-stream")

    def _model_of(self, request):
        """The model that a request names; NotFound, with TensorFlow Serving's message."""
        name, version = model_in(request.path_params)
        model = self.models.get(name)
        if model is None or version not in (None, model.version):
            wanted = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            raise NotFound(f"Servable not found for request: {wanted}")
        return model
