"""Time another encoder on the first texts of FILE.jsonl: print MB of text per CPU second, and CPU seconds per second.

encode.py hf FILE DIR MB THREADS             Hugging Face's tokenizers with DIR/tokenizer.json, texts in memory
encode.py sentencepiece FILE DIR MB THREADS  SentencePiece with the .model in DIR, texts in memory
encode.py gigatoken FILE DIR MB THREADS      gigatoken with DIR/tokenizer.json, which reads the JSON lines itself (its
                                             fastest way): all of FILE, which must have MB of text.  Then encode FILE
                                             again with a warm cache, and print two more numbers
encode.py megatron FILE DIR MB THREADS       Megatron-LM's GPT2Tokenizer with DIR/vocab.json and merges.txt, from JSON
                                             lines, in a pool of processes as in preprocess_data.py: the original if
                                             MEG_MEGATRON names a checkout, else a copy of its algorithm
"""
import glob
import importlib.util
import json
import multiprocessing
import os
import resource
import sys
import time

THREADS = int(sys.argv[5])
os.environ["TOKENIZERS_PARALLELISM"] = "true" if THREADS > 1 else "false"
os.environ["RAYON_NUM_THREADS"] = str(THREADS)


class StandIn:
    """The algorithm of Megatron-LM's GPT2Tokenizer: split by the regex, map bytes to characters, merge tuples of
    strings by rank, and cache words in a dict."""

    def __init__(self, vocab, merges):
        import regex

        plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [b for b in range(256) if b not in plain]
        self.char = {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}
        with open(vocab, encoding="utf-8") as f:
            self.ids = json.load(f)
        with open(merges, encoding="utf-8") as f:
            self.rank = {tuple(line.split()): i for i, line in enumerate(f.read().split("\n")[1:-1])}
        self.words = {}
        self.pieces = regex.compile(
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+").findall

    def merge(self, word):
        known = self.words.get(word)
        if known is not None:
            return known
        symbols = tuple(word)
        while len(symbols) > 1:
            best = min(set(zip(symbols, symbols[1:])), key=lambda pair: self.rank.get(pair, float("inf")))
            if best not in self.rank:
                break
            merged, i = [], 0
            while i < len(symbols):
                if symbols[i:i + 2] == best:
                    merged.append(best[0] + best[1])
                    i += 2
                else:
                    merged.append(symbols[i])
                    i += 1
            symbols = tuple(merged)
        self.words[word] = symbols
        return symbols

    def encode(self, text):
        ids = []
        for piece in self.pieces(text):
            word = "".join([self.char[b] for b in piece.encode("utf-8")])
            ids.extend([self.ids.get(symbol, 0) for symbol in self.merge(word)])
        return ids


def bytes_of(lines):
    return sum(len(json.loads(line)["text"].encode()) for line in lines)


def first(path, nbytes):
    """Return the first lines with at least nbytes of text."""
    lines = []
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            lines.append(line)
            nbytes -= bytes_of([line])
            if nbytes <= 0:
                break
    return lines


def cpu_s():
    """Return the CPU time of this process and of its finished children."""
    uses = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(use.ru_utime + use.ru_stime for use in uses)


def speed(nbytes, work):
    wall, cpu = time.perf_counter(), cpu_s()
    work()
    wall = time.perf_counter() - wall
    cpu = cpu_s() - cpu
    return f"{nbytes / 1e6 / cpu:.2f} {cpu / wall:.2f}"


def start_worker(tokenizer):
    encode_line.tokenizer = tokenizer


def encode_line(line):
    return encode_line.tokenizer.encode(json.loads(line)["text"])


def megatron(path, folder, nbytes):
    files = folder + "/vocab.json", folder + "/merges.txt"
    checkout = os.environ.get("MEG_MEGATRON")
    if checkout:
        spec = importlib.util.spec_from_file_location(
            "gpt2", checkout + "/megatron/training/tokenizer/gpt2_tokenization.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        tokenizer = module.GPT2Tokenizer(*files)
    else:
        tokenizer = StandIn(*files)
    lines = first(path, nbytes)

    def work():
        with multiprocessing.get_context("fork").Pool(THREADS, start_worker, (tokenizer,)) as pool:
            for _ in pool.imap(encode_line, lines, 32):
                pass
            pool.close()
            pool.join()

    return speed(bytes_of(lines), work)


def hf(path, folder, nbytes):
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(folder + "/tokenizer.json")
    lines = first(path, nbytes)
    texts = [json.loads(line)["text"] for line in lines]
    return speed(bytes_of(lines), lambda: tokenizer.encode_batch_fast(texts, add_special_tokens=False))


def sentencepiece(path, folder, nbytes):
    import sentencepiece as peer

    processor = peer.SentencePieceProcessor(model_file=glob.glob(folder + "/*.model")[0])
    lines = first(path, nbytes)
    texts = [json.loads(line)["text"] for line in lines]
    return speed(bytes_of(lines), lambda: processor.encode(texts, num_threads=THREADS))


def gigatoken(path, folder, nbytes):
    import gigatoken as peer

    tokenizer = peer.Tokenizer(folder + "/tokenizer.json")
    source = peer.JsonlFileSource([path], field="text")
    return " ".join(speed(nbytes, lambda: tokenizer.encode_files(source)) for _ in range(2))


PEERS = {"hf": hf, "sentencepiece": sentencepiece, "gigatoken": gigatoken, "megatron": megatron}
print(PEERS[sys.argv[1]](sys.argv[2], sys.argv[3], float(sys.argv[4]) * 1e6))
