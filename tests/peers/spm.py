"""Compare ids and texts of SentencePiece models with SentencePiece.

spm.py encode MODEL PREFIX FILE.jsonl   compare the ids in PREFIX_text_document.bin and .idx with those of FILE's texts
spm.py decode MODEL LINES               compare the texts in LINES, of meg-preprocess --decode --json, with those of its ids
spm.py random SEED COUNT [MODEL]        make COUNT random models with all types of pieces and normalizers, one after the
                                        other, and compare ids of random texts and texts of random ids; some models have
                                        the character map of MODEL or, without it, a small one
spm.py reference SEED COUNT DIR         write such models to DIR, and what SentencePiece encodes and decodes with them:
                                        tests/data/spm
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

import compare
import sentencepiece

NAME = f"SentencePiece {sentencepiece.__version__}"


def encode(model, prefix, path):
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=model)
    return compare.ids(prefix, path, NAME, compare.each(tokenizer.encode_as_ids))


def decode(model, documents):
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=model)
    return compare.texts(documents, NAME, compare.each(tokenizer.decode_ids))


# ---- random models ----

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
UNIGRAM, BPE = 1, 2


def varint(n):
    out = b""
    n &= (1 << 64) - 1
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def field(number, value):
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def fields(message):
    at = 0

    def read():
        nonlocal at
        n = shift = 0
        while True:
            byte, at = message[at], at + 1
            n, shift = n | (byte & 127) << shift, shift + 7
            if byte < 128:
                return n

    while at < len(message):
        tag = read()
        if tag & 7 == 0:
            yield tag >> 3, read()
        else:
            n = read() if tag & 7 == 2 else {1: 8, 5: 4}[tag & 7]
            at += n
            yield tag >> 3, message[at - n:at]


def charsmap_of(model):
    with open(model, "rb") as f:
        return dict(fields(dict(fields(f.read()))[3]))[2]


def small_charsmap():
    rules = {"A": "a", "\t": " ", "\n": " ", "\u3000": " ", "é": "e", "e\u0301": "é", "ﬁ": "fi", "\uff21": "A",
             "\u0323": "", "語日": "  x ", "a\u0301\u0323": "\u2581"}
    texts, trie, units = b"", {}, [0] * 256
    for rule, text in rules.items():
        node = trie
        for byte in rule.encode():
            node = node.setdefault(byte, {})
        node[None] = len(texts)
        texts += text.encode() + b"\0"

    used, bases = {0}, {0}

    def set_unit(at, label, node):
        base = next(b for b in range(1, 1 << 16) if b not in bases and not any(
            b ^ (byte or 0) in used for byte in node))
        bases.add(base)
        used.update(base ^ (byte or 0) for byte in node)
        units.extend([0] * ((base | 255) + 1 - len(units)))
        units[at] = label | (None in node) << 8 | (base ^ at) << 10
        for byte, child in node.items():
            if byte is None:
                units[base] = 1 << 31 | child
            else:
                set_unit(base ^ byte, byte, child)

    set_unit(0, 0, trie)
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + texts


ALPHABETS = ["ab", "ab ", "abc \u2581", "aé ", "語日本 a", "ab<>s/ ", "e\u0301\u0323A\uff21ﬁ \u3000\t\n", "a😀é語 \u2581.,",
             "ab\u0000\u2047 \ufffd", "0123456789- "]


def make_text(r, alphabet, n):
    return "".join(r.choice(alphabet) for _ in range(r.randint(0, n)))


def make_model(r, alphabet, charsmap):
    model_type, fallback, escape = r.choice([UNIGRAM, BPE]), r.random() < 0.3, r.random() < 0.9
    score = r.choice([lambda: -r.random() * 10, lambda: -float(r.randint(1, 4)), lambda: r.random() * 2 - 1,
                      lambda: -1 / r.randint(1, 6), lambda: r.gauss(-5, 1)])
    letters = alphabet.replace("\0", "").replace("\n", "").replace("\t", "")
    texts, pieces = set(), [(b"<unk>", 0.0, UNKNOWN), (b"<s>", 0.0, CONTROL), (b"</s>", 0.0, CONTROL)]
    for _ in range(r.choice([3, 10, 40, 200])):
        text = make_text(r, letters, r.choice([2, 3, 6, 12]))
        text = text.replace(" ", "\u2581") if escape or r.random() < 0.5 else text
        type = r.choices([NORMAL, USER_DEFINED, UNUSED, CONTROL], r.choice([(1, 0, 0, 0), (20, 2, 2, 1), (2, 1, 1, 0)]))[0]
        if type == CONTROL and len(text) == 1:
            continue  # SentencePiece would match it in a text, and then fail
        if text and text not in texts and text != "<s>" and text != "</s>":
            texts.add(text)
            pieces.append((text.encode(), score(), type))
    if not any(type in (NORMAL, USER_DEFINED, UNUSED) for _, _, type in pieces):
        pieces.append((b"a", score(), NORMAL))
    if fallback:
        pieces[3:3] = [(b"<0x%02X>" % b, 0.0, BYTE) for b in range(256)]
    trainer = field(3, model_type) + field(35, int(fallback)) + field(24, int(r.random() < 0.2))
    if r.random() < 0.2:
        trainer += field(44, r.choice([b"", b"?", " \u2047".encode()]))
    norm = field(3, int(r.random() < 0.7)) + field(4, int(r.random() < 0.5)) + field(5, int(escape))
    if charsmap and r.random() < 0.4:
        norm += field(2, charsmap)
    model = b"".join(field(1, field(1, t) + field(2, s) + field(3, k)) for t, s, k in pieces)
    return model + field(2, trainer) + field(3, norm)


def run(*words):
    return subprocess.run(["meg-preprocess", "-q", *words], check=True, stdout=subprocess.PIPE).stdout.decode()


def write_lines(path, texts):
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps({"text": text}) + "\n" for text in texts)


def compare_model(folder, r, alphabet):
    model, lines, prefix = folder + "/model", folder + "/lines.jsonl", folder + "/ids"
    type = ["--tokenizer-type", "GPTSentencePieceTokenizer", "--tokenizer-model", model]
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=model)
    texts_ = [make_text(r, alphabet, r.choice([4, 20, 300])) for _ in range(60)]
    write_lines(lines, texts_)
    run("--input", lines, "--output-prefix", prefix, *type)
    encode(model, prefix, lines)
    ids = [[r.randrange(len(tokenizer)) for _ in range(r.randint(1, 12))] for _ in range(60)]
    write_lines(lines, [" ".join(map(str, x)) for x in ids])
    run("--input", lines, "--output-prefix", prefix, "--tokenizer-type", "NullTokenizer", "--vocab-size",
        str(len(tokenizer)))
    decoded = [json.loads(line)["text"] for line in run("--decode", prefix + "_text_document", "--json", *type).split("\n")[:-1]]
    for number, (x, ours) in enumerate(zip(ids, decoded, strict=True)):
        if ours != tokenizer.decode_ids(x):
            compare.show(number, str(x), ours, tokenizer.decode_ids(x), NAME)


def random_models(seed, count, model=None):
    table = charsmap_of(model) if model else small_charsmap()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(int(count)):
            r = random.Random(f"{seed} {number}")
            alphabet = r.choice(ALPHABETS)
            with open(folder + "/model", "wb") as f:
                f.write(make_model(r, alphabet, table))
            try:
                compare_model(folder, r, alphabet)
            except (SystemExit, subprocess.CalledProcessError) as e:
                os.replace(folder + "/model", f"random-{seed}-{number}.model")
                sys.exit(f"random-{seed}-{number}.model: {e}")
    return f"{count} random models"


def reference(seed, count, folder):
    for number in range(int(count)):
        r = random.Random(f"{seed} {number}")
        path = f"{folder}/{number}"
        alphabet = r.choice(ALPHABETS)
        with open(path + ".model", "wb") as f:
            f.write(make_model(r, alphabet, small_charsmap()))
        tokenizer = sentencepiece.SentencePieceProcessor(model_file=path + ".model")
        texts_ = [make_text(r, alphabet, r.choice([4, 20, 60])) for _ in range(30)]
        ids = [[r.randrange(len(tokenizer)) for _ in range(r.randint(1, 12))] for _ in range(30)]
        with open(path + ".jsonl", "w", encoding="utf-8") as f:
            for text in texts_:
                f.write(json.dumps({"encode": text, "ids": tokenizer.encode_as_ids(text)}) + "\n")
            for x in ids:
                f.write(json.dumps({"decode": x, "text": tokenizer.decode_ids(x)}) + "\n")


commands = {"encode": encode, "decode": decode, "random": random_models, "reference": reference}
done = commands[sys.argv[1]](*sys.argv[2:])
if done:
    print(f"{NAME}: {done}, 0 differ")
