"""Check that transformers and llama.cpp's converter open directories that meg-convert wrote, with equal results.

folders.py make DIR SHAPE VOCAB NAME...    write models with random weights, DIR/NAME, of gpt2, llama, mistral or qwen2
folders.py check DIR TEXTS PROMPTS NAME... compare DIR/NAME-out with what the commands computed from DIR/NAME: the ids of
                                           TEXTS (NAME.ids), log-probabilities (NAME.logprobs) and continuations
                                           (NAME.replies) of PROMPTS; print a line for each, "NAME: " or "NAME differs: "
folders.py vocab DIR IDS TEXTS             compare the ids of TEXTS, by DIR as meg-vocab writes it, with those in IDS
folders.py gguf CONVERTER DIR NAME         convert DIR/NAME-out with llama.cpp's convert_hf_to_gguf.py, and compare tokens
                                           and EOS of the file with tokenizer.json
"""
import json
import subprocess
import sys
import unicodedata

import compare

TOLERANCE = 1e-5  # of log-probabilities
MAX_TEXT = 2000  # characters


def make(folder, shape, vocab, *names):
    import torch
    import transformers as t

    torch.manual_seed(1)
    vocab = int(vocab)
    sizes = dict(vocab_size=vocab, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.3, tie_word_embeddings=False)
    model = {
        "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(vocab_size=vocab, n_embd=32, n_layer=2, n_head=4, n_positions=128,
                                                       initializer_range=0.3)),
        "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**sizes)),
        "mistral": lambda: t.MistralForCausalLM(t.MistralConfig(**sizes, sliding_window=None)),
        "qwen2": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**sizes)),
    }[shape]()
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):  # use those of the tokenizer
        setattr(model.config, key, None)
        setattr(model.generation_config, key, None)
    for name in names:
        model.save_pretrained(f"{folder}/{name}")
        subprocess.run(["rm", "-f", f"{folder}/{name}/generation_config.json"], check=True)


class Differs(Exception):
    pass


def has_stack(text):
    marks = [unicodedata.combining(c) != 0 for c in text]
    return any(a and b for a, b in zip(marks, marks[1:]))


def ids(tokenizer, name, path):
    """Compare ids of texts, except texts that contain a special token.  With a unigram model the order of ids may
    differ, and two more types of texts are skipped: long texts, because SentencePiece rounds the score of all text so
    far to float, and texts with several accents on a letter, some of which tokenizers' Precompiled removes; see
    tokenizer/export/spm.c."""
    added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    model_type = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["type"]
    texts = [line["text"] for line in compare.read(path)]
    ours = [line["ids"] for line in compare.read(name + ".ids")]
    skipped = ties = total = 0
    at = iter(ours)
    theirs = tokenizer.backend_tokenizer.encode_batch(texts)
    slow = [tokenizer(text).input_ids for text in texts[:200]]
    for number, (text, encoding) in enumerate(zip(texts, theirs)):
        is_skipped = any(token in text for token in added) or (model_type == "Unigram" and
                                                                (len(text) > MAX_TEXT or has_stack(text)))
        if number < len(slow) and slow[number] != encoding.ids:
            raise Differs(f"transformers and tokenizers, text {number}")
        mine = next(at, None)
        if is_skipped:
            skipped += 1
            continue
        if mine != encoding.ids:
            if model_type != "Unigram" or sorted(mine) != sorted(encoding.ids):
                raise Differs(f"ids of text {number}, {text[:60]!r}: {mine[:12]}, transformers has {encoding.ids[:12]}")
            ties += 1
        total += len(encoding.ids)
    if next(at, None) is not None or total == 0:
        raise Differs("number of texts")
    return (f"0 of {total} ids of {len(texts) - skipped} texts" + (f" ({ties} texts: equal scores in another order)"
                                                                  if ties else ""))


def logprobs(model, tokenizer, name, path):
    import torch

    most = count = 0
    for line, ours in zip(compare.read(path), compare.read(name + ".logprobs"), strict=True):
        given = tokenizer(line["prompt"]).input_ids
        if given != ours["ids"]:
            raise Differs(f"ids of the prompt {line['prompt']!r}")
        with torch.no_grad():
            theirs = torch.log_softmax(model(torch.tensor([given])).logits[0].double(), -1)
        for i, value in enumerate(ours["logprobs"]):
            gap = abs(value - theirs[i, given[i + 1]].item())
            if not gap <= TOLERANCE:
                raise Differs(f"log-probability {i} of {line['prompt']!r} by {gap:g}")
            most, count = max(most, gap), count + 1
    return f"{count} log-probabilities within {most:.1e}"


