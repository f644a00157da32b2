"""Makes tiny runs of OpenNMT-tf, and records what it does with them.

In an environment of its own, of Python 3.8 to 3.11 (TensorFlow before 2.14):

    pip install "OpenNMT-tf[tensorflow]==2.32.0" sentencepiece
    python tests/convert/record_opennmt.py tests/convert/opennmt_runs.zip

Each folder is what training leaves, without all checkpoints but the average in `avg`; and the
YAML file of the training, vocabularies and SentencePiece models. recorded.npz holds random ids
with their logits, and texts with their ids and translations, of `avg`.
"""

import pathlib
import shutil
import sys
import tempfile

import numpy as np
import opennmt
import sentencepiece
import tensorflow as tf
import yaml
from opennmt.utils.checkpoint import Checkpoint

SIZES = "num_layers=2, num_units=8, num_heads=2, ffn_inner_dim=12"
ALL = "share_embeddings=models.EmbeddingsSharingLevel.ALL"
MODELS = {
    "base": (SIZES, {}),
    "shared": (f"{SIZES}, {ALL}", {"source_sequence_controls": {"end": True}}),
    "post_norm": (
        f"{SIZES}, {ALL}, pre_norm=False, mha_bias=False, output_layer_bias=False, "
        "ffn_activation=tf.nn.gelu",
        {},
    ),
}
TEXTS = ("a dog runs in the park", "two men talk", "the woman with a red hat reads", "dogs!", "Zoë")
SENTENCES = (
    "a man reads in the park", "two dogs run with a red ball", "the woman talks to a dog",
    "a child in a red hat runs", "the men talk on the street", "a cat sleeps under the tree",
)  # fmt: skip
TRANSLATIONS = (
    "ein Mann liest im Park", "zwei Hunde laufen mit einem Ball", "die Frau spricht mit einem Hund",
    "ein Kind mit rotem Hut läuft", "die Männer reden auf der Straße", "eine Katze schläft",
)  # fmt: skip
NUM_WORDS, FILLED = 60, 265
SPREAD, ENDS, NEVER, LONGEST = 0.6, 1.0, 9.0, 30


def train_pieces(path, sentences, size, filled=0):
    """A SentencePiece model without a table of normalisation, and its vocabulary file."""
    with open(path, "wb") as model:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences), model_writer=model, vocab_size=size,
            model_type="bpe", normalization_rule_name="identity", minloglevel=2,
        )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    pieces = [processor.id_to_piece(index) for index in range(3, len(processor))]
    words = ["<blank>", "<s>", "</s>", *pieces]
    words += [f"averyunlikelytoken{index}" for index in range(filled - len(words))]
    path.with_suffix(".vocab").write_text("".join(f"{word}\n" for word in words), "utf-8")


def write_run(folder, arguments, controls, seed):
    """Two checkpoints of random weights, and their average."""
    (folder / "model_description.py").write_text(
        "import tensorflow as tf\nfrom opennmt import models\n\n"
        f"model = lambda: models.Transformer({arguments})\n"
    )
    shared = ALL in arguments
    # As onmt-build-vocab --size_multiple does; the last row is of the unknown.
    filled = FILLED - 1 if folder.name == "post_norm" else 0
    train_pieces(folder / "source.model", SENTENCES + TRANSLATIONS * shared, NUM_WORDS, filled)
    if not shared:
        train_pieces(folder / "target.model", TRANSLATIONS, 48)
    target = "source" if shared else "target"
    config = {
        "model_dir": "run",
        "data": {
            "source_vocabulary": "data/source.vocab",
            "target_vocabulary": f"data/{target}.vocab",
            "source_tokenization": of_pieces("data/source.model"),
            "target_tokenization": of_pieces(f"data/{target}.model"),
            **controls,
        },
        "params": {"beam_width": 4, "length_penalty": 0.6, "maximum_decoding_length": LONGEST},
    }
    (folder / "data.yml").write_text(yaml.safe_dump(config))
    runner = runner_of(folder, folder)
    model = opennmt.load_model(str(folder))
    model.initialize(paths_in(folder, config)["data"])
    model.create_variables()
    draw = np.random.default_rng(seed)
    for step in (1, 2):
        for variable in model.variables:
            middle = float("gamma" in variable.name)
            value = middle + SPREAD * draw.standard_normal(variable.shape)
            if len(value) == FILLED:
                value[[0, 1, *range(NUM_WORDS, FILLED - 1)]] *= 0.01  # no text has trained them
            if variable.shape == (model.labels_inputter.vocabulary_size,):  # the bias of logits
                value[:3] += [-NEVER, -NEVER, ENDS]  # <blank>, <s>, </s>
            variable.assign(value)
        Checkpoint(model, model_dir=str(folder)).save(step)
    runner.average_checkpoints(str(folder / "avg"))


