#!/bin/sh
# modules: model
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
for model in bert t5; do
    grep -v '^tokenizer-type\|^model' "$T/conf" >"$T/untyped"
    decoder=$([ $model = bert ] || echo --decoder-seq-length 16 --vocab-extra-ids 30)
    # shellcheck disable=SC2086 # nothing, or options
    status "--model $model: --vocab-file needs no type" 0 meg-train -q --config "$T/untyped" --model $model $decoder \
        --lr-warmup-iters 0 --train-iters 1 --eval-iters 0 --split 1,0,0 --save "$T/untyped-$model"
    like "--model $model: the type is that of Megatron's program" "$(cat "$T/untyped-$model/iter_0000001/run.conf")" \
        '^tokenizer-type = BertWordPieceLowerCase$'
done
status 'a GPT without a type requires merges' 2 meg-train --config "$T/untyped" --model gpt
like 'the message names --merge-file' "$(cat "$T/err")" 'merge-file'
go mlm --bert-no-binary-head
is '--bert-no-binary-head: there is no sop loss' "$(grep -c ',null\]' "$T/mlm")" 5
ok '--bert-no-binary-head: samples are other samples' differs mlm
go bf16 --bf16
ok 'bf16 follows f32' jq -ne --slurpfile a "$T/base" --slurpfile b "$T/bf16" \
    '[range($a | length)] | all(($a[.][0] - $b[.][0] | fabs) < 0.01 * $a[.][0])'

# ---- the loss of a step is the mean over its micro-batches, whatever their numbers of masked tokens ----
losses() { # OPTION...: print the losses of steps that change nothing
    rm -f "$T/json"
    meg-train -q --config "$T/conf" --lr 1e-30 --min-lr 0 --lr-warmup-iters 0 --hidden-dropout 0 --attention-dropout 0 \
        --eval-iters 0 --log-json "$T/json" "$@" >"$T/log" 2>"$T/err" || cat "$T/err"
    jq .lm_loss "$T/json"
}
losses --global-batch-size 2 --train-iters 4 | awk '{ sum += $1 } END { printf "%.8f\n", sum / NR }' >"$T/mean"
losses --global-batch-size 8 --train-iters 1 >"$T/step"
ok 'the loss of four micro-batches is the mean of their losses' near "$T/mean" "$T/step" 1e-7

# ---- segments: each has an embedding of 32 elements ----
parameters() { meg-train -q --config "$T/conf" --dry-run "$@" | sed -n 's/^  all  *[0-9]*  *\([0-9]*\)$/\1/p' | head -n 1; }
is 'there are two segments with the binary head' "$(parameters)" "$(parameters --num-tokentypes 2)"
is 'there are none without it' "$(parameters --bert-no-binary-head)" "$(parameters --bert-no-binary-head --num-tokentypes 0)"
is 'a segment has 32 parameters' "$(parameters --bert-no-binary-head --num-tokentypes 2)" $(($(parameters --bert-no-binary-head) + 64))

# ---- input that is refused ----
refuses() { # STATUS MESSAGE OPTION...
    want=$1 message=$2
    shift 2
    status "$*: exit status $want" "$want" meg-train -q --config "$T/conf" "$@"
    like "$*: the message names the reason" "$(cat "$T/err")" "$message"
}
refuses 2 'a GPT: --bert-no-binary-head is not supported; use --model bert' --model gpt --bert-no-binary-head
refuses 2 'a GPT: --mask-prob 0.2 is not supported; use --model bert or t5' --model gpt --mask-prob 0.2
refuses 2 'a GPT: --short-seq-prob 0.2 is not supported; use --model bert or t5' --model gpt --short-seq-prob 0.2
refuses 2 '^meg-train: --mask-prob 1.5: must be above 0 and below 1' --mask-prob 1.5
for option in --reset-position-ids --reset-attention-mask --eod-mask-loss; do
    refuses 2 "^meg-train: the model cannot be a BERT: $option is not supported; use --model gpt" $option
done
refuses 2 'a BERT: --calculate-per-token-loss is not supported; use --model gpt' --calculate-per-token-loss
refuses 2 'a BERT: --context-parallel-size 2 is not supported; use --model gpt' --context-parallel-size 2 --world-size 2 --dry-run
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

# ---- other formats ----
meg-train -q --config "$T/conf" --train-iters 3 --openai-gelu --save "$T/pre" >"$T/log" 2>"$T/err"
meg-train -q --config "$T/conf" --train-iters 3 --no-bias-gelu-fusion --apply-residual-connection-post-layernorm \
    --norm-epsilon 1e-12 --save "$T/post" >"$T/log" 2>"$T/err"
