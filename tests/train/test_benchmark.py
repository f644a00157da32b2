import json
import os
import pathlib
import time

import pytest

from train.benchmark import command, parts
from train.benchmark.command import choose_device
from train.benchmark.engines import SIZES, Candidate, Engine, Size, Workload, size_on
from train.benchmark.products import Product, forward_products, training_flops
from train.benchmark.rounds import measure, seconds_a_unit, why_not
from train.benchmark.tables import compare, engine_table

SIZE = Size(
    num_layers=2,
    hidden_dim=15,
    intermediate_dim=7,
    num_heads=3,
    vocabulary_size=11,
    batch_size=13,
    length=17,
)
WORKLOAD = Workload(SIZE, "float32", SIZE.batch_size, threads=1)
TOY_RUN = ["--part", "all", "--toy", "--repeats", "1", "--steps", "1"]


def counting_engine(workload):
    """Appends a dot to a file in every unit of work, and tells how many there are."""
    path = pathlib.Path(os.environ["COUNTED"])

    def unit():
        with path.open("a") as file:
            file.write(".")
        return path.stat().st_size

    return Engine("counts", unit, num_parameters=5)


def engine_of_a_missing_package(workload):
    import no_such_package

    return no_such_package


def waiting_engine(workload):
    return Engine("waits", lambda: "waited")


def engine_that_goes_on_after_it_has_answered(workload):
    """As a GPU does."""
    work = []

    def finish(unit):
        time.sleep(0.2 * len(work))
        work.clear()
        return unit

    return Engine("goes on", lambda: work.append(None), finish=finish)


def engine_that_cannot_be_built(workload):
    raise ValueError("no such layer\nand more")


def engine_that_dies(workload):
    os._exit(7)


def engine_that_fails_later(workload):
    calls = iter([1, 2, 3])
    return Engine("stops", lambda: next(calls))


