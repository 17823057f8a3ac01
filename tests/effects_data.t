#!/bin/sh
# needs: ranks/comm
# modules: data
# The effect of each option of meg-train on data and tokenizer, in a plan, a log or files.
# shellcheck disable=SC2317  # functions are called by effect
. "${0%/*}/lib.sh"
. "${0%/*}/train.sh"
. "${0%/*}/bert.sh"
cp "$T/conf" "$T/bert.conf"
. "${0%/*}/t5.sh"
cp "$T/conf" "$T/t5.conf"
. "${0%/*}/ranks.sh"
. "${0%/*}/effects.sh"
cd "$T" || exit 1
tokenizers=$golden/../tokenizers
cat >gpt.conf <<'end'
num-layers = 1
hidden-size = 16
num-attention-heads = 2
seq-length = 16
max-position-embeddings = 16
micro-batch-size = 2
global-batch-size = 4
train-iters = 3
lr = 1e-2
eval-iters = 1
log-interval = 1
end
id_lines 40 5 >b.jsonl
meg-preprocess -q --input b.jsonl --tokenizer-type NullTokenizer --vocab-size 100 --append-eod --output-prefix b || exit 1
b=b_text_document a=ids_text_document
null='--tokenizer-type NullTokenizer --vocab-size 100'

