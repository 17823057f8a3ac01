"""Compare ids of random tokenizer directories, and of given ones, with those of AutoTokenizer of transformers.

hf_folders.py make DIR COUNT SEED TEXTS [TOKENIZER.json...]
    Write COUNT random directories DIR/0, DIR/1, ... that transformers can open, one directory for each class of a given
    tokenizer.json, and the texts TEXTS.  DIR/list has a line for each: name, class, and -, followed by --append-eod if
    there is an end token.
hf_folders.py check DIR TEXTS
    Compare the ids in DIR/NAME.ids_text_document with those of transformers, and print how many are equal.
"""
import collections
import json
import os
import random
import sys
import warnings

import compare

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.simplefilter("ignore")
import tokenizers
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

transformers.logging.set_verbosity(transformers.logging.CRITICAL)
WORDS = ("the licence of this program is free software and you may change it under its terms Foo BAR café naïve "
         "1234 x=y; don't re-use 中文 字").split()
# Names of special tokens: defaults of classes, others, and words of the vocabulary.
NAMES = ["<s>", "</s>", "<unk>", "<pad>", "<mask>", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]", "<|endoftext|>",
         "<|end|>", "<usr>", "<bot>", "<|im_start|>", "<stop>", "Foo", "bar", "the", "<Mixed Case>", "é", "<extra_id_0>",
         "<bos>", "<eos>", "\u2581<EOT>", "licence "]
CLASSES = {
    "byte": ["PreTrainedTokenizerFast", "GPT2Tokenizer", "GPTNeoXTokenizer", "GPTNeoXTokenizerFast", "CohereTokenizer",
             "Qwen2Tokenizer", "BloomTokenizerFast", "RobertaTokenizer", "BartTokenizer", "LongformerTokenizer",
             "BlenderbotTokenizer", "LEDTokenizer", "MvpTokenizer", "DebertaTokenizer", "CodeGenTokenizer",
             "WhisperTokenizer", "LlamaTokenizerFast", None],
    "spm": ["PreTrainedTokenizerFast", "LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "GemmaTokenizer",
            "NougatTokenizerFast", "XGLMTokenizer", None],
    "wordpiece": ["PreTrainedTokenizerFast", "BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer",
                  "ElectraTokenizer", "ConvBertTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer",
                  "LxmertTokenizer", "LayoutLMTokenizer", "FunnelTokenizer", "MPNetTokenizer", None],
    "unigram": ["PreTrainedTokenizerFast", "T5Tokenizer", "MT5Tokenizer", "AlbertTokenizer", "XLNetTokenizer",
                "XLMRobertaTokenizer", "CamembertTokenizer", "BigBirdTokenizer", "RemBertTokenizer", "FNetTokenizer",
                "ReformerTokenizer", "BarthezTokenizer", "DebertaV2Tokenizer", "HerbertTokenizer", None],
}
MODEL_TYPES = {"byte": ["gpt2", "gpt_neox", "qwen2", "falcon", "roberta", "cohere"], "spm": ["llama", "gemma", "mistral"],
               "wordpiece": ["bert", "distilbert", "mpnet"], "unigram": ["t5", "xlnet", "albert", "xlm-roberta"]}
ROLES = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]
r = random.Random()


def chance(p):
    return r.random() < p


def text():
    parts = [r.choice([r.choice(WORDS), r.choice(NAMES), r.choice(NAMES).upper(), r.choice(["a", "B", "\n", ".", "\u2581"])])
             for _ in range(r.randrange(1, 12))]
    return "".join(part + r.choice(["", " ", " ", "  ", "\t"]) for part in parts)