@pytest.fixture(autouse=True)
def counted(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTED", str(tmp_path / "counted"))
    return tmp_path / "counted"


def test_every_engine_does_every_round_in_a_process_of_its_own_that_stays_alive(counted):
    candidates = [
        Candidate("a", counting_engine, WORKLOAD),
        Candidate("b", waiting_engine, WORKLOAD),
    ]
    counting, waiting = measure(candidates, repeats=3, steps=2)
    assert counting["result"] == 2, "two units of warm-up"
    assert counted.read_text() == "." * (2 + 3 * 2), "then two a round"
    assert len(counting["seconds"]) == 3 and all(counting["seconds"]), "one time a round"
    assert counting["parameters"] == 5, "the engine's own number"
    assert counting["name"] == "counts", "the engine knows its version"
    assert waiting["result"] == "waited", "what the last unit of warm-up gave"
    assert len(waiting["seconds"]) == 3, "one time a round"
    assert all(0 < seconds < 1 for seconds in waiting["seconds"]), "seconds of one unit"


def test_the_clock_is_read_when_all_work_is_done():
    candidate = Candidate("a", engine_that_goes_on_after_it_has_answered, WORKLOAD)
    [row] = measure([candidate], repeats=2, steps=3)
    assert row["seconds"] == pytest.approx([0.2, 0.2], rel=0.25), "seconds of one unit"


@pytest.mark.soak
def test_what_a_run_serves_is_measured_from_text_to_text(run_of, tmp_path, capsys):
    run, sources = run_of("translation"), tmp_path / "sources"
    sources.write_text("abc\n\nfe ad\nb\n")
    served = ["--part=served", f"--run={run}", f"--text={sources}", "--repeats=1"]
    assert command.run([*served, "--decode-batch=2"]) == 0
    table = capsys.readouterr().out
    assert f"3 texts of {sources} by {run}, in requests of 2" in table
    sources.write_text("\n")
    with pytest.raises(ValueError, match="--text must have a line that is not empty"):
        command.run(served)


@pytest.mark.oracle
@pytest.mark.soak
def test_continuations_are_measured_beside_hugging_face(tmp_path):
    report = tmp_path / "report.json"
    toy = ["--part=generate", "--toy", "--repeats=1", "--steps=1", f"--json={report}"]
    assert command.run(toy) == 0
    [run] = json.loads(report.read_text())["runs"]
    first, whole = run["measurements"]
    assert [row["result"] for row in first["engines"] if "forward" not in row["name"]] == [1.0] * 3
    assert [row["result"] for row in whole["engines"]] == [7.0] * 3, "as many tokens each"


@pytest.mark.slow
def test_what_is_missing_or_fails_is_told_and_the_others_go_on():
    candidates = [
        Candidate("missing", engine_of_a_missing_package, WORKLOAD),
        Candidate("unbuilt", engine_that_cannot_be_built, WORKLOAD),
        Candidate("dead", engine_that_dies, WORKLOAD),
        Candidate("late", engine_that_fails_later, WORKLOAD),
        Candidate("well", counting_engine, WORKLOAD),
    ]
    rows = measure(candidates, repeats=2, steps=1)
    assert [row["unavailable"] for row in rows] == [
        "skipped: no_such_package is not installed",
        "failed: ValueError: no such layer",
        "failed: its process ended",
        "failed: StopIteration: no message",
        None,
    ]
    assert [len(row["seconds"]) for row in rows] == [0, 0, 0, 0, 2], "only whole measurements"


def test_products_of_a_step_are_those_of_the_model():
    tokens = 13 * 17
    assert forward_products(SIZE) == {
        Product(1, tokens, 15, 15): 24,  # 2 encoder and 2 decoder layers: 2 x 4 and 2 x 8
        Product(39, 17, 5, 17): 6,
        Product(39, 17, 17, 5): 6,
        Product(1, tokens, 15, 7): 4,
        Product(1, tokens, 7, 15): 4,
        Product(1, tokens, 15, 11): 1,
    }
    forward = 24 * 15 * 15 * tokens + 12 * 39 * 17 * 17 * 5 + (8 * 7 + 11) * 15 * tokens
    assert training_flops(SIZE) == 3 * 2 * forward, "a product is done forward and twice backward"


def measured(name, seconds):
    return {"name": name, "unavailable": None, "seconds": seconds}


def test_ratios_are_medians_of_ratios_within_a_round():
    rows = [measured("ours", [1.0, 2.0, 8.0]), measured("peer", [3.0, 4.0, 40.0])]
    compare(rows, tokens=10)
    assert rows[1]["ours_is_faster_by"] == [3.0, 2.0, 5.0], "median, lowest, highest"
    assert rows[1]["tokens_per_second"] == 2.5, "10 tokens in the median of 4 seconds"


def test_the_share_of_products_is_of_the_faster_library():
    rows = [
        measured("ours", [8.0]),
        measured("products, slow", [4.0]),
        measured("products, fast", [2.0]),
    ]
    compare(rows, tokens=1, flops=16e9)
    assert rows[0]["share_of_products"] == 0.25, "2 of 8 seconds"
    assert rows[0]["gflops"] == 2.0, "16 GFLOP in 8 seconds"
    assert "tokens_per_second" not in rows[2], "products alone give no tokens"


def test_the_table_is_aligned_and_names_what_is_not_there():
    rows = [
        measured("ours", [0.5]),
        measured("a peer with a name", [2.0]),
        {"name": "third", "unavailable": "skipped: third is not installed", "seconds": []},
    ]
    compare(rows, tokens=100)
    assert engine_table(rows) == [
        "engine              tokens/s       ms    ours faster by",
        "ours                     200   500.00",
        "a peer with a name        50  2000.00  4.00 (4.00-4.00)",
        "third  skipped: third is not installed",
    ]


def test_the_table_stands_without_our_own_engine():
    rows = [
        {"name": "ours", "unavailable": "failed: ValueError: broken", "seconds": []},
        measured("peer", [2.0]),
        measured("products, fast", [1.0]),
    ]
    compare(rows, tokens=100, flops=1e9)
    assert engine_table(rows) == [
        "engine          tokens/s       ms  GFLOP/s  of products",
        "peer                  50  2000.00      0.5          50%",
        "products, fast            1000.00        1         100%",
        "ours  failed: ValueError: broken",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--repeats", "0"],
            "argument --repeats: must be a whole number, at least 1. Received: 0.",
        ),
        (["--part", "train-huge"], "argument --part: invalid choice: 'train-huge'"),
        (["--device", "gpu"], "--device gpu needs an NVIDIA GPU"),
        (["--part", "served", "--run", "r"], "--part served needs --run and --text"),
        (
            ["--device=gpu", "--part=served", "--run=r", "--text=t"],
            "--part served measures CPUs. Received: --device gpu",
        ),
        (["--json", "no/such/folder/out.json"], "there is no folder no/such/folder"),
    ],
)
def test_wrong_options_are_told_before_anything_runs(arguments, message, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(SystemExit):
        command.run(arguments)
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.fixture
def in_this_process(monkeypatch):
    """Engines are built here: each needs seconds to start in a process of its own."""
    # Not above, for the engines of this file do without them.
    import keras
    import tensorflow as tf

    def measured_here(candidates, repeats, steps):
        rows = []
        for label, build, workload in candidates:
            row = {"name": label, "unavailable": None, "seconds": []}
            try:
                engine = build(workload)
            except ModuleNotFoundError as error:
                row["unavailable"] = why_not(error)
            else:
                engine.prepare()
                row |= {"name": engine.name, "parameters": engine.num_parameters}
                row["result"] = engine.finish(engine.unit())
                row["seconds"] = [seconds_a_unit(engine, steps) for _ in range(repeats)]
            finally:
                keras.config.set_dtype_policy("float32")
            rows.append(row)
        return rows

    monkeypatch.setattr(parts, "measure", measured_here)
    monkeypatch.setattr(keras.backend, "clear_session", lambda: None)
    for name in ("intra", "inter"):  # it computes already
        monkeypatch.setattr(tf.config.threading, f"set_{name}_op_parallelism_threads", int)


@pytest.mark.filterwarnings("ignore")  # as in their own processes, whose streams are closed
@pytest.mark.parametrize(
    "place", ["in_this_process", pytest.param("counted", marks=pytest.mark.soak)],
    ids=["one process", "a process each"],
)  # fmt: skip
@pytest.mark.slow
def test_a_toy_run_measures_all_engines_that_are_installed(place, tmp_path, capsys, request):
    request.getfixturevalue(place)
    report_file = tmp_path / "report.json"
    options = [*TOY_RUN, "--dtype", "bfloat16", "--decode-batch", "2", "--json", str(report_file)]
    assert command.run(options) == 0, capsys.readouterr().out
    [measured] = json.loads(report_file.read_text())["runs"]
    training, decoding = measured["measurements"]
    for row in training["engines"] + decoding["engines"]:
        failure = row["unavailable"] or ""
        assert not failure.startswith("failed"), f"{row['name']} {failure}"
    engines = [row for row in training["engines"] if row.get("parameters")]
    assert len({row["parameters"] for row in engines}) == 1, "all train a model of one size"
    for row in engines:
        assert 3 < row["result"] < 6, f"the loss is near log(50): {row}"
    assert training["engines"][0]["seconds"] and decoding["engines"][0]["seconds"], "of ours"
    for row in decoding["engines"]:
        if row["seconds"]:
            assert row["result"] == [50], "every engine decodes exactly 50 tokens"
    assert "keras_transformer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("dtype", "theirs"), [("float32", ["float32", "int8"]), ("bfloat16", ["int8"])]
)
def test_our_weights_stand_against_like_ones_and_int8(dtype, theirs):
    ours, *peers = parts.decoding_candidates(WORKLOAD._replace(dtype=dtype))
    assert ours.workload.dtype == dtype
    assert [peer.workload.dtype for peer in peers] == theirs


