#!/usr/bin/env python3
"""make.py MEGATRON [FILE...] - make the vocabularies and expected ids of this folder; README says with which programs.

MEGATRON is a checkout of Megatron-LM core 0.10.0.  FILEs are the text that vocabularies are trained on (lib/base/*.h and
lib/io/*.h of this repository), together with the texts below.
"""
import base64
import json
import os
import random
import re
import sys
import types

OUT = os.path.dirname(os.path.abspath(__file__))
PREFIX = 'tests/data/tokenizers/'

SENTENCES = r"""
The quick brown fox doesn't jump over 12 lazy dogs; it's 3.14159 meters high, isn't it?
In 1984, prices rose by 3.5% (from $1,234.56 to £1,277.77). WE'LL see, I'D say: they've gone!
for (int64_t i = 0; i < n; i++) { out[i] += 0x1F * in[i]; }  /* two  spaces */
def f(x):\n    if x is None:\n\t\treturn -1\r\n    return x ** 2\n\n\n
Die Straße führt über große Brücken; ÄÖÜ äöü ß. ΣΊΣΥΦΟΣ ΟΔΟΣ Σ ΑΣ. ΑΣ' ΑΣΑ.
L'été, l’œuvre naïve: Ça coûte 12 €, où ? Señor Núñez, ¿qué tal? ¡Hola!
Быстрая лисица перепрыгнула 5 раз. Ёлка, йод, Київ. ΚΑΛΗΜΕΡΑ κόσμε!
日本語の文章です。東京は2024年に、カタカナとひらがな。 中文句子：你好，世界！ 한국어 문장입니다.
مرحبا بالعالم ١٢٣. שלום עולם. नमस्ते दुनिया १२३। สวัสดีชาวโลก
Emoji: 😀👍🏽 👨‍👩‍👧‍👦 🇩🇪 ❤️ and symbols → ∑ ∞ ½ Ⅷ ① ﬁ ﬀ Å Å é e\u0301 a\u0323\u0302 \u1e69
ＦＵＬＬＷＩＤＴＨ １２３ ｶﾀｶﾅ, ㎏ ㍿ x² H₂O № ™ … ‘quotes’ “double” – — ‐
I'm you're he's we'd THEY'LL It'S DON'T o'clock 'tis rock'n'roll l'x 'S 'LL
1 12 123 1234 12345678901234567890 1,000,000 0.5e-10 v2.0.1 192.168.0.1 ١٢٣٤٥
snake_case camelCase PascalCase SCREAMING_CASE kebab-case HTTPServer iOS XMLHttpRequest2
<|endoftext|> <s> </s> <unk> <pad> [CLS] [SEP] [MASK] [UNK] <mask> <extra_id_0> <extra_id_1>!
a<|endoftext|>b <s>the</s> [MASK]ed [MASK] . <extra_id_0>x  <EOD> <CLS> <SEP> <MASK><PAD>
http://www.example.com/a/b?c=d&e=f#g user@example.org C:\\Temp\\x.txt /usr/lib
.,;:!?()[]{}<>"'`~@#$%^&*-_=+|\\/ ... --- === *** ((())) !!! ??? ...,...
 leading,  trailing   \t tab\ttab \u00a0nbsp\u00a0 \u2003em\u2003 \u3000ideographic\u3000 \u200bzero\u200bwidth\ufeff
nul:\u0000 bell:\u0007 esc:\u001b del:\u007f nel:\u0085 ls:\u2028 ps:\u2029 vt:\u000b ff:\u000c soft\u00adhyphen
▁already▁marked ▁ ▁▁ x▁y \ue000 \uf8ff \ufffd \U000f0000 \u0378 \U0001f9ff
ſ İstanbul ıııı ǅ ǆ ŉ ﬃ ẞ ʼn \u0345 ᾳ ᾼ ﷺ ﹏ ㈱ \u1100\u1161\u11a8 각
Program text and the License: you may redistribute and modify this software under its terms.
"""


