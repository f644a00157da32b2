import random

import tensorflow as tf

from keras_transformer.tokenizers.known_words import KnownWords


def test_drawn_words_have_their_ids_and_others_the_unknown_one():
    draw = random.Random(3)
    letters = "abcd\u0628\U0001f99c"
    words = sorted({"".join(draw.choices(letters, k=draw.randint(1, 5))) for _ in range(900)})
    draw.shuffle(words)
    ids = {word: index + 4 for index, word in enumerate(words[:400])}
    drawn = draw.choices(words, k=500)
    found = KnownWords(ids).ids(tf.constant(drawn), 1).numpy().tolist()
    assert found == [ids.get(word, 1) for word in drawn]
    assert 50 < found.count(1) < 400
