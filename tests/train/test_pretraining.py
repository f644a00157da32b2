"""The commands from plain documents to a served label of a pretrained model."""

import random
import re
import shutil

import numpy as np
import pytest

from keras_transformer.data import LabelledStream, pack_segments
from keras_transformer.data.labelled_text import LabelledText
from keras_transformer.models.bert_models import bert_backbone
from keras_transformer.serving.publishing.c_api import ask
from tests.convert.folders import FAMILIES
from train import classification, pretraining
from train.classification import ClassificationConfig, ClassificationExperiment
from train.pretrained import fine_tuned_classifier
from train.pretraining import PretrainingConfig, PretrainingExperiment
from train.run import Run

from .conftest import run_eagerly

pytestmark = pytest.mark.slow

FLAGS = [
    "--vocabulary-size=80", "--num-layers=1", "--hidden-dim=32", "--intermediate-dim=32",
    "--num-heads=2", "--max-length=24", "--positions=40", "--batch-size=8", "--warmup-steps=5",
    "--peak-rate=0.005", "--checkpoint-every=30", "--average=1", "--dropout=0",
    "--attention-dropout=0", "--normalize-first", "--hold-out=20",
]  # fmt: skip
TUNING = [
    "--max-length=40", "--tokens-per-batch=320", "--warmup-steps=5", "--peak-rate=0.01",
    "--steps=40", "--checkpoint-every=40", "--average=1", "--hold-out=20",
]  # fmt: skip


def documents():
    """Rows of the same few words: the neighbours tell a word, and the topic a document."""
    draw = random.Random(3)
    for _ in range(100):
        topic = draw.choice(["cats purr at night", "dogs bark by day"])
        yield " ".join(f"The {topic}." for _ in range(draw.randint(4, 9))), topic[:3]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for number, (text, label) in enumerate(documents()):
        (folder / "reviews" / label).mkdir(parents=True, exist_ok=True)
        (folder / "reviews" / label / f"{number}.txt").write_text(text)
    flags = ["--documents", str(folder / "reviews"), *FLAGS]
    pretraining.main([*flags, "--steps=210", "--run", str(folder / "bert")])
    return folder, flags


@pytest.mark.usefixtures("told_results")
def test_masked_pieces_are_found(pretrained, capsys):
    folder, flags = pretrained
    assert "[CLS]" in (folder / "bert" / "attention.html").read_text()
    pretraining.main([*flags, "--steps=210", "--run", str(folder / "bert")])
    said = capsys.readouterr().out
    assert "is already trained" in said
    assert float(re.search(r"Masked pieces found: ([\d.]+)%", said)[1]) > 50, "one in five is a dot"
    history = Run(folder / "bert", PretrainingConfig).history()
    assert history["val_loss"][-1] < history["val_loss"][0]


def test_training_starts_from_the_frequencies_of_the_text(tmp_path):
    texts = [text for text, _ in documents()]
    config = PretrainingConfig(size="tiny", vocabulary_size=80, max_length=24)
    experiment = PretrainingExperiment(config, (texts, []))
    tokenizer = experiment.make_tokenizer()
    experiment.prepare(tmp_path / "data", tokenizer)
    batches = experiment.make_batches(tokenizer)
    model = experiment.build(tokenizer, batches)
    shares = np.exp(model.get_layer("masked_token_bias").get_weights()[0])
    dots = sum(text.count(".") for text in texts) / batches.num_tokens
    [[dot]] = tokenizer.tokenize(["."]).to_list()
    assert shares[dot] == pytest.approx(dots, rel=0.05) and shares.sum() == pytest.approx(1)


@pytest.mark.usefixtures("told_results", "unchecked_exports")
def test_a_pretrained_model_is_tuned_and_served(pretrained, capsys):
    folder, _ = pretrained
    flags = ["--pretrained", str(folder / "bert"), "--folder", str(folder / "reviews"), *TUNING]
    classification.main([*flags, "--run", str(folder / "tuned")])
    assert "Accuracy: 100.00% (20 of 20 texts)." in capsys.readouterr().out
    assert "[CLS]" in (folder / "tuned" / "attention.html").read_text()
    classification.main(
        ["export", "--run", str(folder / "tuned"), "--name", "topics", "--directory", str(folder)]
    )
    texts = ["The dogs bark by day.", "The cats purr at night. " * 20]
    [answer] = ask(folder / "topics" / "1", [{"inputs": {"text": texts}}])
    assert list(answer["outputs"]["label"]) == ["dog", "cat"]
    assert list(answer["outputs"]["truncated"]) == [False, True]


@pytest.mark.usefixtures("told_results")
def test_a_tuned_model_is_tuned_again_on_other_labels(pretrained, run_of, tmp_path, capsys):
    folder, _ = pretrained
    flags = ["--pretrained", str(folder / "bert"), "--folder", str(folder / "reviews"), *TUNING]
    classification.main([*flags, "--run", str(folder / "tuned")])
    texts = [text for text, _ in documents()][:60]
    lines = [f"{text}\t{'short' if len(text.split('.')) < 6 else 'long'}" for text in texts]
    (tmp_path / "lengths.tsv").write_text("\n".join(lines) + "\n")
    flags = ["--pretrained", str(folder / "tuned"), "--tsv", str(tmp_path / "lengths.tsv"), *TUNING]
    with run_eagerly(True):
        classification.main([*flags, "--steps=5", "--run", str(tmp_path / "again")])
    assert "of 20 texts" in capsys.readouterr().out
    tuned, again = (
        Run(path, ClassificationConfig).model().get_layer("token_embedding").get_weights()[0]
        for path in (folder / "tuned", tmp_path / "again")
    )
    assert 0 < np.abs(tuned - again).mean() < np.abs(tuned).mean(), "it went on from there"
    # A classifier that is no BERT is not taken for one.
    plain = run_of("classification")
    flags = ["--pretrained", str(plain), "--tsv", str(tmp_path / "lengths.tsv")]
    with pytest.raises(SystemExit):
        classification.main([*flags, "--run", str(tmp_path / "never")])
    assert "or a folder of BERT. Received" in capsys.readouterr().err