def unescape(s):
    """Replace \\n, \\t, \\r, \\uXXXX and \\UXXXXXXXX; other backslashes stay."""
    s = re.sub(r'\\U([0-9a-f]{8})|\\u([0-9a-f]{4})', lambda m: chr(int(m[1] or m[2], 16)), s)
    return s.replace('\\n', '\n').replace('\\t', '\t').replace('\\r', '\r')


def make_texts():
    lines = [unescape(x) for x in SENTENCES.strip('\n').split('\n')]
    texts = ['', ' ', '  ', '   ', '\n', '\n\n', ' \n ', '\t', '\r\n', 'a', ' a', 'a ', ' a b ', '\u3000', '\u00a0', '▁', 'é',
             'e\u0301', '\u0301', '中', '中文', '😀', '0', '00', '-', "'s", "''", '\u0000', '</s>', 'a' * 120, 'ab ' * 40] + lines
    rng = random.Random(1)
    words = [w for line in lines for w in line.split(' ')] + ['\n', '\t', '  ', '\u00a0', "'", '1', '23', '中', 'Σ', '\u0301', '\u200d']
    for _ in range(60):
        texts.append(rng.choice(['', ' ']).join(rng.choice(words) for _ in range(rng.randint(1, 12))))
    return list(dict.fromkeys(texts))


def write(name, text):
    os.makedirs(os.path.dirname(os.path.join(OUT, name)) or '.', exist_ok=True)
    with open(os.path.join(OUT, name), 'w', newline='') as f:
        f.write(text)


def dump(j, **kw):
    return json.dumps(j, ensure_ascii=False, **kw)


# Of Llama 3, and of cl100k_base in early releases of tiktoken; later ones match whitespace at the end of a text at once.
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")


# ---- vocabularies ----

