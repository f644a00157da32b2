"""DistilBERT and RoBERTa folders beside Hugging Face's own models, with random weights."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import convert
from keras_transformer.serving import Classifier
from tests.convert.test_bert import pieces
from tests.reference import array
from train import convert as command
from train.classification import main as classification
from train.demo.corpus import demo_corpus

pytestmark = pytest.mark.oracle
LABELS = {0: "bad", 1: "fair", 2: "good"}
HEADS = ["DistilBertModel", "DistilBertForMaskedLM", "DistilBertForSequenceClassification",
         "RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification",
         "RobertaForTokenClassification"]  # fmt: skip


def saved(path, head, hidden_act="gelu"):
    """A folder of `save_pretrained`, with its model and tokenizer."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    path.mkdir(exist_ok=True)
    names = {"id2label": LABELS, "label2id": {name: index for index, name in LABELS.items()}}
    if head.startswith("Distil"):
        vocabulary = {piece: i for i, piece in enumerate(pieces())}
        (path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces()), "utf-8")
        file = str(path / "vocab.txt")
        old = transformers.__version__ < "5"
        tokenizer = transformers.DistilBertTokenizer(file if old else vocabulary)
        config = transformers.DistilBertConfig(
            vocab_size=len(vocabulary), dim=32, n_layers=2, n_heads=4, hidden_dim=48,
            max_position_embeddings=40, activation=hidden_act, **names,
        )  # fmt: skip
    else:
        tokenizer = roberta_tokenizer(path)
        config = transformers.RobertaConfig(
            vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=48, max_position_embeddings=42, type_vocab_size=1, pad_token_id=1,
            hidden_act=hidden_act, layer_norm_eps=1e-5, **names,
        )  # fmt: skip
    model = getattr(transformers, head)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            middle = float("weight" in name and ("norm" in name.lower()))
            parameter.copy_(middle + 0.2 * torch.randn_like(parameter))
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return model, tokenizer


def roberta_tokenizer(path):
    import tokenizers
    import transformers

    learner = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    texts = demo_corpus(300).sources
    learner.train_from_iterator(texts, 400, special_tokens=special, show_progress=False)
    learner.save_model(str(path))
    files = [str(path / name) for name in ("vocab.json", "merges.txt")]
    if transformers.__version__ < "5":
        return transformers.RobertaTokenizer(*files)
    import json

    vocabulary = json.loads((path / "vocab.json").read_text("utf-8"))
    lines = (path / "merges.txt").read_text("utf-8").splitlines()[1:]
    return transformers.RobertaTokenizer(vocabulary, [tuple(line.split(" ")) for line in lines])


def theirs_of(path, head, size):
    """Their id at each of ours."""
    if head.startswith("Distil"):
        return np.arange(size)
    return convert.load_tokenizer_of(path)[1]


@pytest.mark.parametrize("hidden_act", ["gelu", "relu"])
@pytest.mark.parametrize("head", HEADS)
def test_outputs_are_those_of_hugging_face(head, hidden_act, tmp_path):
    import torch

    model, _ = saved(tmp_path, head, hidden_act)
    ours = convert.read(tmp_path).model
    of = theirs_of(tmp_path, head, model.config.vocab_size)
    generator = np.random.default_rng(1)
    ids = generator.integers(6, len(of), (3, 9)).astype("int32")
    ids[1, 6:] = 0
    real = ids > 0
    segments = (np.arange(9) > 4)[None].repeat(3, axis=0).astype("int32")  # which count nothing
    given = {"token_ids": ids, "segment_ids": segments}
    if "masked_positions" in ours.input:
        given["masked_positions"] = np.arange(9)[None].repeat(3, axis=0)
    outputs = ours(given)
    # In float64: of two results in float32 each differs from it by as much.
    with torch.no_grad():
        expected = model.double()(torch.tensor(of[ids]), attention_mask=torch.tensor(real).long())
    if head.endswith("Model"):
        pairs = [(outputs["vectors"], expected.last_hidden_state)]
        if head == "RobertaModel":
            pairs.append((outputs["pooled"], expected.pooler_output))
    elif head.endswith("MaskedLM"):
        pairs = [(outputs["masked_tokens"], expected.logits[..., of])]
    else:
        pairs = [(outputs, expected.logits)]
    for one, other in pairs:
        one, other = array(one), other.numpy()
        rows = real if one.shape[:2] == real.shape else slice(None)
        difference = np.abs(one[rows] - other[rows]).max()
        print(f"{head} {hidden_act}: {difference:.1e} of {np.abs(other).max():.1f}")
        assert difference < 1e-5