def base(model):
    """Return a small tokenizer of one of four models, with random components."""
    corpus = [" ".join(r.choices(WORDS, k=20)) for _ in range(200)]
    special = r.sample(NAMES, r.randrange(1, 5))
    if model == "byte":
        t = tokenizers.Tokenizer(models.BPE())
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=chance(0.3))
        t.pre_tokenizer = byte_level if chance(0.6) else pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), byte_level])
        t.normalizer = normalizers.NFC() if chance(0.3) else None
        t.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    elif model == "spm":
        special = ["<unk>"] + [f"<0x{i:02X}>" for i in range(256)] + [s for s in special if s != "<unk>"]
        t = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        if chance(0.6):
            t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        else:
            t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=r.choice(["first", "always", "never"]), split=False)
        t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
        corpus = [line.replace(" ", "\u2581") for line in corpus]
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False, max_token_length=8)
    elif model == "wordpiece":
        special = ["[UNK]"] + [s for s in special if s != "[UNK]"]
        t = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        t.normalizer = normalizers.BertNormalizer(lowercase=chance(0.5), strip_accents=r.choice([None, True, False]),
                                                  handle_chinese_chars=chance(0.7))
        t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        t.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    else:
        special = ["<unk>"] + [s for s in special if s != "<unk>"]
        t = tokenizers.Tokenizer(models.Unigram())
        t.normalizer = r.choice([None, normalizers.Lowercase(), normalizers.NFKC(), normalizers.Strip()])
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=r.choice(["first", "always", "never"]))
        t.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>", show_progress=False)
    if model == "unigram":  # the trainer would add a special token of one character twice
        trainer.special_tokens = [token for token in trainer.special_tokens if len(token.content) > 1]
    t.train_from_iterator(corpus, trainer)
    names = list(t.get_added_tokens_decoder().values())
    first, last = (r.choice(names).content for _ in range(2))
    ids = [(name, t.token_to_id(name)) for name in {first, last}]
    if chance(0.4):
        t.post_processor = processors.TemplateProcessing(
            single=r.choice([[first, "$A"], ["$A", last], [first, "$A", last]]), special_tokens=ids)
    elif chance(0.3):
        t.post_processor = r.choice([processors.BertProcessing, processors.RobertaProcessing])(
            (last, t.token_to_id(last)), (first, t.token_to_id(first)))
    return json.loads(t.to_str())


def added_token(content, with_type):
    token = {"content": content}
    for flag in "lstrip", "rstrip", "single_word", "normalized", "special":
        if chance(0.6):
            token[flag] = chance(0.3)
    return {**token, "__type": "AddedToken"} if with_type else token


def special(in_map):
    """A special token, as a file may give it."""
    name = r.choice(NAMES)
    return r.choice([name, name, name, None if chance(0.3) else name, added_token(name, not in_map)])


def roles(in_map):
    named = {role: special(in_map) for role in ROLES if chance(0.35)}
    if chance(0.4):
        named["additional_special_tokens"] = [token for token in (special(in_map) for _ in range(r.randrange(4))) if token]
    return named


def vary_added_tokens(tokenizer):
    for token in tokenizer["added_tokens"]:
        for flag in "lstrip", "rstrip", "single_word", "normalized", "special":
            if chance(0.1):
                token[flag] = not token[flag]


