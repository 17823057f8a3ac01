"""Compare ids and texts of Hugging Face tokenizer directories with Hugging Face's tokenizers.

hf.py encode DIR PREFIX FILE.jsonl   compare the ids in PREFIX_text_document.bin with those of FILE's texts, with special
                                     tokens added around each text
hf.py plain DIR PREFIX FILE.jsonl    the same without special tokens, neither added nor matched in a text
hf.py decode DIR LINES               compare the texts in LINES, of meg-preprocess --decode --json, with those of its ids
"""
import sys

import compare
import tokenizers

NAME = f"tokenizers {tokenizers.__version__}"


def load(folder):
    tokenizer = tokenizers.Tokenizer.from_file(folder + "/tokenizer.json")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def encode_all(tokenizer, add_special_tokens):
    return lambda texts: [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)]


def encode(folder, prefix, path):
    return compare.ids(prefix, path, NAME, encode_all(load(folder), True))


def plain(folder, prefix, path):
    tokenizer = load(folder)
    tokenizer.encode_special_tokens = True
    return compare.ids(prefix, path, NAME, encode_all(tokenizer, False))


def decode(folder, documents):
    """Compare decoded texts.  tokenizers 0.23 and later decode a token that is matched in normalized text as it is
    written there, "▁</s>" for "</s>": texts with such a token inside are skipped."""
    tokenizer = load(folder)
    is_new = tuple(map(int, tokenizers.__version__.split(".")[:2])) >= (0, 23)
    normalized = tokenizer.normalizer.normalize_str if is_new and tokenizer.normalizer else str
    respelled = {i for i, token in tokenizer.get_added_tokens_decoder().items()
                 if token.normalized and normalized(token.content) != token.content}
    return compare.texts(documents, NAME, lambda ids: tokenizer.decode_batch(ids, skip_special_tokens=False),
                         lambda ids: respelled.isdisjoint(ids[1:]))


done = {"encode": encode, "plain": plain, "decode": decode}[sys.argv[1]](*sys.argv[2:])
print(f"{NAME}: {done}, 0 differ")
