#!/bin/sh
# meg-train --model t5: loss, resuming, options of T5, and models and options that do not match.
. "${0%/*}/../lib.sh"
. "${0%/*}/../bert.sh"
. "${0%/*}/../t5.sh"

meg-train -q --config "$T/conf" --save "$T/all" --log-json "$T/all.json" >"$T/log" 2>"$T/err"
is 'a T5 is trained' $? 0
like 'the log has the loss' "$(grep 'iteration        1/' "$T/log")" '\| lm loss: [0-9.E+]+ \| loss scale'
ok 'the loss falls' jq -se 'map(select(.split == null)) | .[0].lm_loss - .[-1].lm_loss > 0.5' "$T/all.json"
ok 'the initial loss is that of a uniform guess' jq -se '.[0] | (.lm_loss - (534 | log) | fabs) < 0.1' "$T/all.json"
is 'meg-convert --info knows the family' "$(meg-convert --info "$T/all" --json | jq -r .model_type)" T5

# ---- resuming ----
meg-train -q --config "$T/conf" --save "$T/half" --exit-interval 5 >"$T/log" 2>"$T/err"
meg-train -q --config "$T/conf" --save "$T/half" --load "$T/half" >"$T/log" 2>"$T/err"
ok 'a resumed run is bit-identical' same_tensors "$T/half/iter_0000010" "$T/all/iter_0000010"

# ---- memory ----
meg-train -q --config "$T/conf" --train-iters 3 --dry-run >"$T/plan" 2>"$T/err"
is '--dry-run: the run is planned' $? 0
like '--dry-run: the plan has the family' "$(cat "$T/plan")" 'T5'

# ---- options ----
go() { # NAME OPTION...: train, and write the losses to $T/NAME
    name=$1
    shift
    rm -f "$T/json"
    meg-train -q --config "$T/conf" --train-iters 3 --log-json "$T/json" "$@" >"$T/log" 2>"$T/err" || cat "$T/err"
    jq -c .lm_loss "$T/json" >"$T/$name"
}
go base
differs() { # NAME: true if the run NAME is complete, and its losses differ from those of the base
    [ "$(grep -c . "$T/$1")" -eq 5 ] && ! cmp -s "$T/base" "$T/$1"
}
for option in '--decoder-num-layers 1' '--position-embedding-type relative' '--position-embedding-type rope' '--glu-activation geglu' \
    '--glu-activation reglu' '--softmax-scale 1' --openai-gelu '--mask-prob 0.3' '--short-seq-prob 0.9' \
    '--hidden-dropout 0' '--attention-dropout 0' '--seed 7' '--kv-channels 4' '--decoder-seq-length 22' \
    --untie-embeddings-and-output-weights '--normalization RMSNorm' --swiglu --disable-bias-linear; do
    # shellcheck disable=SC2086 # an option and its value
    go other $option
    case $option in
    --openai-gelu) ok "$option: GELU has the tanh form already" cmp -s "$T/base" "$T/other" ;;
    --decoder-seq-length*) ok "$option: padding has no effect" near "$T/base" "$T/other" ;;
    *) ok "$option has an effect" differs other ;;
    esac
done
go buckets --position-embedding-type relative
mv "$T/buckets" "$T/base"
for option in '--relative-attention-num-buckets 8' '--relative-attention-max-distance 17'; do
    # shellcheck disable=SC2086 # an option and its value
    go other --position-embedding-type relative $option
    ok "$option has an effect" differs other
done
go base
go bf16 --bf16
ok 'bf16 follows f32' jq -ne --slurpfile a "$T/base" --slurpfile b "$T/bf16" \
    '[range($a | length)] | length == 5 and all(.[]; ($a[.] - $b[.] | fabs) < 0.01 * $a[.])'
go decoder --encoder-num-layers 2 --encoder-seq-length 48
ok '--encoder-num-layers and --encoder-seq-length are other names' cmp -s "$T/base" "$T/decoder"

