#!/bin/sh
# modules: tokenizer
# The files beside a tokenizer.json and the tokenizer class determine ids as in transformers 4.57.3.  The expected ids are
# those of AutoTokenizer.
. "${0%/*}/../lib.sh"
cd "$T" || exit 1

# A vocabulary of words; text is split at spaces.  <e> is an added token of tokenizer.json.
mkdir words
cat >words/tokenizer.json <<'END'
{"added_tokens": [{"id": 3, "content": "<e>", "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true}],
 "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"},
 "post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}},
    {"SpecialToken": {"id": "<e>", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}},
    {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {"<e>": {"id": "<e>", "ids": [3], "tokens": ["<e>"]}}},
 "decoder": null,
 "model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0, "a": 1, "b": 2, "<e>": 3, "<m>": 4}}}
END
jq -c '.post_processor = null' words/tokenizer.json >plain.json

encode() { # DIR TEXT OPTION...: print the ids of TEXT
    dir=$1
    jq -nc --arg t "$2" '{text: $t}' >in.jsonl
    shift 2
    rm -f out_*
    meg-preprocess -q --input in.jsonl --output-prefix out --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$dir" "$@" &&
        meg-preprocess --decode out_text_document --json | jq -c .ids
}
# Write the files of directory d: the tokenizer.json FILE, and the others, whose contents may be empty.
files() { # FILE CONFIG SPECIAL_MAP ADDED
    rm -rf d
    mkdir d
    cp "$1" d/tokenizer.json
    [ -z "$2" ] || printf '%s\n' "$2" >d/tokenizer_config.json
    [ -z "$3" ] || printf '%s\n' "$3" >d/special_tokens_map.json
    [ -z "$4" ] || printf '%s\n' "$4" >d/added_tokens.json
}
gives() { # NAME IDS TEXT FILE CONFIG SPECIAL_MAP ADDED OPTION...
    name=$1 want=$2 text=$3
    files "$4" "$5" "$6" "$7"
    shift 7
    is "$name" "$(encode d "$text" "$@" 2>&1)" "$want"
}
fast='"tokenizer_class":"PreTrainedTokenizerFast"'

# Tokens that tokenizer.json lacks have the next ids, in the order of the files.
gives 'a special token of tokenizer_config.json is added' '[1,5,2]' 'a<pad>b' plain.json "{$fast,\"pad_token\":\"<pad>\"}" '' ''
gives 'additional_special_tokens of special_tokens_map.json are added' '[5,1,6]' '<usr>a<bot>' plain.json "{$fast}" \
    '{"eos_token":"<e>","additional_special_tokens":["<usr>","<bot>"]}' ''
gives 'tokens of added_tokens.json are added in the order of their ids' '[6,1,5]' '<usr>a<bot>' plain.json "{$fast}" '' \
    '{"<usr>":6,"<bot>":5}'
gives 'extra_special_tokens are added' '[1,5]' 'a<img>' plain.json "{$fast,\"extra_special_tokens\":{\"image_token\":\"<img>\"}}" '' ''
gives 'an AddedToken has its flags' '[1,4,2]' 'a  <m>b' plain.json \
    "{$fast,\"mask_token\":{\"__type\":\"AddedToken\",\"content\":\"<m>\",\"lstrip\":true,\"normalized\":false}}" '' ''
gives 'a new eos_token ends documents' '[1,5]' 'a' plain.json "{$fast,\"eos_token\":\"<stop>\"}" '' '' --append-eod
gives 'split_special_tokens encodes special tokens as text' '[1,0]' 'a <e>b' plain.json "{$fast,\"split_special_tokens\":true}" '' ''
gives 'the token of padding is added' '[1,5]' 'a<p>' /dev/stdin "{$fast}" '' '' <<END
$(jq -c '.padding = {strategy: "BatchLongest", direction: "Right", pad_to_multiple_of: null, pad_id: 0, pad_type_id: 0,
    pad_token: "<p>"}' plain.json)
END

# What wins if files contradict each other.
gives 'special_tokens_map.json wins over tokenizer_config.json' '[1,4]' 'a' plain.json "{$fast,\"eos_token\":\"<e>\"}" '{"eos_token":"<m>"}' '' --append-eod
gives 'with added_tokens_decoder, special_tokens_map.json is not read' '[1,3]' 'a' plain.json \
    "{$fast,\"eos_token\":\"<e>\",\"added_tokens_decoder\":{}}" '{"eos_token":"<m>"}' '' --append-eod
gives 'with added_tokens_decoder, added_tokens.json is not read' '[0]' 'a<usr>' plain.json "{$fast,\"added_tokens_decoder\":{}}" '' '{"<usr>":5}'
gives 'added_tokens_decoder replaces the flags of tokenizer.json' '[1,3,2]' 'a  <e>b' plain.json \
    "{$fast,\"added_tokens_decoder\":{\"3\":{\"content\":\"<e>\",\"lstrip\":true,\"normalized\":false,\"special\":true}}}" '' ''
gives 'for an id in both, tokenizer.json wins over added_tokens.json' '[0]' 'a<usr>' plain.json "{$fast}" '' '{"<usr>":3}'
gives 'a null token has no default' '[1,2]' 'a b' plain.json '{"tokenizer_class":"BertTokenizer","mask_token":null}' '' ''
gives 'tokenizer.json alone is read as it is' '[1,3]' 'a' words/tokenizer.json '' '' ''

# Rules of classes.
gives 'a class adds its default tokens' '[1,5,2]' 'a<|endoftext|>b' plain.json '{"tokenizer_class":"GPT2Tokenizer"}' '' ''
gives 'a class has a default end-of-document token' '[1,5]' 'a' plain.json '{"tokenizer_class":"GPT2TokenizerFast"}' '' '' --append-eod
gives 'the mask token of a class removes the space before it' '[1,9,2]' 'a <mask>b' plain.json '{"tokenizer_class":"RobertaTokenizer"}' '' ''
neox='"tokenizer_class":"GPTNeoXTokenizer","bos_token":"<m>","eos_token":"<e>","unk_token":"u"'
gives 'GPTNeoXTokenizer ignores the template of tokenizer.json' '[1]' 'a' words/tokenizer.json "{$neox}" '' ''
gives 'GPTNeoXTokenizer appends one end token with --append-eod' '[1,3]' 'a' words/tokenizer.json "{$neox}" '' '' --append-eod
gives 'GPTNeoXTokenizer adds tokens without a template' '[4,1,3]' 'a' plain.json "{$neox,\"add_bos_token\":true,\"add_eos_token\":true}" '' ''
gives 'CohereTokenizer adds bos_token by default' '[3,1]' 'a' plain.json '{"tokenizer_class":"CohereTokenizer","bos_token":"<e>"}' '' ''
gives 'LlamaTokenizer adds bos_token by default' '[3,1]' 'a' plain.json '{"tokenizer_class":"LlamaTokenizerFast","bos_token":"<e>"}' '' ''
gives 'add_bos_token null is false' '[1]' 'a' plain.json '{"tokenizer_class":"LlamaTokenizer","bos_token":"<e>","add_bos_token":null}' '' ''
gives 'PreTrainedTokenizerFast keeps the template' '[1,3]' 'a' words/tokenizer.json "{$fast,\"add_eos_token\":false}" '' ''
files plain.json "" '' ''
echo '{"model_type":"gpt_neox"}' >d/config.json
is 'config.json names the class if tokenizer_config.json does not' "$(encode d 'a' --append-eod)" '[1,5]'
files plain.json '{"tokenizer_class":"FooTokenizer"}' '' ''
is 'an unknown class is read as PreTrainedTokenizerFast' "$(encode d 'a' 2>err)" '[1]'
like 'and a warning names it' "$(cat err)" 'rules of tokenizer_class FooTokenizer are unknown'
files plain.json '{"tokenizer_class":"LlamaTokenizer","bos_token":null}' '' ''
status 'a missing token that a class adds is refused' 65 meg-preprocess --input in.jsonl --output-prefix x --tokenizer-model d
like 'with the token and the option' "$(cat err "$T/err")" 'add_bos_token is true .*bos_token is missing'
files plain.json "{$fast,\"eos_token\":7}" '' ''
status 'a special token must be a string or an object' 65 meg-preprocess --input in.jsonl --output-prefix x --tokenizer-model d
files plain.json "{$fast,\"extra_special_tokens\":{\"image_token\":7}}" '' ''
status 'an extra special token, too' 65 meg-preprocess --input in.jsonl --output-prefix x --tokenizer-model d
like 'it is named' "$(cat err "$T/err")" 'd/tokenizer_config.json: .*image_token'

# A BertNormalizer has the settings of tokenizer_config.json, for the classes of BERT only.
jq -c '.normalizer = {type: "BertNormalizer", clean_text: true, handle_chinese_chars: true, strip_accents: null,
    lowercase: true} | .pre_tokenizer = {type: "BertPreTokenizer"}' plain.json >bert.json
gives 'do_lower_case false replaces that of tokenizer.json' '[0,1]' 'A a' bert.json '{"tokenizer_class":"BertTokenizer","do_lower_case":false}' '' ''
gives 'do_lower_case is true by default' '[1,1]' 'A a' /dev/stdin '{"tokenizer_class":"BertTokenizer"}' '' '' <<END
$(jq -c '.normalizer.lowercase = false' bert.json)
END
gives 'PreTrainedTokenizerFast keeps the normalizer' '[1,1]' 'A a' bert.json "{$fast,\"do_lower_case\":false}" '' ''

# The prefix space of a byte-level tokenizer.
jq -c '.pre_tokenizer = {type: "ByteLevel", add_prefix_space: true, trim_offsets: true, use_regex: true}' \
    "$golden/../tokenizers/hf-gpt2/tokenizer.json" >byte.json
files byte.json '' '' ''
with=$(encode d 'a')
like 'a prefix space is part of the ids' "$with" '^\[[0-9,]+\]$'
files byte.json "{$fast}" '' ''
isnt 'add_prefix_space is false without a value in tokenizer_config.json' "$(encode d 'a')" "$with"
files byte.json "{$fast,\"add_prefix_space\":true}" '' ''
is 'add_prefix_space true keeps that of tokenizer.json' "$(encode d 'a')" "$with"
files byte.json '{"tokenizer_class":"T5Tokenizer","extra_ids":0}' '' ''
is 'T5Tokenizer does not change the prefix space' "$(encode d 'a')" "$with"

# A directory without tokenizer.json is refused with the options for the files that are there.
refused() { # NAME MESSAGE FILE...
    name=$1 want=$2
    shift 2
    rm -rf d
    mkdir d
    for f in "$@"; do
        printf '\n' >"d/$f"
    done
    [ ! -e d/tokenizer.model ] || printf 'YQ== 0\n' >d/tokenizer.model
    status "$name is refused" 66 meg-preprocess --input in.jsonl --output-prefix x --tokenizer-type HuggingFaceTokenizer --tokenizer-model d
    like "$name: the message names the options" "$(cat "$T/err")" "$want"
}
refused 'a directory of GPT-2' 'd: found vocab.json and merges.txt, expected tokenizer.json; use --tokenizer-type GPT2BPETokenizer --vocab-file d/vocab.json --merge-file d/merges.txt$' \
    vocab.json merges.txt tokenizer_config.json
meg-preprocess --input in.jsonl --output-prefix x --tokenizer-model d 2>err
is 'without --tokenizer-type, the message is the same' "$(cat err)" "$(cat "$T/err")"
refused 'a directory with vocab.txt' 'found vocab.txt, .* BertWordPieceLowerCase --vocab-file d/vocab.txt$' vocab.txt
refused 'a directory with spiece.model' 'GPTSentencePieceTokenizer --tokenizer-model d/spiece.model$' spiece.model
refused 'a directory with a vocabulary of tiktoken' 'TikTokenizer --tokenizer-model d/tokenizer.model$' tokenizer.model
refused 'a directory without a tokenizer' 'd: not a directory with tokenizer.json' README.md

# --explain
files plain.json '{"tokenizer_class":"LlamaTokenizer","bos_token":"<m>","eos_token":"<e>","unk_token":"u","pad_token":"<p>"}' \
    '{"eos_token":"<m>"}' '{"<usr>":9}'
explain() { meg-preprocess --explain "$@" 2>/dev/null; }
explain d 'a b' >text
is '--explain prints the type, the size and the class' "$(sed -n '/^type\|^size\|^class\|^transformers/p' text | xargs)" \
    'type: HuggingFaceTokenizer size: 7 class: LlamaTokenizerFast transformers: 4.57.3'
is 'the added tokens, with flags and files' "$(sed -n '/^added tokens/,/^before/p' text)" 'added tokens: 5
  0 "u" special, in tokenizer_config.json
  3 "<e>" special, in tokenizer.json
  4 "<m>" special, in tokenizer_config.json, special_tokens_map.json
  5 "<usr>" normalized, in added_tokens.json
  6 "<p>" special, in tokenizer_config.json
before a text: 4 "<m>"'
is 'the tokens after a text and the prefix space' "$(sed -n '/^after\|^prefix\|^normalization/p' text | xargs)" \
    'after a text: none prefix space: no normalization: none'
is 'contradictions' "$(sed -n '/^contradictions/,/^special/p' text)" "contradictions:$(printf ' ')
  eos_token is '<m>' in special_tokens_map.json and '<e>' in tokenizer_config.json; the latter is ignored
  '<usr>' has id 5; added_tokens.json has 9
special ids: eod 4, bos 4, eos 4, pad none, cls none, sep none, mask none"
is 'and the ids of the text' "$(tail -n 1 text)" 'ids: 4 "<m>", 1 "a", 2 "b"'
is 'with --json, an object' "$(explain d 'a b' --json | jq -c '[.size, .class, .special_ids.eos, [.ids[].id], (.contradictions | length)]')" \
    '[7,"LlamaTokenizerFast",4,[4,1,2],2]'
files bert.json '{"tokenizer_class":"BertTokenizer","do_lower_case":false,"add_bos_token":true}' '' ''
is 'the normalizer is shown as the class changes it' "$(explain d --json | jq -c '[.normalization.lowercase, .contradictions[0]]')" \
    '[false,"do_lower_case of tokenizer_config.json, or its default, replaces lowercase of the normalizer"]'
files words/tokenizer.json "{$neox}" '' ''
like 'a template that the class replaces is a contradiction' "$(explain d)" 'or their defaults for GPTNeoXTokenizer, replace the post-processor'
is '--explain of tokenizer.json reads the files beside it' "$(explain d/tokenizer.json)" "$(explain d)"
cat >vocab.txt <<'END'
[PAD]
[UNK]
[CLS]
[SEP]
[MASK]
a
END
like 'a vocab.txt is a tokenizer of BERT' "$(explain vocab.txt a)" '^ids: 5 "a"$'
is '--tokenizer-type selects another type' "$(explain vocab.txt --tokenizer-type BertWordPieceCase | head -n 1)" 'type: BertWordPieceCase'
cp "$golden/../tokenizers/gpt2-vocab.json" vocab.json
cp "$golden/../tokenizers/gpt2-merges.txt" merges.txt
is 'a vocab.json has its merges.txt beside it' "$(explain vocab.json | head -n 1)" 'type: GPT2BPETokenizer'
is 'a vocabulary of tiktoken is recognised by its content' "$(explain "$golden/../tokenizers/ranks.tiktoken" | head -n 1)" 'type: TikTokenizer'
mkdir none
status 'a directory without a tokenizer is refused' 66 meg-preprocess --explain none
like 'with what is expected' "$(cat "$T/err")" 'none: found no file of a tokenizer, expected tokenizer.json'
status '--explain excludes --info' 2 meg-preprocess --explain d --info x

# Metaspace with the scheme "first" puts a mark only before a text whose start the normalizer keeps.
jq -c '.normalizer = {type: "Strip", strip_left: true, strip_right: true} | .model.vocab = {u: 0, a: 1, "\u2581a": 2, "<e>": 3}
    | .pre_tokenizer = {type: "Metaspace", replacement: "\u2581", prepend_scheme: "first", split: true}' plain.json >strip.json
gives 'a mark is put before a text' '[2,2]' 'a a' strip.json '' '' ''
gives 'no mark is put before a text whose first space is stripped' '[1,2]' ' a a' strip.json '' '' ''
done_testing