def files(model):
    """Return the files of a random directory, and the class."""
    tokenizer, config, out = base(model), {}, {}
    vary_added_tokens(tokenizer)
    vocab_size = len(tokenizer["model"]["vocab"])
    name = r.choice(CLASSES[model])
    if name:
        config["tokenizer_class"] = name
    if not name or chance(0.1):
        out["config.json"] = {"model_type": r.choice(MODEL_TYPES[model])}
    config.update(roles(False))
    if chance(0.5):
        decoder = {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in tokenizer["added_tokens"]} \
            if chance(0.8) else {}
        for i in range(r.randrange(4)):
            decoder[str(r.choice([vocab_size + i, r.randrange(vocab_size)]))] = added_token(r.choice(NAMES), False)
        config["added_tokens_decoder"] = decoder
    for flag in "add_bos_token", "add_eos_token", "split_special_tokens", "do_lower_case", "strip_accents", \
            "tokenize_chinese_chars", "add_prefix_space":
        if chance(0.2) and (flag != "add_prefix_space" or model == "byte"):
            config[flag] = r.choice([True, False])
    if chance(0.1):
        config["extra_special_tokens"] = {"boi_token": r.choice(NAMES)}
    if chance(0.1) and model == "byte":
        tokenizer["padding"] = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                                "pad_type_id": 0, "pad_token": r.choice(NAMES)}
    if chance(0.9) or name:
        out["tokenizer_config.json"] = config
    if chance(0.4):
        out["special_tokens_map.json"] = roles(True)
    if chance(0.3):
        out["added_tokens.json"] = {n: r.choice([vocab_size + i, vocab_size + i, r.randrange(vocab_size)])
                                    for i, n in enumerate(r.sample(NAMES, r.randrange(1, 4)))}
    out["tokenizer.json"] = tokenizer
    return out, name or "of config.json"


def opens(folder):
    """Return the tokenizer, or None if transformers refuses the directory."""
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        tokenizer("a")
        return tokenizer if tokenizer.is_fast else None
    except Exception:
        return None


def write(folder, named):
    os.makedirs(folder, exist_ok=True)
    for name, value in named.items():
        with open(f"{folder}/{name}", "w", encoding="utf-8") as f:
            json.dump(value, f)


def clear(folder):
    for name in os.listdir(folder):
        os.unlink(f"{folder}/{name}")


def make(top, count, seed, texts, *given):
    r.seed(int(seed))
    listed = []

    def add(folder, class_name):
        tokenizer = opens(folder)
        if tokenizer is None:
            clear(folder)
            return False
        listed.append(f"{os.path.basename(folder)} {class_name.replace(' ', '-')} "
                      f"{'-' if tokenizer.eos_token_id is None else '---append-eod'}")
        return True

    refused = 0
    while len(listed) < int(count):
        named, class_name = files(list(CLASSES)[len(listed) % len(CLASSES)])
        folder = f"{top}/{len(listed)}"
        write(folder, named)
        refused += not add(folder, class_name)
    for path in given:
        for class_name in "PreTrainedTokenizerFast", "GPTNeoXTokenizer", "BertTokenizer", "LlamaTokenizer", "T5Tokenizer":
            folder = f"{top}/{os.path.basename(os.path.dirname(path))}-{class_name}"
            write(folder, {"tokenizer_config.json": {"tokenizer_class": class_name}})
            os.symlink(os.path.abspath(path), folder + "/tokenizer.json")
            add(folder, class_name)
    with open(top + "/list", "w") as f:
        f.write("".join(line + "\n" for line in listed))
    with open(texts, "w", encoding="utf-8") as f:
        for _ in range(200):
            f.write(json.dumps({"text": text()}) + "\n")
    return f"{len(listed)} directories, and {refused} that transformers refuses"


def check(top, texts):
    differ, classes = 0, collections.Counter()
    for line in open(top + "/list"):
        name, class_name, eod = line.split()
        tokenizer = transformers.AutoTokenizer.from_pretrained(f"{top}/{name}")
        end = [tokenizer.eos_token_id] if eod != "-" else []

        def encode(many):
            return [ids + end if ids else [] for ids in tokenizer(many, padding=False).input_ids]

        try:
            compare.ids(f"{top}/{name}.ids", texts, f"transformers {transformers.__version__}", encode)
            classes[class_name] += 1
        except (SystemExit, OSError) as why:
            differ += 1
            print(f"{name}, {class_name}: {why}")
    print(f"transformers {transformers.__version__}: ids of {sum(classes.values())} directories of {len(classes)} classes "
          f"are equal, those of {differ} differ")
    if differ or not classes:
        sys.exit(1)


if __name__ == "__main__":
    done = {"make": make, "check": check}[sys.argv[1]](*sys.argv[2:])
    if done:
        print(done)