def test_a_gpu_that_tensorflow_does_not_see_is_not_measured(machine, caplog, monkeypatch):
    machine(2)
    monkeypatch.setattr(command, "in_process", lambda *_: "")
    assert choose_device("cpu") == ("cpu", None) and not caplog.messages
    assert choose_device() == ("cpu", None)
    [message] = caplog.messages
    assert "TensorFlow sees no GPU" in message
    with pytest.raises(ValueError, match=r"NVIDIA GPUs that tensorflow does not see \(2\)"):
        choose_device("gpu")


class OnGPU:
    device, backend, threads = "gpu", "tensorflow", 1


def test_a_gpu_gets_larger_batches_in_bfloat16_and_compiled_steps():
    size = size_on("gpu", "base")
    assert size == size_on("cpu", "base")._replace(batch_size=256)
    workload = parts.workload_of(OnGPU, size, "bfloat16")
    ours, *peers = parts.training_candidates(workload)
    assert ours.workload.compiled and {peer.workload for peer in peers} == {ours.workload}
    ours, peer = parts.decoding_candidates(workload)
    assert ours.workload == peer.workload, "like with like"


@pytest.mark.soak
def test_compiled_steps_learn_as_plain_ones_do():
    """What a GPU runs, on the CPU: XLA and, where PyTorch is installed, torch.compile."""
    size = SIZES["toy"]
    workload = Workload(size, "bfloat16", size.batch_size, threads=1, compiled=True)
    rows = measure(parts.training_candidates(workload)[:3], repeats=1, steps=2)
    assert rows[0]["seconds"], "of ours"
    for row in rows:
        assert not (row["unavailable"] or "").startswith("failed"), row
        if row["seconds"]:
            assert 3 < row["result"] < 6, f"the loss is near log(50): {row}"
