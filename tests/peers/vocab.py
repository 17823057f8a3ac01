"""Compare meg-vocab with Hugging Face's BPE trainer.

vocab.py train DIR VOCAB_SIZE FILE...       train as meg-vocab does, and save vocab.json and merges.txt
vocab.py same DIR PREFIX FILE.jsonl...      compare the ids in PREFIX_text_document.bin with those of DIR/tokenizer.json
"""
import array
import json
import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers


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


{"train": train, "same": same}[sys.argv[1]](*sys.argv[2:])