# ---- data ----
bare() { run meg-train -q --config gpt.conf $null "$@"; }
log() { bare --data-path $a --split 60,20,20 "$@"; }
# The datasets of --data-path, unless the option names others
log_paths() {
    [ $# -gt 0 ] || set -- --data-path $b
    bare --split 60,20,20 "$@"
}
log_sets() {
    [ $# -gt 0 ] || set -- --train-data-path $b
    bare --eval-iters 0 "$@"
}
log_train() { bare --train-data-path $a --valid-data-path $a --test-data-path $a "$@"; }
log_blend() { bare --split 60,20,20 --data-path 0.9 $a 0.05 $b 0.05 $a "$@"; }
log_weighted() { bare --train-weighted-split-paths "train: 1 0:1 $a" "$@"; }
log_epochs() { bare --data-path $b --split 60,20,20 --train-iters 24 --eval-iters 0 "$@"; }
dry_blend() { log_blend --dry-run "$@"; }
dry_surplus() { log_blend --megatron-release 0.14 --train-iters 1000 --dry-run "$@"; }
cached() {
    rm -rf cache
    log "$@"
    [ ! -e cache ] || echo cache/*
}
log_bert() { run meg-train -q --config bert.conf --train-iters 1 --eval-iters 0 --lr-warmup-iters 0 "$@"; }
log_ranks() { run "${MPIRUN:-mpirun}" -n 2 meg-train -q --config gpt.conf $null --data-path $a --split 60,20,20 \
    --dataloader-type cyclic "$@"; }
echo "$a" >paths
echo '{"train":["'$a'"],"valid":["'$a'"],"test":["'$a'"]}' >splits.json
for split in train valid test; do echo "\"$split: 1 0:0.5 $b\"" >$split.split; done
effect log_paths '^> .* lm loss' --data-path $a
effect log '^> .* lm loss' --split 20,40,40
effect log_train '^> .*iteration.* lm loss' --train-data-path $b
effect log_train '^> .*validation set.* lm loss' --valid-data-path $b
effect log_train '^> .*test set.* lm loss' --test-data-path $b
effect log_paths '^> .* lm loss' --data-args-path paths
effect log_sets '^> .* lm loss' --per-split-data-args-path splits.json
effect log_sets '^> .*iteration.* lm loss' --train-weighted-split-paths "train: 1 0:1 $a"
effect log_weighted '^> .*validation set.* lm loss' --valid-weighted-split-paths "valid: 1 0:1 $b"
effect log_weighted '^> .*test set.* lm loss' --test-weighted-split-paths "test: 1 0:1 $b"
effect log_sets '^> .*iteration.* lm loss' --train-weighted-split-paths-path train.split
effect log_weighted '^> .*validation set.* lm loss' --valid-weighted-split-paths-path valid.split
effect log_weighted '^> .*test set.* lm loss' --test-weighted-split-paths-path test.split
effect log_epochs '^> .* lm loss' --data-order megatron-deepspeed
effect log_paths '^> .* lm loss' --mock-data
effect cached '^> cache/' --data-cache-path cache
effect log_blend '^> .* lm loss' --renormalize-blend-weights
effect dry_surplus '^>   train ' --mid-level-dataset-surplus 0.5
effect log '^> .* lm loss' --reset-position-ids
effect log '^> .* lm loss' --reset-attention-mask
effect log '^> .* lm loss' --eod-mask-loss
effect log_bert '^> .* lm loss' --mask-prob 0.5
effect log_bert '^> .* lm loss' --short-seq-prob 0.9
effect log '^> .* lm loss' --dataloader-type cyclic
if [ -x "$B/tests/ranks/comm" ]; then
    effect log_ranks '^> .* lm loss' --no-data-sharding
else
    unseen --no-data-sharding 'this build has no MPI'
fi
covers meg-train data

# ---- tokenizer: the size of the vocabulary, or the files in a checkpoint ----
dry() { run meg-train -q --config gpt.conf --mock-data --dry-run "$@"; }
dry_type() {
    [ $# -gt 0 ] || set -- $null
    dry "$@"
}
dry_null() { dry $null "$@"; }
dry_bert() { dry --tokenizer-type BertWordPieceCase --vocab-file "$tokenizers/bert-case.txt" "$@"; }
dry_hf() { dry --tokenizer-type HuggingFaceTokenizer --tokenizer-name-or-path "$tokenizers/hf-gpt2" "$@"; }
dry_spm() { dry --tokenizer-type SentencePieceTokenizer --tokenizer-model "$tokenizers/spm-bpe.model" "$@"; }
dry_tiktoken() { dry --tokenizer-type TikTokenizer --tokenizer-model "$tokenizers/ranks.json" "$@"; }
saved() {
    rm -rf ck
    run meg-train -q --config gpt.conf --mock-data --train-iters 1 --eval-iters 0 --save ck "$@"
    cksum ck/*/*.txt 2>&1
}
saved_gpt2() {
    saved --tokenizer-type GPT2BPETokenizer --vocab-file "$tokenizers/gpt2-vocab.json" \
        --merge-file "$tokenizers/gpt2-merges.txt" "$@"
}
sed '$d' "$tokenizers/gpt2-merges.txt" >merges.txt
head -n 100 "$tokenizers/bert-case.txt" >vocab.txt
effect dry_type '^> model .* vocabulary ' --tokenizer-type BertWordPieceLowerCase --vocab-file "$tokenizers/bert-lower.txt"
effect dry_bert '^> model .* vocabulary 102' --vocab-file vocab.txt
effect saved_gpt2 '^> .* ck/iter_0000001/' --merge-file merges.txt
effect dry_spm '^> model .* vocabulary ' --tokenizer-model "$tokenizers/spm-unigram.model"
effect dry_hf '^> model .* vocabulary ' --tokenizer-name-or-path "$tokenizers/hf-bert"
effect dry_spm '^> model .* vocabulary ' --vocab-extra-ids 10
effect dry_null '^> model .* vocabulary 201' --vocab-size 200
unseen --tiktoken-pattern 'training reads ids; tests/effects_commands.t has the row of meg-preprocess'
effect dry_tiktoken '^> model .* vocabulary ' --tiktoken-num-special-tokens 900
unseen --tiktoken-special-tokens 'training reads ids; tests/effects_commands.t has the row of meg-preprocess'
effect dry_blend '^>   train ' --megatron-release 0.14
covers meg-train tokenizer
done_testing