def train(corpus, texts):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    data = corpus + texts

    def save(name, t, config):
        os.makedirs(f'{OUT}/{name}', exist_ok=True)
        t.save(f'{OUT}/{name}/tokenizer.json', pretty=False)
        write(f'{name}/tokenizer_config.json', dump({'tokenizer_class': 'PreTrainedTokenizerFast', **config}) + '\n')

    def byte_bpe(size, split=None, special=(), **kw):
        t = Tokenizer(models.BPE(**kw))
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
        # train on text that is split at random, so that merges cross the boundaries of the real pattern and ids depend on it
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r'(?m:.{3,17}?)[a-z1-9 ]'), 'isolated'),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        t.decoder = decoders.ByteLevel()
        t.train_from_iterator(texts * 4 + corpus, trainers.BpeTrainer(
            vocab_size=size, special_tokens=list(special), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
        t.pre_tokenizer = level if split is None else pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(split), 'isolated'), level])
        return t

    # GPT-2: vocab.json and merges.txt, and the same as a folder
    t = byte_bpe(640, special=['<|endoftext|>'])
    t.model.save(OUT, 'gpt2')
    save('hf-gpt2', t, {'eos_token': '<|endoftext|>', 'clean_up_tokenization_spaces': False})

    # Llama 3: ignore_merges, a BOS template
    t = byte_bpe(640, CL100K, ['<s>', '</s>'], ignore_merges=True)
    t.post_processor = processors.TemplateProcessing(single='<s> $A', pair='<s> $A <s> $B', special_tokens=[('<s>', 0)])
    save('hf-llama3', t, {'bos_token': '<s>', 'eos_token': '</s>', 'clean_up_tokenization_spaces': True})

    # Qwen 2: NFC, single digits
    t = byte_bpe(640, CL100K.replace('{1,3}', ''), ['<|endoftext|>'])
    t.normalizer = normalizers.NFC()
    t.add_tokens([AddedToken('DON', normalized=True, single_word=True), AddedToken('[MASK]', lstrip=True, normalized=False)])
    save('hf-qwen2', t, {'eos_token': '<|endoftext|>', 'clean_up_tokenization_spaces': False})

    # Llama 2: BPE of characters, marks for spaces, bytes for unknown characters
    t = Tokenizer(models.BPE(unk_token='<unk>', byte_fallback=True, fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')])
    trainer = trainers.BpeTrainer(vocab_size=620, limit_alphabet=110, show_progress=False,
                                  special_tokens=['<unk>', '<s>', '</s>'] + [f'<0x{b:02X}>' for b in range(256)])
    t.train_from_iterator([w for x in data for w in x.replace(' ', ' ▁').split(' ')], trainer)
    j = json.loads(t.to_str())
    j['added_tokens'] = [a for a in j['added_tokens'] if a['id'] < 3]
    j['decoder'] = {'type': 'Sequence', 'decoders': [
        {'type': 'Replace', 'pattern': {'String': '▁'}, 'content': ' '}, {'type': 'ByteFallback'}, {'type': 'Fuse'},
        {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}]}
    j['post_processor'] = json.loads(json.dumps({'type': 'TemplateProcessing', 'single': [
        {'SpecialToken': {'id': '<s>', 'type_id': 0}}, {'Sequence': {'id': 'A', 'type_id': 0}}], 'pair': [
        {'Sequence': {'id': 'A', 'type_id': 0}}, {'Sequence': {'id': 'B', 'type_id': 1}}],
        'special_tokens': {'<s>': {'id': '<s>', 'ids': [1], 'tokens': ['<s>']}}}))
    save('hf-llama2', Tokenizer.from_str(json.dumps(j)), {'bos_token': '<s>', 'eos_token': '</s>', 'unk_token': '<unk>',
                                                          'clean_up_tokenization_spaces': False})

    # BERT: WordPiece; vocab.txt for Megatron-LM's classes, too
    for name, lower in (('bert-lower', True), ('bert-case', False)):
        t = Tokenizer(models.WordPiece(unk_token='[UNK]'))
        t.normalizer = normalizers.BertNormalizer(lowercase=lower)
        t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        t.decoder = decoders.WordPiece()
        t.train_from_iterator(data, trainers.WordPieceTrainer(
            vocab_size=500, limit_alphabet=150, special_tokens=['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'], show_progress=False))
        t.post_processor = processors.BertProcessing(('[SEP]', 3), ('[CLS]', 2))
        vocab = t.get_vocab()
        write(f'{name}.txt', ''.join(w + '\n' for w in sorted(vocab, key=vocab.get)))
        if lower:
            save('hf-bert', t, {'cls_token': '[CLS]', 'sep_token': '[SEP]', 'pad_token': '[PAD]', 'mask_token': '[MASK]',
                                'unk_token': '[UNK]', 'clean_up_tokenization_spaces': False})

    # T5: Unigram with Metaspace
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(' {2,}'), ' ')])
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    t.train_from_iterator(data, trainers.UnigramTrainer(vocab_size=400, special_tokens=['<pad>', '</s>', '<unk>'],
                                                        unk_token='<unk>', show_progress=False))
    t.post_processor = processors.TemplateProcessing(single='$A </s>', pair='$A </s> $B </s>', special_tokens=[('</s>', 1)])
    save('hf-t5', t, {'eos_token': '</s>', 'pad_token': '<pad>', 'unk_token': '<unk>', 'clean_up_tokenization_spaces': False})

    # WordLevel, with most other steps
    t = Tokenizer(models.WordLevel(unk_token='[UNK]'))
    t.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Strip()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation(),
                                               pre_tokenizers.Digits(individual_digits=True)])
    t.train_from_iterator(data, trainers.WordLevelTrainer(vocab_size=300, special_tokens=['[UNK]', '[MASK]'], show_progress=False))
    save('hf-words', t, {'unk_token': '[UNK]', 'mask_token': '[MASK]', 'clean_up_tokenization_spaces': False})

    # tiktoken: lines of base64 and rank, and Megatron-LM's JSON
    t = byte_bpe(640, CL100K)
    back = {c: b for b, c in bytes_to_unicode().items()}
    tokens = [bytes(back[c] for c in s) for s in sorted(t.get_vocab(), key=t.get_vocab().get)]
    tokens = [bytes([b]) for b in range(256)] + list(dict.fromkeys(
        [b'lC', b'lCa', b'PS', b'iO', b'LH', b'+/', b'---', b'- ', b'1.'] + [x for x in tokens if len(x) > 1]))
    write('ranks.tiktoken', ''.join(f'{base64.b64encode(x).decode()} {i}\n' for i, x in enumerate(tokens)))
    write('ranks.json', dump([{'rank': i, 'token_bytes': base64.b64encode(x).decode(), 'token_str': None}
                              for i, x in enumerate(tokens)], separators=(',', ':')) + '\n')

    # SentencePiece: unigram with a character map, BPE with bytes for unknown characters
    import sentencepiece
    rules = f'{OUT}/rules.tsv'
    pairs = {'ﬁ': 'fi', 'ﬀ': 'ff', '\u3000': ' ', '\u00a0': ' ', '\t': ' ', '\n': ' ', '\r': ' ', '…': '...', '½': '1/2', 'Å': 'Å',
             'e\u0301': 'é', '\u200b': '', '\ufeff': '', 'Ⅷ': 'VIII'}
    pairs.update({chr(0xFF01 + i): chr(0x21 + i) for i in range(94)})
    with open(rules, 'w') as f:
        for a, b in pairs.items():
            f.write(' '.join(f'{ord(c):04X}' for c in a) + '\t' + ' '.join(f'{ord(c):04X}' for c in b) + '\n')
    clean = [x.replace('\0', ' ') for s in data for x in s.split('\n') if x.strip()]
    for name, kw in (('spm-unigram', dict(model_type='unigram', vocab_size=420, normalization_rule_tsv=rules, pad_id=3,
                                          user_defined_symbols=['HTTP', '▁the▁'])),
                     ('spm-bpe', dict(model_type='bpe', vocab_size=620, byte_fallback=True, split_digits=True,
                                      normalization_rule_name='identity', remove_extra_whitespaces=False))):
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(clean), model_prefix=f'{OUT}/{name}',
                                                 hard_vocab_limit=False, character_coverage=0.995, minloglevel=2, **kw)
        os.remove(f'{OUT}/{name}.vocab')
    os.remove(rules)


