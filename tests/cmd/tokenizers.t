#!/bin/sh
# modules: tokenizer
# Preprocess, train, generate and evaluate with each tokenizer type.  A checkpoint contains its tokenizer, so the
# original files may be removed.
. "${0%/*}/../lib.sh"
here=$(cd "${0%/*}/.." && pwd)
cd "$T" || exit 1

jq -Rc 'select(length > 0) | {text: .}' "$here/../LICENSE" >text.jsonl
head -n 20 text.jsonl >few.jsonl
awk '{ line[NR] = $0 } END { for (i = 0; i < 20; i++) for (k = 1; k <= NR; k++) print line[(k + 37 * i) % NR + 1] }' \
    text.jsonl >long.jsonl # blocks of 64 KiB for all workers
printf 'This program is free\n{"prompt": " The licence, \\u00e9"}\n' >prompts
cat >conf <<'END'
num-layers = 1
hidden-size = 16
num-attention-heads = 2
seq-length = 16
max-position-embeddings = 32
micro-batch-size = 2
global-batch-size = 2
train-iters = 2
lr = 1e-3
eval-iters = 1
split = 90,8,2
END

generate() { meg-generate --tokens-to-generate 8 --sample-input-file prompts --return-log-probs "$@"; }

# Preprocess, train and generate with the tokenizer options.  Then move the tokenizer files away: generating, training
# further and computing perplexity must work with the tokenizer in the checkpoint, which must be an exact copy.
round_trip() { # NAME FILES OPTION...: FILES are moved away after training
    name=$1 files=$2
    shift 2
    meg-preprocess -q --input text.jsonl --output-prefix "$name" --append-eod "$@" &&
        meg-train -q --config conf --data-path "${name}_text_document" --save "$name.ckpt" "$@" >log
    for n in 1 3; do
        meg-preprocess -q --input long.jsonl --output-prefix "w$n" --workers "$n" "$@"
    done
    for ext in bin idx; do
        ok "$name: three workers write the same .$ext" cmp w1_text_document.$ext w3_text_document.$ext
    done
    like "$name: the dataset has many tokens" "$(wc -c <w1_text_document.bin)" '^ *[0-9]{6,}$'
    rm w[13]_*
    generate --load "$name.ckpt" "$@" >want
    mv "$files" gone
    generate --load "$name.ckpt" >got
    ok "$name: replies without the tokenizer files are the same" cmp got want
    is "$name: replies have ids" "$(jq -c '.ids | length > 0' want | sort -u)" true
    ok "$name: training continues without the tokenizer files" meg-train -q --config conf --data-path "${name}_text_document" \
        --use-checkpoint-args --load "$name.ckpt" --train-iters 4 --override-opt_param-scheduler --save "$name.more"
    for file in "$name.ckpt"/iter_0000002/*[tv]o[kc]* "$name.more"/iter_0000004/*[tv]o[kc]*; do
        gone=gone
        [ ! -d gone ] || gone=gone/${file##*/}
        ok "$name: ${file##*/} of ${file%/*} is unchanged" cmp "$file" "$gone"
    done
    like "$name: meg-eval prints the perplexity of text" "$(meg-eval --task ppl --load "$name.more" --input few.jsonl |
        jq -c '[.tokens, .ppl]')" '^\[[0-9]{3,},[0-9.]+\]$'
    mv gone "$files"
}
as_hf_model() { # NAME OPTION...: convert to a Hugging Face model; OPTION is what such a model cannot express
    name=$1
    shift
    meg-convert -q --load-dir "$name.ckpt" --save-dir "$name.hf" --saver hf
    generate --load "$name.hf" "$@" >got
    generate --load "$name.ckpt" >want
    ok "$name: the converted Hugging Face model gives the same replies" cmp got want
    ok "$name: the replies are not empty" test -s want
}

meg-vocab -q --input "$here/../LICENSE" --vocab-size 300 --output-dir bpe
mkdir folder
cp bpe/tokenizer.json folder
echo '{"eos_token": "<|endoftext|>"}' >folder/tokenizer_config.json
round_trip folder folder --tokenizer-type HuggingFaceTokenizer --tokenizer-model folder
as_hf_model folder
round_trip untyped folder --tokenizer-name-or-path folder
as_hf_model untyped

# config.json determines the class of a tokenizer, which a checkpoint keeps: GPT2Tokenizer has the end token <|endoftext|>.
mkdir implied
cp bpe/tokenizer.json implied
echo '{"model_type": "gpt2"}' >implied/config.json
meg-preprocess -q --input text.jsonl --output-prefix implied --append-eod --tokenizer-model implied
meg-train -q --config conf --data-path implied_text_document --save implied.ckpt --tokenizer-model implied >log
is 'a checkpoint keeps the class that config.json implies' \
    "$(jq -c .tokenizer_class implied.ckpt/iter_0000002/tokenizer_config.json; meg-preprocess --explain implied.ckpt/iter_0000002 |
        grep -o '^special ids: eod [0-9]*')" "\"GPT2Tokenizer\"
special ids: eod $(jq '.added_tokens[] | select(.content == "<|endoftext|>").id' bpe/tokenizer.json)"

# Create a vocabulary of the 256 bytes and a few longer tokens, in the format of Llama 3.
perl -MMIME::Base64 -e 'my $n = 0; print encode_base64($_, ""), " ", $n++, "\n" for (map { chr } 0 .. 255), " t", "he",
    "in", " the", "er", "ing"' >lines.tiktoken
set -- --tiktoken-special-tokens '<|begin_of_text|>' '<|end_of_text|>'
round_trip lines lines.tiktoken --tokenizer-type TikTokenizer --tokenizer-model lines.tiktoken "$@"
as_hf_model lines "$@"
jq -Rnc '[inputs | split(" ") | {rank: (.[1] | tonumber), token_bytes: .[0], token_str: null}]' lines.tiktoken >tik.json
round_trip json tik.json --tokenizer-type TikTokenizer --tokenizer-model tik.json --vocab-size 266 \
    --tiktoken-num-special-tokens 4 --tiktoken-pattern v1
cp "$here/data/spm/5.model" spm.model
round_trip spm spm.model --tokenizer-type Llama2Tokenizer --tokenizer-model spm.model
as_hf_model spm
perl -e 'print "$_\n" for qw([PAD] [UNK] [CLS] [SEP] [MASK] program licence), ("a" .. "z"), map { "##$_" } "a" .. "z"' >words
round_trip bert words --tokenizer-type BertWordPieceLowerCase --vocab-file words
echo 'a program' >prompts
generate --load bert.ckpt | jq -r .text >got
generate --load bert.ckpt --format text | sed 's/^a program//' >want
ok 'bert: the last word of a prompt is not part of the continuation' cmp got want
done_testing
