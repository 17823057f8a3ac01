#!/bin/sh
# meg-train --model bert: losses, resuming, options of BERT, and models and options that do not match.
. "${0%/*}/../lib.sh"
. "${0%/*}/../bert.sh"

meg-train -q --config "$T/conf" --save "$T/all" --log-json "$T/all.json" --tensorboard-dir "$T/events" >"$T/log" 2>"$T/err"
is 'a BERT is trained' $? 0
like 'the log has both losses' "$(grep 'iteration        1/' "$T/log")" '\| lm loss: [0-9.E+]+ \| sop loss: [0-9.E+-]+ \|'
like 'an evaluation has both losses' "$(grep 'on validation set' "$T/log")" \
    '\| lm loss value: .* \| lm loss PPL: .* \| sop loss value: .* \| sop loss PPL: '
is 'the metrics have both losses' \
    "$(jq -c 'select([.lm_loss, .sop_loss] | map(type) == ["number", "number"])' "$T/all.json" | grep -c .)" 14
ok 'TensorBoard has both losses' grep -q 'sop loss validation' "$T"/events/*
ok 'the lm loss falls' jq -se 'map(select(.split == null)) | .[0].lm_loss - .[-1].lm_loss > 0.3' "$T/all.json"
# the masked tokens of two evaluations are the same, so only the weights change the loss
ok 'the initial losses are those of a uniform guess' jq -se '.[0] | (.lm_loss - (502 | log) | fabs) < 0.1 and (.sop_loss - (2 | log) | fabs) < 0.05' "$T/all.json"

# ---- resuming ----
meg-train -q --config "$T/conf" --save "$T/half" --exit-interval 5 >"$T/log" 2>"$T/err"
meg-train -q --config "$T/conf" --save "$T/half" --load "$T/half" >"$T/log" 2>"$T/err"
ok 'a resumed run is bit-identical' same_tensors "$T/half/iter_0000010" "$T/all/iter_0000010"
is 'meg-convert --info knows the family' "$(meg-convert --info "$T/all" --json | jq -r .model_type)" BERT

# ---- options ----
go() { # NAME OPTION...: train, and write the losses to $T/NAME
    name=$1
    shift
    rm -f "$T/json"
    meg-train -q --config "$T/conf" --train-iters 3 --log-json "$T/json" "$@" >"$T/log" 2>"$T/err" || cat "$T/err"
    jq -c '[.lm_loss, .sop_loss]' "$T/json" >"$T/$name"
}
go base
differs() { # NAME: true if the run NAME is complete, and its losses differ from those of the base
    [ "$(grep -c . "$T/$1")" -eq 5 ] && ! cmp -s "$T/base" "$T/$1"
}
for option in --apply-residual-connection-post-layernorm --openai-gelu '--mask-prob 0.3' '--short-seq-prob 0.9' \
    '--hidden-dropout 0' '--attention-dropout 0' '--seed 7' '--position-embedding-type rope' \
    --untie-embeddings-and-output-weights '--normalization RMSNorm' --swiglu; do
    # shellcheck disable=SC2086 # an option and its value
    go other $option
    ok "$option has an effect" differs other
done
go mlm --bert-no-binary-head
is '--bert-no-binary-head: there is no sop loss' "$(grep -c ',null\]' "$T/mlm")" 5
ok '--bert-no-binary-head: samples are other samples' differs mlm
go bf16 --bf16
ok 'bf16 follows f32' jq -ne --slurpfile a "$T/base" --slurpfile b "$T/bf16" \
    '[range($a | length)] | all(($a[.][0] - $b[.][0] | fabs) < 0.01 * $a[.][0])'

# ---- input that is refused ----
refuses() { # STATUS MESSAGE OPTION...
    want=$1 message=$2
    shift 2
    status "$*: exit status $want" "$want" meg-train -q --config "$T/conf" "$@"
    like "$*: the message names the reason" "$(cat "$T/err")" "$message"
}
refuses 2 '^meg-train: --bert-no-binary-head: requires --model bert' --model gpt --bert-no-binary-head
refuses 2 '^meg-train: --mask-prob 0.2: requires --model bert' --model gpt --mask-prob 0.2
refuses 2 '^meg-train: --short-seq-prob 0.2: requires --model bert' --model gpt --short-seq-prob 0.2
refuses 2 '^meg-train: --mask-prob 1.5: must be above 0 and below 1' --mask-prob 1.5
for option in --reset-position-ids --reset-attention-mask --eod-mask-loss --calculate-per-token-loss; do
    refuses 2 "^meg-train: $option: cannot be combined with --model bert" $option
done
refuses 2 '^meg-train: --context-parallel-size 2: cannot be combined with --model bert' --context-parallel-size 2 --world-size 2 --dry-run
refuses 2 '^meg-train: the vocabulary has no \[MASK\] token' --tokenizer-type NullTokenizer --vocab-size 600
refuses 2 '--model is bert in the checkpoint, but gpt in this run' --model gpt --load "$T/all" --finetune
meg-preprocess -q --input "$T/text.jsonl" --tokenizer-type BertWordPieceLowerCase --vocab-file "$bert_vocab" \
    --output-prefix "$T/unsplit" 2>"$T/err"
refuses 65 'preprocess the text with --split-sentences' --data-path "$T/unsplit_text_document"
sed '/^data-path/d' "$T/conf" >"$T/mock"
status 'mock data have no sentences' 2 meg-train -q --config "$T/mock" --mock-data
like 'mock data: the message says so' "$(cat "$T/err")" 'has no sentences'
for command in 'meg-generate' 'meg-eval --task logprobs'; do
    echo '{"ids":[1,2,3]}' >"$T/p"
    # shellcheck disable=SC2086 # words
    status "$command refuses a BERT" 2 $command --load "$T/all" --input "$T/p"
    like "$command: the message says so" "$(cat "$T/err")" 'a BERT model predicts masked tokens'
done
for format in hf megatron mcore; do
    status "meg-convert --saver $format refuses a BERT" 2 meg-convert --load-dir "$T/all" --save-dir "$T/$format" --saver $format
    ok "meg-convert --saver $format leaves nothing behind" test ! -e "$T/$format"
done
done_testing