def of_pieces(path):
    return {"type": "SentencePieceTokenizer", "params": {"model": path}}


def paths_in(folder, config):
    """The config with its paths into `data` pointing to a folder."""
    if isinstance(config, dict):
        return {name: paths_in(folder, value) for name, value in config.items()}
    is_path = isinstance(config, str) and config.startswith("data/")
    return str(folder / config[5:]) if is_path else config


def runner_of(folder, model_dir, **params):
    config = paths_in(folder, yaml.safe_load((folder / "data.yml").read_text()))
    config["model_dir"] = str(model_dir)
    config["params"].update(optimizer="SGD", learning_rate=1.0, **params)
    return opennmt.Runner(opennmt.load_model(str(folder)), config)


def record(folder, seed):
    config = paths_in(folder, yaml.safe_load((folder / "data.yml").read_text()))
    model = opennmt.load_model(str(folder))
    model.initialize(config["data"], params=config["params"])
    model.create_variables()
    Checkpoint(model).restore(str(folder / "avg"), weights_only=True)
    draw, lengths = np.random.default_rng(seed), np.array([9, 4, 7])
    source, target = model.features_inputter, model.labels_inputter
    source_ids = draw.integers(3, source.vocabulary_size, (3, 9))
    source_ids *= np.arange(9) < lengths[:, None]
    target_ids = draw.integers(3, target.vocabulary_size, (3, 6))
    target_ids[:, 0] = opennmt.START_OF_SENTENCE_ID
    outputs, _ = model(
        {"ids": tf.constant(source_ids), "length": tf.constant(lengths)},
        labels={"ids": tf.constant(target_ids), "length": tf.fill([3], 6)},
        training=None,
    )
    recorded = {"source_ids": source_ids, "target_ids": target_ids, "logits": outputs["logits"]}
    for row, text in enumerate(TEXTS):
        recorded[f"ids_{row}"] = source.make_features(tf.constant(text))["ids"]
    with tempfile.TemporaryDirectory() as work:
        sources, translated = pathlib.Path(work, "in.txt"), pathlib.Path(work, "out.txt")
        sources.write_text("".join(f"{text}\n" for text in TEXTS), "utf-8")
        for name, beams in (("greedy", 1), ("beam", 4)):
            runner = runner_of(folder, folder, beam_width=beams)
            runner.infer(str(sources), str(translated), checkpoint_path=str(folder / "avg"))
            recorded[name] = np.array(translated.read_text("utf-8").split("\n")[:-1])
    np.savez_compressed(
        folder / "recorded.npz",
        texts=np.array(TEXTS),
        **{name: np.asarray(value) for name, value in recorded.items()},
    )


def main(path):
    with tempfile.TemporaryDirectory() as work:
        for seed, (name, (arguments, controls)) in enumerate(MODELS.items()):
            folder = pathlib.Path(work, name)
            folder.mkdir()
            write_run(folder, arguments, controls, seed)
            record(folder, seed)
            for checkpoint in [folder / "checkpoint", *folder.glob("ckpt-*")]:
                checkpoint.unlink()
        shutil.make_archive(path.removesuffix(".zip"), "zip", work)


if __name__ == "__main__":
    main(sys.argv[1])