# ---- input that is refused ----
refuses() { # STATUS MESSAGE OPTION...
    want=$1 message=$2
    shift 2
    status "$*: exit status $want" "$want" meg-train -q --config "$T/conf" "$@"
    like "$*: the message names the reason" "$(cat "$T/err")" "$message"
}
gpt='--model gpt'
# shellcheck disable=SC2086 # an option and its value
{
    refuses 2 '^meg-train: --decoder-num-layers 2: requires --model t5' $gpt
    sed '/^decoder-num-layers/d' "$T/conf" >"$T/conf2" && mv "$T/conf2" "$T/conf"
    refuses 2 '^meg-train: --decoder-seq-length 24: requires --model t5' $gpt
    refuses 2 '^meg-train: --position-embedding-type relative: relative requires --model t5' $gpt \
        --position-embedding-type relative
}
sed '/^decoder-seq-length/d' "$T/conf" >"$T/no_decoder"
status 'the length of the decoder is required' 2 meg-train -q --config "$T/no_decoder"
like 'the message names the option' "$(cat "$T/err")" '^meg-train: --decoder-seq-length is required with --model t5'
refuses 2 '^meg-train: --relative-attention-num-buckets 7: must be even' --position-embedding-type relative \
    --relative-attention-num-buckets 7
refuses 2 '^meg-train: --glu-activation: cannot be combined with --swiglu' --glu-activation geglu --swiglu
refuses 2 '^meg-train: --group-query-attention: cannot be combined with --model t5' --group-query-attention
refuses 2 '^meg-train: --max-position-embeddings 48: must be at least --decoder-seq-length 50' --decoder-seq-length 50
for option in --reset-position-ids --reset-attention-mask --eod-mask-loss --calculate-per-token-loss; do
    refuses 2 "^meg-train: $option: (requires --model gpt|cannot be combined with --model t5)" $option
done
refuses 2 '^meg-train: --context-parallel-size 2: requires --model gpt' --context-parallel-size 2 --world-size 2 --dry-run
refuses 2 '--pipeline-model-parallel-split-rank 2: must be at least 1 and less than' --world-size 2 --dry-run \
    --pipeline-model-parallel-size 2 --pipeline-model-parallel-split-rank 2
refuses 2 '--num-layers 2: must be a multiple of the 3 pipeline stages' --world-size 4 --dry-run \
    --pipeline-model-parallel-size 4 --pipeline-model-parallel-split-rank 3
refuses 2 '--num-virtual-stages-per-pipeline-rank: cannot be combined with a model of an encoder' --world-size 2 --dry-run \
    --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2
refuses 2 '^meg-train: --decoder-seq-length 21: must be a multiple of 2' --world-size 2 --dry-run \
    --tensor-model-parallel-size 2 --sequence-parallel --decoder-seq-length 21
refuses 2 'sample 0 has .* increase --decoder-seq-length|more than --decoder-seq-length 3' --decoder-seq-length 3
refuses 2 'increase --vocab-extra-ids' --vocab-extra-ids 0
refuses 2 'the vocabulary has no \[MASK\] token' --tokenizer-type NullTokenizer --vocab-size 600 --vocab-extra-ids 0
status 'a T5 is no BERT' 2 meg-train -q --config "$T/bert_conf" --model bert --load "$T/all" --finetune --num-layers 2 \
    --seq-length 32 --max-position-embeddings 48
like 'the message has both families' "$(cat "$T/err")" '--model is t5 in the checkpoint, but bert in this run'
for command in 'meg-generate' 'meg-eval --task logprobs'; do
    echo '{"ids":[1,2,3]}' >"$T/p"
    # shellcheck disable=SC2086 # words
    status "$command refuses a T5" 2 $command --load "$T/all" --input "$T/p"
    like "$command: the message says so" "$(cat "$T/err")" 'a T5 model'
done
done_testing