@pytest.mark.parametrize("head", ["DistilBert", pytest.param("Roberta", marks=pytest.mark.soak)])
def test_texts_have_their_labels_and_a_folder_is_fine_tuned(
    head, tmp_path, capsys, unchecked_exports, untold_results
):
    """The walk of an encoder: from a folder to a run that is served, and to others from both."""
    import tensorflow as tf
    import torch

    model, tokenizer = saved(tmp_path / "theirs", f"{head}ForSequenceClassification")
    command.main(["--from", str(tmp_path / "theirs"), "--run", str(tmp_path / "run")])
    classifier = Classifier.load(tmp_path / "run")
    texts = [text for text in demo_corpus(99, seed=3).sources if len(text) < 25]
    texts = [*texts, "naïve Café 12,50 €!"]
    given = tokenizer(texts, padding=True, return_tensors="pt", truncation=True, max_length=40)
    given.pop("token_type_ids", None)
    with torch.no_grad():
        expected = torch.softmax(model(**given).logits, -1).numpy()
    np.testing.assert_allclose(classifier.probabilities(texts), expected, atol=1e-5)
    path = classifier.export(tmp_path / "served", "labels")
    served = tf.saved_model.load(path).signatures["serving_default"](tf.constant(texts))
    np.testing.assert_allclose(served["probabilities"], expected, atol=1e-5)

    saved(tmp_path / "masked", f"{head}ForMaskedLM")
    lines = [f"{text}\t{'long' if len(text) > 30 else 'short'}" for text in demo_corpus(80).sources]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    flags = ["--tsv", str(tmp_path / "train.tsv"), "--max-length", "32", "--steps", "4"]
    flags += ["--warmup-steps", "1", "--tokens-per-batch", "512", "--pooling", "first"]
    for source in ("masked", "run") if head == "DistilBert" else ("masked",):
        run = tmp_path / f"tuned {source}"
        classification([*flags, "--pretrained", str(tmp_path / source), "--run", str(run)])
        tuned = Classifier.load(run)
        assert set(tuned(texts)) <= {"long", "short"}
        activation = tuned.model.get_layer("pooler").activation.__name__
        assert activation == ("relu" if head == "DistilBert" else "tanh")
    assert "loss" in capsys.readouterr().out


def test_a_bert_with_the_tokenizer_of_roberta_is_written_as_no_bert(tmp_path):
    saved(tmp_path / "theirs", "RobertaModel", "gelu_new")
    found = convert.read(tmp_path / "theirs")
    for form in ("huggingface", "keras_hub"):
        with pytest.raises(convert.ConversionError, match=r"WordPieceTokenizer.*Received: BytePa"):
            convert.write(found, form, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_bert_with_another_pooler_is_no_bert_of_theirs(tmp_path):
    saved(tmp_path / "theirs", "DistilBertForSequenceClassification", "gelu_new")
    found = convert.read(tmp_path / "theirs")
    for form in ("huggingface", "keras_hub"):
        with pytest.raises(convert.ConversionError, match=r"pooler.*Received.*relu"):
            convert.write(found, form, tmp_path / "again")


@pytest.mark.parametrize(
    ("head", "change", "message"),
    [
        ("RobertaModel", {"type_vocab_size": 2}, "type_vocab_size must be 1"),
        ("RobertaModel", {"pad_token_id": 0}, "pad_token_id must be 1"),
        (
            "DistilBertModel",
            {"architectures": ["DistilBertForMultipleChoice"]},
            "be a list",
        ),
        ("DistilBertModel", {"n_layers": 3}, r"must include transformer\.layer\.2\."),
    ],
)
def test_settings_that_do_not_fit_are_one_line(head, change, message, tmp_path):
    from tests.convert.folders import config_of, save_config

    saved(tmp_path, head)
    save_config(tmp_path, config_of(tmp_path) | change)
    with pytest.raises(convert.ConversionError, match=message):
        convert.read(tmp_path)


def test_byte_pairs_know_how_a_text_begins_and_ends():
    tokenizer = kt.tokenizers.train_byte_pairs(["to be or not to be"], 263)
    named = tokenizer.pad_id, tokenizer.unknown_id, tokenizer.class_id, tokenizer.separator_id
    assert tokenizer.pieces(named) == ["<pad>", "<unk>", "<s>", "</s>"]