for model in pre post; do
    convert $model $model-native --saver native
    for saver in hf megatron mcore; do
        [ $model-$saver != post-mcore ] || continue # Megatron core has no post-norm
        convert $model $model-$saver --saver $saver --model-type BERT
        convert $model-$saver $model-$saver-back --saver native
        ok "$model to $saver and back: the weights are equal" same_weights $model-native $model-$saver-back
        is "$model-$saver: --info has the family" "$(meg-convert --info "$T/$model-$saver" --json | jq -r .model_type)" BERT
    done
    convert $model $model-ranks --saver megatron --target-tensor-parallel-size 2 --target-pipeline-parallel-size 2
    convert $model-ranks $model-ranks-back --saver native
    ok "$model to 2 x 2 ranks and back: the weights are equal" same_weights $model-native $model-ranks-back
done
convert pre pre-core --target-tensor-parallel-size 2 --target-pipeline-parallel-size 2
convert pre-core pre-core-back --saver native
ok 'pre to 2 x 2 ranks of Megatron core and back: the weights are equal' same_weights pre-native pre-core-back
status 'meg-convert --saver mcore refuses a model with post-norm' 2 \
    meg-convert --load-dir "$T/post" --save-dir "$T/no" --saver mcore
like 'the message names the option' "$(cat "$T/err")" 'Megatron core: --apply-residual-connection-post-layernorm yes would be read as no; use'
ok 'nothing is left behind' test ! -e "$T/no/release"
status 'the --model-type of another model is refused' 65 \
    meg-convert --load-dir "$T/pre" --save-dir "$T/no" --saver hf --model-type GPT
meg-convert --load-dir "$T/all" --save-dir "$T/all-hf" >"$T/log" 2>"$T/err"
like 'two forms of GELU cause a warning' "$(cat "$T/err")" 'exact GELU.*gelu_new is written'
is 'config.json has the type of the model' "$(jq -r '.model_type + " " + .hidden_act' "$T/post-hf/config.json")" 'bert gelu'
is 'tokenizer_config.json has do_lower_case' "$(jq -c .do_lower_case "$T/pre-hf/tokenizer_config.json")" true

# ---- initial weights in another format ----
sed '/^model\|^num-\|^hidden\|^max-\|^tokenizer\|^vocab/d' "$T/conf" >"$T/data"
first_loss() { # CHECKPOINT OPTION...: print the losses of the first step
    from=$1
    shift
    rm -f "$T/json"
    meg-train -q --config "$T/data" --train-iters 1 --lr-warmup-iters 0 --log-json "$T/json" --load "$T/$from" --finetune \
        --use-checkpoint-args --hidden-dropout 0 --attention-dropout 0 "$@" >"$T/log" 2>"$T/err" || cat "$T/err"
    jq -sc '.[0] | [.lm_loss, .sop_loss]' "$T/json"
}
for model in pre post; do
    first_loss $model-native >"$T/want"
    ok "$model: the native checkpoint can be loaded" grep -q '^\[[0-9.]*,[0-9.]*\]$' "$T/want"
    is "$model-hf: meg-train has the losses of the native checkpoint" "$(first_loss $model-hf)" "$(cat "$T/want")"
    for format in megatron ranks; do # these have no tokenizer
        is "$model-$format: meg-train has the losses of the native checkpoint" \
            "$(first_loss $model-$format --tokenizer-type BertWordPieceLowerCase --vocab-file "$bert_vocab")" "$(cat "$T/want")"
    done
done
jq 'del(.meg_tokenizer)' "$T/pre-hf/tokenizer_config.json" >"$T/tok" && mv "$T/tok" "$T/pre-hf/tokenizer_config.json"
mv "$T/pre-hf/tokenizer.json" "$T/tokenizer.json"
is 'vocab.txt and do_lower_case determine the tokenizer' \
    "$(meg-convert --info "$T/pre-hf" --json | jq -r '.options["tokenizer-type"]')" BertWordPieceLowerCase
is 'meg-train opens this tokenizer' "$(first_loss pre-hf)" "$(first_loss pre-native)"
cp "$T/tokenizer.json" "$T/pre-hf"
is 'tokenizer.json is preferred to vocab.txt' \
    "$(meg-convert --info "$T/pre-hf" --json | jq -r '.options["tokenizer-type"]')" PretrainedFromHF
is 'meg-train opens this tokenizer, too' "$(first_loss pre-hf)" "$(first_loss pre-native)"
done_testing
