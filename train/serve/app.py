"""The web application: TensorFlow Serving's REST API as a deployment of Ray Serve."""

import asyncio
import json
import pathlib
import time

import ray
import tensorflow as tf
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from ray import serve
from ray.serve import metrics
from starlette.exceptions import HTTPException

from ..devices import one_thread_each
from ..settings import import_modules
from .attention_pages import AttentionPages
from .requests import ROWS, read_request, write_answer
from .versions import Models

SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # of the histogram
LONGEST_BODY = 64 * 2**20  # bytes; older exports have signatures with the state of a search
MOST_ROWS = 1024  # of a request
MOST_TEXT = 4 * 2**20  # bytes of a request that may be tokenised, which takes 140 times as many
LONGEST_READ = 2**20  # bytes of a text; models cut longer ones, but for the signature `tokenize`
PAGE = pathlib.Path(__file__).with_name("page.html")

app = FastAPI(openapi_url=None)


def refuse(code, message):
    """An error as TensorFlow Serving writes it."""
    return JSONResponse({"error": message}, code)


@app.exception_handler(ValueError)
@app.exception_handler(LookupError)
@app.exception_handler(tf.errors.OpError)
@app.exception_handler(HTTPException)
@app.exception_handler(Exception)
def _refuse(request, error):
    match error:
        case ValueError():
            return refuse(400, str(error))
        case LookupError():  # there is no such model
            return refuse(404, error.args[0])
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
    async for part in request.stream():
        body += part
        if len(body) > LONGEST_BODY:
            raise HTTPException(413, f"A request has at most {LONGEST_BODY} bytes.")
    return bytes(body)


async def read(request, model):
    """What `read_request` returns, unless it would take too much memory to answer."""
    name, inputs, format = read_request(await read_body(request), model.signatures)
    if num_rows([(inputs,)]) > MOST_ROWS:
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


def num_rows(requests):
    """The number of rows of requests, each a triple with its inputs at the end."""
    return sum(
        max((len(a) for a in inputs.values() if a.ndim), default=1) for *_, inputs in requests
    )


def keep_local():
    """Has this replica listen on 127.0.0.1, if that is where all of Ray listens.

    Its port for other deployments, which Ray opens after `__init__`, has no setting. The test of
    ports guards the names.
    """
    if ray.util.get_node_ip_address() == "127.0.0.1":
        from ray.serve._private import replica

        add_port = replica.add_port_to_grpc_server
        replica.add_port_to_grpc_server = lambda server, address: add_port(
            server, address.replace("[::]", "127.0.0.1")
        )


@serve.deployment(max_ongoing_requests=1000)
@serve.ingress(app)
class Server:
    """Answers requests with all models of a folder; each replica loads them.

    Args:
        folder: folder of NAME/VERSION/saved_model.pb.
        num_versions: number of versions to serve per model.
        poll_seconds: seconds between checks of the folder.
        max_batch_rows: maximum rows of merged requests.
        batch_seconds: seconds that a request waits for others.
        runs: folder of the runs that show the attention of the models with their names.
        imports: names of modules that the models of these runs need.
    """

    def __init__(
        self, folder, num_versions, poll_seconds, max_batch_rows, batch_seconds, runs, imports
    ):
        keep_local()
        one_thread_each()  # before other modules may compute
        import_modules(imports)
        self.max_batch_rows = max_batch_rows
        self._run_batch.set_max_batch_size(max_batch_rows)
        self._run_batch.set_batch_wait_timeout_s(batch_seconds)
        self.seconds = metrics.Histogram(
            "keras_transformer_request_seconds",
            description="Time to answer a request.",
            boundaries=SECONDS,
            tag_keys=("model", "version", "signature"),
        )
        self.attention_pages = AttentionPages(runs)
        self.models = Models(folder, num_versions)
        self.models.keep_updated(poll_seconds)

    @app.get("/v1/models")
    def list_models(self):
        names = self.models.names()
        return {
            "models": names,
            "attention": [name for name in names if self.attention_pages.has(name)],
        }

    @app.get("/")
    def page(self):
        return HTMLResponse(PAGE.read_text("ascii"))

    @app.post("/v1/models/{name}/versions/{version}:predict")
    @app.post("/v1/models/{name}:predict")
    @app.post("/v1/models/{name}:{version}:predict")  # is tried before the one above
    async def predict(self, request: Request):
        model = self.models.find(*model_in(request.path_params))
        begin = time.perf_counter()
        name, inputs, format = await read(request, model)
        outputs = await self._run(model, name, inputs)
        tags = {"model": model.name, "version": str(model.version), "signature": name}
        self.seconds.observe(time.perf_counter() - begin, tags)
        return Response(write_answer(outputs, format), media_type="application/json")

    @app.post("/v1/models/{name}:attention")
    async def attention(self, request: Request):
        """A page that shows the attention; see `AttentionPages.page`."""
        model = self.models.find(*model_in(request.path_params))
        body = await read_body(request)
        return HTMLResponse(await asyncio.to_thread(self.attention_pages.page, model, body))

    @app.post("/v1/models/{name}:stream")
    async def stream(self, request: Request):
        """Answers one row for `generate` with an event for each token: the continuation so far."""
        model = self.models.find(*model_in(request.path_params))
        signature, inputs, _ = await read(request, model)
        if signature != "generate" or len(inputs.get("max_tokens", ())) != 1:
            raise ValueError("Expected one row for the signature generate of a language model.")
        outputs = in_threads(model.stream(inputs))
        first = await anext(outputs)  # raises here if the request is invalid
        return StreamingResponse(events(first, outputs), media_type="text/event-stream")

    @app.get("/v1/models/{name}/versions/{version}/metadata")
    @app.get("/v1/models/{name}/metadata")
    def metadata(self, request: Request):
        return self.models.find(*model_in(request.path_params)).metadata()

    @app.get("/v1/models/{name}/versions/{version}")
    @app.get("/v1/models/{name}")
    def status(self, request: Request):
        return self.models.status(*model_in(request.path_params))

    @app.get("/health")
    def health(self):
        return self.models.names() or refuse(503, "No model is loaded.")

    async def _run(self, model, signature, inputs):
        """Answers one request, in a batch with others unless it is larger than a batch."""
        if num_rows([(model, signature, inputs)]) > self.max_batch_rows:
            [outputs] = await asyncio.to_thread(model.run_merged, signature, [inputs])
        else:
            outputs = await self._run_batch((model, signature, inputs))
        if isinstance(outputs, Exception):
            raise outputs
        return outputs

    @serve.batch(max_concurrent_batches=2, batch_size_fn=num_rows)
    async def _run_batch(self, requests):
        """Answers requests, together if they are for the same signature of a model."""
        groups = {}
        for number, (model, signature, _) in enumerate(requests):
            groups.setdefault((model, signature), []).append(number)
        answers = [None] * len(requests)

        async def run(model, signature, numbers):
            inputs = [requests[number][2] for number in numbers]
            outputs = await asyncio.to_thread(model.run_merged, signature, inputs)
            for number, output in zip(numbers, outputs, strict=True):
                answers[number] = output

        await asyncio.gather(*(run(*key, numbers) for key, numbers in groups.items()))
        return answers
