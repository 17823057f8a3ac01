#!/bin/sh
# modules: model
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

# ---- cost estimates ----
meg-train -q --config "$T/conf" --train-iters 3 --decoder-num-layers 1 --dry-run >"$T/plan" 2>"$T/err"
is '--dry-run: the run is planned' $? 0
like '--dry-run: the estimate has the layers of both stacks' "$(cat "$T/plan")" \
    '^model +T5: 2 encoder and 1 decoder layers, hidden 32,'
like '--dry-run: it has both sequence lengths' "$(cat "$T/plan")" ', encoder sequence 48, decoder sequence 24$'
parameters() { meg-train -q --config "$T/conf" --dry-run "$@" | sed -n 's/^  all  *[0-9]*  *\([0-9]*\)$/\1/p' | head -n 1; }
is 'an untied output layer of 532 tokens has weights instead of biases' \
    "$(parameters --untie-embeddings-and-output-weights)" $(($(parameters) + 532 * (32 - 1)))
like '--dry-run: its tokens are those of the encoder' "$(cat "$T/plan")" '^work +FLOP +encoder tokens$'
is '--dry-run: it has the tokens of a step' "$(awk '/^  a step/ { print $NF }' "$T/plan")" $((8 * 48))
like '--dry-run: it has the tokens a second' "$(cat "$T/plan")" '^  encoder tokens a second +[0-9.e+]+$'
meg-train -q --config "$T/conf" --plan --world-size 2 --hardware h100 >"$T/want" 2>"$T/err"
meg-train -q --config "$T/conf" --plan --world-size 2 --hardware h100 --pipeline-model-parallel-size 2 \
    --pipeline-model-parallel-split-rank 1 >"$T/plan" 2>"$T/err"
is '--plan with a split rank: the run is planned' $? 0
ok '--plan ignores the given layout' cmp "$T/want" "$T/plan"

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
    --untie-embeddings-and-output-weights '--normalization RMSNorm' --swiglu --disable-bias-linear '--activation-func relu' '--logit-multiplier 0.5'; do
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
    refuses 2 '^meg-train: the model cannot be a GPT: --decoder-num-layers 2 is not supported; use --model t5' $gpt
    sed '/^decoder-num-layers/d' "$T/conf" >"$T/conf2" && mv "$T/conf2" "$T/conf"
    refuses 2 'a GPT: --decoder-seq-length 24 is not supported; use --model t5' $gpt
    refuses 2 'a GPT: --position-embedding-type relative is not supported; use --model t5' $gpt \
        --position-embedding-type relative
}
sed '/^decoder-seq-length/d' "$T/conf" >"$T/no_decoder"
status 'the length of the decoder is required' 2 meg-train -q --config "$T/no_decoder"
like 'the message names the option' "$(cat "$T/err")" '^meg-train: --decoder-seq-length is required with --model t5'
refuses 2 '^meg-train: --relative-attention-num-buckets 7: must be even' --position-embedding-type relative \
    --relative-attention-num-buckets 7
refuses 2 '^meg-train: --glu-activation: cannot be combined with --swiglu' --glu-activation geglu --swiglu
refuses 2 '^meg-train: the model cannot be a T5: --group-query-attention is not supported; use --model gpt or bert' --group-query-attention
refuses 2 '^meg-train: --max-position-embeddings 48: must be at least --decoder-seq-length 50' --decoder-seq-length 50
for option in --reset-position-ids --reset-attention-mask --eod-mask-loss --calculate-per-token-loss; do
    refuses 2 "a T5: $option is not supported; use --model gpt" $option
done
refuses 2 '^meg-train: --num-layers 60000: the model would have 120000 layers; the limit is 99999' --num-layers 60000 \
    --decoder-num-layers 60000 --dry-run
refuses 2 'a T5: --context-parallel-size 2 is not supported; use --model gpt' --context-parallel-size 2 --world-size 2 --dry-run
refuses 2 '--pipeline-model-parallel-split-rank 2: must be at least 1 and less than' --world-size 2 --dry-run \
    --pipeline-model-parallel-size 2 --pipeline-model-parallel-split-rank 2
refuses 2 '--num-layers 2: must be a multiple of 3, the number of pipeline stages' --world-size 4 --dry-run \
    --pipeline-model-parallel-size 4 --pipeline-model-parallel-split-rank 3
refuses 2 '--num-virtual-stages-per-pipeline-rank: cannot be combined with a model of an encoder' --world-size 2 --dry-run \
    --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2
refuses 2 '^meg-train: --decoder-seq-length 21: must be a multiple of 2' --world-size 2 --dry-run \
    --tensor-model-parallel-size 2 --sequence-parallel --decoder-seq-length 21