def bytes_to_unicode():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    rest = [b for b in range(256) if b not in keep]
    return dict(list(zip(keep, map(chr, keep))) + [(b, chr(256 + i)) for i, b in enumerate(rest)])


# ---- expected ids ----

def import_megatron(path):
    """Import megatron.training.tokenizer.tokenizer without the rest of Megatron-LM, which needs a GPU machine."""
    for name in ('megatron', 'megatron.core', 'megatron.core.datasets', 'megatron.training', 'megatron.training.tokenizer'):
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(path, *name.split('.'))]
        sys.modules[name] = module
    sys.modules['megatron.training'].print_rank_0 = lambda *a: None
    for name, member in (('tokenizer.multimodal_tokenizer', 'MultimodalTokenizer'), ('utils', 'print_rank_0')):
        stub = types.ModuleType('megatron.training.' + name)
        setattr(stub, member, lambda *a: None)
        sys.modules[stub.__name__] = stub
    import megatron.training.tokenizer.tokenizer as tokenizer
    return tokenizer


def write_vectors(name, options, encode, decode, texts, own_texts=None, **facts):
    rng = random.Random(name)
    lines, all_ids = [dump({'options': options, **facts})], []
    for text in own_texts or texts:
        ids = [int(i) for i in encode(text)]
        all_ids += ids
        lines.append(dump({'text': text, 'ids': ids} if own_texts else ids, separators=(',', ':')))
    for _ in range(40 if decode else 0):
        n, at = rng.randint(1, 20), rng.randrange(len(all_ids) - 20)
        ids = all_ids[at:at + n] if rng.random() < 0.8 else [rng.choice(all_ids) for _ in range(n)]
        lines.append(dump({'decode': ids, 'text': decode(ids)}, separators=(',', ':')))
    write(name + '.jsonl', '\n'.join(lines) + '\n')


