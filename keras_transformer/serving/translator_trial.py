"""What a translator is asked before it is published."""

import numpy as np

from keras_transformer.tokenizers.sentencepiece import START_ID


def try_translator(ask, texts, hard_texts):
    """Asks every signature; arguments as of `ServedModule.try_out`."""
    all_texts = np.concatenate([texts, hard_texts])
    ask("serving_default", text=all_texts)
    ask("serving_default", text=texts[:1])
    first = ask("serving_default", text=texts)["translation"]
    prefixes = [text[: len(text) // 2].decode(errors="ignore").encode() for text in first]
    ask("translate_nbest", **nbest_inputs(texts, prefixes, lengths=[5] * len(texts)))
    ask(
        "translate_nbest",
        **nbest_inputs(all_texts, [b""] * len(all_texts), [0, 1] * len(all_texts)),
    )

    tokens = ask("tokenize", text=texts)
    ids, lengths = tokens["token_ids"], tokens["length"]
    strange = np.where(ids % 5 == 0, -7, np.where(ids % 7 == 0, 2**30, ids)).astype(np.int32)
    ask("detokenize", token_ids=strange, length=lengths)
    ask("encode", source_ids=strange, source_length=lengths)
    state = ask("encode", source_ids=ids, source_length=lengths)
    token_ids = np.full(len(texts), START_ID, np.int32)
    for _ in range(2):
        answer = ask("decode_step", token_ids=token_ids, **state)
        token_ids = answer["logits"].argmax(-1).astype(np.int32)
        state = {**state, "cache": answer["cache"], "cache_length": answer["cache_length"]}
    ask("logits", source_ids=ids, source_length=lengths, target_ids=ids, target_length=lengths)


def nbest_inputs(texts, prefixes, lengths):
    """The inputs of `translate_nbest`; of more prefixes or lengths than texts the first ones."""
    count = len(texts)
    return {
        "text": texts,
        "target_prefix": np.array(prefixes, object)[:count],
        "max_length": np.array(lengths, np.int32)[:count],
    }