refuses 2 '--distribute-saved-activations: --micro-batch-size 1 times --decoder-seq-length 21 .* must be a multiple of' \
    --world-size 2 --dry-run --tensor-model-parallel-size 2 --micro-batch-size 1 --decoder-seq-length 21 \
    --distribute-saved-activations --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
refuses 2 '--micro-batch-size 40000000: the product with --decoder-seq-length 60 must be at most 2147483647 tokens' \
    --micro-batch-size 40000000 --decoder-seq-length 60
refuses 2 'sample 0 has .* increase --decoder-seq-length|more than --decoder-seq-length 3' --decoder-seq-length 3
refuses 2 'increase --vocab-extra-ids' --vocab-extra-ids 0
refuses 2 'the vocabulary has no \[BOS\] token' --tokenizer-type NullTokenizer --vocab-size 600 --vocab-extra-ids 0
status 'a T5 is no BERT' 2 meg-train -q --config "$T/bert_conf" --model bert --load "$T/all" --finetune --num-layers 2 \
    --seq-length 32 --max-position-embeddings 48
like 'the message has both families' "$(cat "$T/err")" '--model is t5 in the checkpoint, but bert in this run'
for command in 'meg-generate' 'meg-eval --task logprobs'; do
    echo '{"ids":[1,2,3]}' >"$T/p"
    # shellcheck disable=SC2086 # words
    status "$command refuses a T5" 2 $command --load "$T/all" --input "$T/p"
    like "$command: the message says so" "$(cat "$T/err")" 'a T5 model'
done

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

# ---- other formats ----
sed '/^model\|num-layers\|^hidden\|^num-att\|^max-\|^tokenizer\|^vocab/d' "$T/conf" >"$T/data"
first_loss() { # CHECKPOINT: print the loss of the first step; the formats of Megatron have no tokenizer
    rm -f "$T/json"
    meg-train -q --config "$T/data" --train-iters 1 --lr-warmup-iters 0 --log-json "$T/json" --load "$T/$1" --finetune \
        --use-checkpoint-args --hidden-dropout 0 --attention-dropout 0 --tokenizer-type BertWordPieceLowerCase \
        --vocab-file "$bert_vocab" --vocab-extra-ids 30 >"$T/log" 2>"$T/err" || cat "$T/err"
    jq -sc '.[0].lm_loss' "$T/json"
}
rms='--position-embedding-type relative --normalization RMSNorm --disable-bias-linear --softmax-scale 1 --decoder-num-layers 4'
v0="$rms --activation-func relu --logit-multiplier 0.17677669529663687" # 1 / sqrt(32)
v1="$rms --glu-activation geglu --openai-gelu --untie-embeddings-and-output-weights"
for model in learned v0 v1; do
    case $model in
    learned) options='' savers='megatron mcore' stages=2 ;;
    v0) options=$v0 savers='mcore hf' stages=3 ;;
    v1) options=$v1 savers='mcore hf' stages=6 ;;
    esac
    # shellcheck disable=SC2086 # options and their values
    meg-train -q --config "$T/conf" --train-iters 3 $options --save "$T/$model" >"$T/log" 2>"$T/err"
    convert $model $model-native --saver native
    first_loss $model-native >"$T/want"
    for saver in $savers; do
        convert $model $model-$saver --saver $saver --model-type T5
        convert $model-$saver $model-$saver-back --saver native
        ok "$model to $saver and back: the weights are equal" same_weights $model-native $model-$saver-back
        is "$model-$saver: meg-train has the loss of the native checkpoint" "$(first_loss $model-$saver)" "$(cat "$T/want")"
    done
    convert $model $model-ranks --saver "${savers%% *}" --target-tensor-parallel-size 2 \
        --target-pipeline-parallel-size $stages
    convert $model-ranks $model-ranks-back --saver native
    ok "$model to 2 x $stages ranks and back: the weights are equal" same_weights $model-native $model-ranks-back
    is "$model: the lengths are those of the run" \
        "$(meg-convert --info "$T/$model-ranks-back" --json | jq -c '.options | [."seq-length", ."decoder-seq-length"]')" '["48","24"]'
done
status 'a T5 with learned positions is not written to Hugging Face' 2 \
    meg-convert --load-dir "$T/learned" --save-dir "$T/no" --saver hf
like 'the message names the option' "$(cat "$T/err")" 't5 format: --position-embedding-type learned_absolute would be read as relative'
is 'the decoder starts with the token of training' \
    "$(jq .decoder_start_token_id "$T/v0-hf/config.json")" "$(jq '.added_tokens[] | select(.content == "[BOS]").id' "$T/v0-hf/tokenizer.json")"
is 'the tokenizer has the extra ids' "$(jq -c '.meg_tokenizer[:2]' "$T/v0-hf/tokenizer_config.json")" \
    '["tokenizer-type = BertWordPieceLowerCase","vocab-extra-ids = 30"]'
done_testing