def main():
    texts = make_texts()
    write('texts.jsonl', ''.join(dump(t) + '\n' for t in texts))
    corpus = [line for f in sys.argv[2:] for line in open(f).read().split('\n\n')]
    train(corpus, texts)
    megatron = import_megatron(sys.argv[1])

    def add(name, type, build, own_texts=None, has_decode=True, **options):
        opts = {'tokenizer-type': type}
        for k, v in options.items():
            opts[k.replace('_', '-')] = PREFIX + v if isinstance(v, str) and os.path.exists(f'{OUT}/{v}') else v
        tok = build(*[f'{OUT}/{v}' for v in options.values() if isinstance(v, str) and os.path.exists(f'{OUT}/{v}')])
        write_vectors(name, opts, tok.tokenize, tok.detokenize if has_decode else None, texts, own_texts,
                      vocab_size=tok.vocab_size, eod=tok.eod)
        return tok

    add('gpt2', 'GPT2BPETokenizer', megatron._GPT2BPETokenizer, vocab_file='gpt2-vocab.json', merge_file='gpt2-merges.txt')
    add('bert-lower', 'BertWordPieceLowerCase', lambda f: megatron._BertWordPieceTokenizer(f, True, 3), vocab_file='bert-lower.txt',
        vocab_extra_ids=3)
    add('bert-case', 'BertWordPieceCase', lambda f: megatron._BertWordPieceTokenizer(f, False, 0), vocab_file='bert-case.txt')
    for model in ('unigram', 'bpe'):
        file = f'spm-{model}.model'
        add(f'spm-{model}-special', 'SentencePieceTokenizer', lambda f: megatron._SentencePieceTokenizer(f, 2), tokenizer_model=file,
            vocab_extra_ids=2)
        add(f'spm-{model}', 'GPTSentencePieceTokenizer', megatron._GPTSentencePieceTokenizer, tokenizer_model=file)
        add(f'spm-{model}-llama2', 'Llama2Tokenizer', megatron._Llama2Tokenizer, tokenizer_model=file)
    for pattern in ('v1', 'v2'):
        add(f'tiktoken-{pattern}', 'TikTokenizer', lambda f: megatron.CustomTikTokenizer(
            f, megatron.PATTERN_TIKTOKEN if pattern == 'v1' else megatron.PATTERN_TIKTOKEN_V2, 600, 10, None),
            tokenizer_model='ranks.json', vocab_size=600, tiktoken_num_special_tokens=10, tiktoken_pattern=pattern)
    add('null', 'NullTokenizer', lambda: megatron._NullTokenizer(100), own_texts=['0', '1 2 3', '99 0 7'], has_decode=False, vocab_size=100)

    import tiktoken
    import tiktoken_ext.openai_public as public
    ranks = {base64.b64decode(a): int(b) for a, b in (x.split() for x in open(f'{OUT}/ranks.tiktoken'))}
    public.load_tiktoken_bpe = lambda *a, **kw: ranks
    for pattern, regex in (('cl100k', CL100K), ('o200k', public.o200k_base()['pat_str'])):
        e = tiktoken.Encoding('x', pat_str=regex, mergeable_ranks=ranks, special_tokens={})
        write_vectors(f'tiktoken-{pattern}', {'tokenizer-type': 'TikTokenizer', 'tokenizer-model': PREFIX + 'ranks.tiktoken',
                                              'tiktoken-pattern': pattern}, e.encode_ordinary, e.decode, texts)

    for name in ('gpt2', 'llama3', 'qwen2', 'llama2', 'bert', 't5', 'words'):
        add(f'hf-{name}', 'HuggingFaceTokenizer', megatron._HuggingFaceTokenizer, tokenizer_model=f'hf-{name}')
    from transformers import AutoTokenizer
    t = AutoTokenizer.from_pretrained(f'{OUT}/hf-llama2')
    write_vectors('hf-pretrained', {'tokenizer-type': 'PretrainedFromHF', 'tokenizer-name-or-path': PREFIX + 'hf-llama2'},
                  lambda s: t(s).input_ids, t.decode, texts, vocab_size=len(t), eod=t.eos_token_id)


main()