def greedy(model, tokenizer, name, path):
    import torch

    texts = 0
    for line, ours in zip(compare.read(path), compare.read(name + ".replies"), strict=True):
        given = tokenizer(line["prompt"]).input_ids
        out = model.generate(torch.tensor([given]), do_sample=False, max_new_tokens=12,
                             attention_mask=torch.ones(1, len(given), dtype=torch.long))[0].tolist()
        new = out[len(given):]
        if ours["finish"] == "stop":
            new = new[:-1]
        if new != ours["ids"]:
            raise Differs(f"greedy ids after {line['prompt']!r}: {ours['ids']}, transformers has {new}")
        before, both = (tokenizer.decode(ids) for ids in (given, given + new))
        if set(new).isdisjoint(tokenizer.added_tokens_decoder) and both.startswith(before):
            if both[len(before):] != ours["text"]:
                raise Differs(f"greedy text after {line['prompt']!r}: {ours['text']!r}, transformers has {both[len(before):]!r}")
            texts += 1
    return f"greedy ids equal, {texts} texts"


def check(folder, texts, prompts, *names):
    import transformers as t

    t.logging.set_verbosity_error()
    for name in names:
        try:
            # transformers 5 uses Qwen2Tokenizer for any directory of that model type
            opens = t.PreTrainedTokenizerFast if name.startswith("qwen2-") else t.AutoTokenizer
            tokenizer = opens.from_pretrained(f"{folder}/{name}-out")
            model = t.AutoModelForCausalLM.from_pretrained(f"{folder}/{name}-out")
            at = f"{folder}/{name}"
            print(f"{name}: {ids(tokenizer, at, texts)} differ, {logprobs(model, tokenizer, at, prompts)}, "
                  f"{greedy(model, tokenizer, at, prompts)}", flush=True)
        except (Differs, ValueError, OSError, KeyError) as why:
            print(f"{name} differs: {type(why).__name__} {why}", flush=True)
    print(f"transformers {t.__version__}")


def vocab(folder, ours, texts):
    import transformers as t

    try:
        print(ids(t.AutoTokenizer.from_pretrained(folder), ours.removesuffix(".ids"), texts), "differ")
    except Differs as why:
        sys.exit(str(why))


def gguf(converter, folder, name):
    import gguf as g

    out = f"{folder}/{name}.gguf"
    done = subprocess.run([sys.executable, converter, "--outtype", "f32", "--outfile", out, f"{folder}/{name}-out"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.exit("the converter failed: " + (done.stdout.strip().splitlines() or [""])[-1])
    fields = g.GGUFReader(out).fields
    value = {key: fields[key].contents() for key in fields if key.startswith("tokenizer.")}
    tokenizer = json.load(open(f"{folder}/{name}-out/tokenizer.json"))
    vocab = tokenizer["model"]["vocab"]
    names = ({id: token for token, id in vocab.items()} if isinstance(vocab, dict)
               else {i: piece for i, (piece, _) in enumerate(vocab)})
    names.update({token["id"]: token["content"] for token in tokenizer["added_tokens"]})
    tokens = value["tokenizer.ggml.tokens"]
    wrong = [i for i, token in names.items() if tokens[i] != token]
    config = json.load(open(f"{folder}/{name}-out/config.json"))
    if wrong:
        sys.exit(f"token {wrong[0]} is {tokens[wrong[0]]!r}, tokenizer.json has {names[wrong[0]]!r}")
    if value.get("tokenizer.ggml.eos_token_id") != config["eos_token_id"]:
        sys.exit(f"eos is {value.get('tokenizer.ggml.eos_token_id')}, config.json has {config['eos_token_id']}")
    begins = (tokenizer["post_processor"] or {}).get("type") == "TemplateProcessing"
    if value.get("tokenizer.ggml.add_bos_token", begins) != begins:
        sys.exit(f"add_bos_token is {not begins}")
    print(f"{len(names)} tokens, model {value['tokenizer.ggml.model']}, pre-tokenizer {value.get('tokenizer.ggml.pre')}")


{"make": make, "check": check, "vocab": vocab, "gguf": gguf}[sys.argv[1]](*sys.argv[2:])
