#!/bin/sh
# needs: ranks/comm
# Each recipe in recipes/pretrain fits in memory on its number of ranks.  For each recipe of a GPT, a tiny model with its
# options trains.
. "${0%/*}/lib.sh"
. "${0%/*}/ranks.sh"
case $0 in /*) here=${0%/*} ;; *) here=$PWD/${0%/*} ;; esac
recipes=$here/../recipes/pretrain
cd "$T" || exit 1

awk 'BEGIN { for (i = 0; i < 3000; i++) { printf "{\"text\":\""; for (j = 0; j < 60; j++) printf "%d ", (i * 7 + j * 3) % 90
    printf "1\"}\n" } }' >ids.jsonl
meg-preprocess -q --input ids.jsonl --tokenizer-type NullTokenizer --vocab-size 99 --append-eod --output-prefix corpus

# The recipes of BERT and T5 name a vocabulary file.  Create one of 30520 lines; with the two tokens that meg adds, the
# BERT has 30522 ids, as bert-large-uncased.
. "$here/bert.sh"
{ printf '[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n'; tail -n +6 "$bert_vocab"; } >small.txt
awk '{ print } END { for (i = NR; i < 30520; i++) print "w" i }' small.txt >vocab.txt
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do cat text.jsonl; done >texts.jsonl
meg-preprocess -q --input texts.jsonl --tokenizer-type BertWordPieceLowerCase --vocab-file vocab.txt --split-sentences \
    --output-prefix corpus 2>err

# Copy the recipes of GPT without their tokenizers, which are not in the repository.
for f in "$recipes"/*.conf; do
    sed '/^tokenizer-/d; /^vocab-file/d; /^merge-file/d' "$f" >"${f##*/}"
done
cp "$recipes/bert-345m.conf" "$recipes/t5-220m.conf" .

# null_tokenizer NAME VOCABULARY: print the options of the tokenizer that recipe NAME lacks
null_tokenizer() {
    case $1 in bert-345m | t5-220m) return ;; esac
    echo "--tokenizer-type NullTokenizer --vocab-size $2"
}

# planned NAME VOCABULARY RANKS HARDWARE PARAMETERS: check a dry run of recipe NAME
planned() {
    # shellcheck disable=SC2046 # words
    status "$1: a dry run succeeds" 0 meg-train -q --config "$1.conf" $(null_tokenizer "$1" "$2") --dry-run \
        --world-size "$3" --hardware "$4"
    like "$1: the model has the published number of parameters" "$(cat "$T/out")" "^  all +[0-9]+ +$5\$"
    unlike "$1: the run fits in memory" "$(cat "$T/out")" 'does not fit'
    sed -n '/^memory/,/all/p; /^time/,$p' "$T/out" | sed -n '/^data/q; s/^/# /p'
}
planned gpt-345m 50256 2 a100 354823168
# embedding, layers, final norm; head with its norm and bias, pooler, binary head
h=1024 v=30522
planned bert-345m - 2 a100 $((h * (v + 512 + 2) + 24 * (12 * h * h + 13 * h) + 2 * h + h * h + 3 * h + v + h * h + h + 2 * h + 2))
# embedding; encoder and decoder, whose layers have cross-attention and its norm; final norms; bias of the head
h=768 v=$((30522 + 100))
planned t5-220m - 8 a100 $((h * (v + 512) + 24 * (12 * h * h + 13 * h) + 12 * (4 * h * h + 6 * h) + 4 * h + v))
planned gpt3-175b 50256 1024 a100 174604259328
planned llama3-8b 128255 8 h100 8030261248

# The comment of a recipe lists the possible powers of two as world sizes; for other sizes the message suggests a batch
# size.
# shellcheck disable=SC2046 # words
dry_run() { meg-train -q --config "$1.conf" $(null_tokenizer "$1" 99) --dry-run --world-size "$2"; }
for f in "$recipes"/*.conf; do
    name=${f##*/}
    name=${name%.conf}
    fits=''
    for n in 1 2 4 8 16 32 64 128 256 512 1024 2048 4096; do
        dry_run "$name" "$n" >/dev/null 2>"$T/err" && fits="$fits $n"
    done
    is "$name: its comment has the possible world sizes" \
        "$(sed -n 's/^# Possible world sizes:\([ ,0-9]*\)\..*/\1/p' "$f" | tr -d ,)" "$fits"
done
for name in gpt-345m llama3-8b; do
    dry_run "$name" 1024 >/dev/null 2>"$T/err"
    batch=$(sed -n 's/.*--global-batch-size [0-9]*: must be .*; use \([0-9]*\), the nearest multiple.*/\1/p' "$T/err")
    status "$name: 1024 ranks accept the batch size of the message, ${batch:-none}" 0 \
        meg-train -q --config "$name.conf" --tokenizer-type NullTokenizer --vocab-size 99 --dry-run --world-size 1024 \
        --global-batch-size "${batch:-0}"
done
dry_run gpt3-175b 4096 >/dev/null 2>"$T/err"
like 'gpt3-175b: for 4096 ranks the message says what to change about the ramp-up' "$(cat "$T/err")" \
    '--rampup-batch-size, at a global batch size of 16: .*; use a START and INCREMENT that are multiples of 32'

# trains NAME RANKS OPTION...: train a tiny model for three iterations
tiny='--tokenizer-type NullTokenizer --vocab-size 99 --num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 32'
trains() {
    name=$1 n=$2
    shift 2
    # shellcheck disable=SC2086
    ranks "$n" meg-train -q --config "$name.conf" $tiny --max-position-embeddings 32 --global-batch-size 8 \
        --eval-iters 0 --log-interval 1 "$@" >"$T/out" 2>"$T/err"
    is "$name: a tiny model trains" $? 0
    # An untrained model of 100 ids (--vocab-size and the end of a document) has a loss of about ln 100 = 4.61.
    is "$name: three losses of an untrained model" "$(sed -n 's/.* lm loss: \([^ ]*\) .*/\1/p' "$T/out" |
        awk '/^[0-9.]+E[+]00$/ && $1 > 4.3 && $1 < 5.3 { n++ } END { print NR, n }')" '3 3'
    sed 's/^/# /' "$T/err"
}
if [ -x "$B/tests/ranks/comm" ]; then
    trains gpt-345m 2 --train-iters 3 --lr-decay-iters 3 --initial-loss-scale 1024
    trains gpt3-175b 4 --train-samples 20 --rampup-batch-size 4 4 8 --lr-decay-samples 20 --lr-warmup-samples 4 --initial-loss-scale 1024 \
        --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
    trains llama3-8b 4 --train-iters 3 --lr-warmup-iters 1 --ffn-hidden-size 64 --num-query-groups 2
else
    skip 'tiny models train' 'this build has no MPI'
fi
done_testing
