"""Compare meg-vocab with Hugging Face's trainers.

vocab.py train DIR VOCAB_SIZE FILE...       train as meg-vocab does, and save vocab.json and merges.txt
vocab.py wordpiece DIR VOCAB_SIZE FILE...   train a WordPiece vocabulary in lower case, and save vocab.txt
vocab.py same DIR PREFIX FILE.jsonl...      compare the ids in PREFIX_text_document.bin with those of DIR/tokenizer.json
"""
import array
import json
import sys

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers


def texts(files):
    for path in files:
        with open(path, encoding="utf-8", newline="\n") as lines:
            for line in lines:
                if path.endswith(".jsonl"):
                    value = json.loads(line)["text"]
                    yield from [value] if isinstance(value, str) else value
                else:
                    yield line


def train(folder, size, *files):
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = level
    trainer = trainers.BpeTrainer(vocab_size=int(size), show_progress=False, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=level.alphabet())
    tokenizer.train_from_iterator(texts(files), trainer)
    tokenizer.model.save(folder)


def wordpiece(folder, size, *files):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=int(size), show_progress=False, special_tokens=special,
                                        limit_alphabet=1000)
    tokenizer.train_from_iterator(texts(files), trainer)
    tokenizer.model.save(folder)


def same(folder, prefix, *files):
    tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
    with open(prefix + "_text_document.bin", "rb") as f:
        ours = array.array("H", f.read())
    at = 0
    for number, text in enumerate(texts(files)):
        ids = tokenizer.encode(text).ids
        if list(ours[at:at + len(ids)]) != ids:
            sys.exit(f"text {number} differs: {text[:60]!r}")
        at += len(ids)
    if at != len(ours) or at == 0:
        sys.exit(f"{len(ours)} ids, not {at}")


{"train": train, "wordpiece": wordpiece, "same": same}[sys.argv[1]](*sys.argv[2:])