def test_a_text_to_tune_on_keeps_the_tokens_that_max_length_has_room_for(tmp_path):
    FAMILIES["bert"](tmp_path)
    texts = LabelledText(["a b " * 30, "a b " * 11], [("x",), ("y",)], ["x", "y"])
    config = ClassificationConfig(pretrained=str(tmp_path), max_length=24)
    experiment = ClassificationExperiment(config, (texts, None))
    tokenizer = experiment.make_tokenizer()
    experiment.prepare(tmp_path / "data", tokenizer)
    inputs, _ = next(iter(experiment.make_batches(tokenizer).epoch()))
    assert inputs["token_ids"].shape == (2, 24) and inputs["token_ids"].numpy().all(), "no padding"


@pytest.mark.parametrize("beside", [[], ["unsup/1", "urls"], ["cat/empty"]])
def test_pretraining_and_tuning_hold_out_the_same_texts(pretrained, beside, tmp_path):
    folder = shutil.copytree(pretrained[0] / "reviews", tmp_path / "reviews")
    for name in beside:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.txt").write_text("" if "empty" in name else name)
    given = {"hold_out": 20, "seed": 5}
    documents = PretrainingConfig(documents=str(folder), **given)
    labelled = ClassificationConfig(folder=str(folder), **given)
    (texts, held_out), (labelled_texts, labelled_held_out) = (
        PretrainingExperiment(documents).read_texts(),
        ClassificationExperiment(labelled).read_texts(),
    )
    assert held_out == labelled_held_out.texts
    assert texts == labelled_texts.texts + ["unsup/1"] * ("unsup/1" in beside)


def test_tuning_starts_with_the_pretrained_vectors_and_its_own_dropout(pretrained):
    folder, _ = pretrained
    run = Run(folder / "bert", PretrainingConfig)
    ids = run.tokenizer().tokenize(["The cats purr.", "The dogs bark by night."])
    inputs = pack_segments(run.tokenizer(), ids, max_length=24)
    expected = bert_backbone(run.model())(inputs)["vectors"].numpy()
    trained = run.model().get_layer("encoder").get_weights()
    text = LabelledStream(folder=folder / "reviews").read()
    for from_scratch in (False, True):
        config = ClassificationConfig(
            pretrained=str(run.path), from_scratch=from_scratch, pooling="first",
            token_dropout=0.75, dropout=0.25, attention_dropout=0.5, max_length=40,
        )  # fmt: skip
        model = ClassificationExperiment(config, (None, None)).pretrained.model
        model = fine_tuned_classifier(config, model, len(text.names))
        encoder = model.get_layer("encoder")
        assert (encoder.dropout, encoder.attention_dropout) == (0.25, 0.5)
        assert model.get_layer("token_dropout").rate == 0.75
        pairs = zip(encoder.get_weights(), trained, strict=True)
        assert all(np.array_equal(ours, theirs) for ours, theirs in pairs) != from_scratch
        vectors = bert_backbone(model)(inputs)["vectors"].numpy()
        assert (np.abs(vectors - expected).max() < 1e-5) != from_scratch


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], "Give one training text"),
        (["--documents=missing.txt"], "missing.txt, which does not exist"),
        (
            ["--documents={folder}", "--hold-out=99"],
            "must leave two documents for training, of 100. Received: 99",
        ),
        (["--documents={folder}", "--hold-out=1"], "at least 2 documents.*Received: --hold-out 1"),
        (
            ["--documents={folder}", "--vocabulary-size=60", "--size=huge"],
            "size must be one of tiny, mini",
        ),
        (
            ["--documents={folder}", "--max-length=513"],
            "--max-length must be at most --positions.*: --max-length 513, --positions 512",
        ),
        (
            ["--documents={folder}", "--label-smoothing=0.1"],
            "--label-smoothing must be 0.*Received: --label-smoothing 0.1",
        ),
        (
            ["--documents={folder}", "--masking-rate=15"],
            "--masking-rate must be a number, above 0 and at most 1. Received: 15",
        ),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(pretrained, flags, expected, tmp_path, capsys):
    flags = [flag.format(folder=pretrained[0] / "reviews") for flag in flags]
    with pytest.raises(SystemExit) as caught:
        pretraining.main([*flags, "--run", str(tmp_path / "run")])
    message = capsys.readouterr().err
    assert caught.value.code == 2 and message.count("\n") == 1
    assert re.search(expected, message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            ["--num-layers=3"],
            "has its own dimensions and vocabulary. Received: .* and --num-layers 3",
        ),
        (
            ["--tokens=pieces", "--no-normalize-first"],
            "and --no-normalize-first, --tokens pieces",
        ),
        (["--max-length=41"], "must be 3 to 40 tokens"),
    ],
)
def test_what_a_pretrained_model_cannot_have_is_refused(
    pretrained, flags, expected, tmp_path, capsys
):
    folder, _ = pretrained
    flags = ["--pretrained", str(folder / "bert"), "--folder", str(folder / "reviews"), *flags]
    with pytest.raises(SystemExit):
        classification.main([*flags, "--run", str(tmp_path / "run")])
    assert re.search(expected, capsys.readouterr().err)
