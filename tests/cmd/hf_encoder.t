#!/bin/sh
# needs: ranks/comm
# Hugging Face directories of a BERT without language-model head, as BertModel and classifiers have.
. "${0%/*}/../lib.sh"
. "${0%/*}/../ranks.sh"
. "${0%/*}/../bert.sh"
train() { # DIR SEED OPTION...: train for a step that changes no weight, and save to $T/DIR
    to=$1 seed=$2
    shift 2
    $launcher meg-train -q --seq-length 32 --micro-batch-size 2 --global-batch-size 4 --train-iters 1 --lr 0 --eval-iters 0 \
        --split 100,0,0 --data-path "$T/text_text_sentence" --seed "$seed" --save "$T/$to" "$@" >"$T/log" 2>"$T/err" ||
        cat "$T/err"
}
new() { # DIR SEED OPTION...: save a new BERT
    train "$@" --model bert --num-layers 2 --hidden-size 32 --num-attention-heads 4 --max-position-embeddings 32 \
        --apply-residual-connection-post-layernorm --openai-gelu --tokenizer-type BertWordPieceLowerCase \
        --vocab-file "$bert_vocab"
}
folder() { # FROM TO CODE: copy the directory $T/FROM, and change the names of tensors
    cp -r "$T/$1" "$T/$2"
    perl "${0%/*}/../rename_tensors.pl" "$T/$1/model.safetensors" "$T/$2/model.safetensors" "$3"
}
same() { # PART A B: a part of the model is equal in two checkpoints
    cmp "$T/$2/iter_0000001/model-$1.safetensors" "$T/$3/iter_0000001/model-$1.safetensors"
}
# is_merged DIR: the embedding and the layers are those of "trained", and the head is that of "scratch"
is_merged() {
    same 0-embedding "$1" trained && same 1-layer-00000 "$1" trained && same 1-layer-00001 "$1" trained &&
        same 2-head "$1" scratch
}
launcher=
no_head='found no language-model head; expected the tensors of BertForPreTraining or BertForMaskedLM.*meg-train --finetune'

new trained 1 --bert-no-binary-head --num-tokentypes 2
new scratch 2 --bert-no-binary-head --num-tokentypes 2
convert trained masked
folder masked encoder 's/^cls\..*//; s/^bert\.//'

# ---- training initialises the head

train tuned 2 --load "$T/encoder" --finetune
is 'one warning names the parameters of the head' "$(cat "$T/err")" "meg-train: $T/encoder: found no language-model head; \
its parameters start with the values of a new model: lm_head.dense.weight, lm_head.dense.bias, \
lm_head.layer_norm.weight, lm_head.layer_norm.bias, output_layer.bias"
ok 'the encoder is loaded, and the head is that of a new model' is_merged tuned
status 'the two models have different heads' 1 same 2-head trained scratch
convert tuned tuned-hf
is 'the result is a BertForMaskedLM' "$(jq -r '.architectures[0]' "$T/tuned-hf/config.json")" BertForMaskedLM
if [ -x "$B/tests/ranks/comm" ]; then
    launcher="$mpirun -n 2"
    train sharded 2 --load "$T/encoder" --finetune --zero-stage 3
    ok 'shards of ZeRO-3 have the same values' is_merged sharded
    is 'only rank 0 warns' "$(grep -c 'found no language-model head' "$T/err")" 1
    launcher=
else
    skip 'shards of ZeRO-3 have the same values' 'this build has no MPI'
fi

folder masked classifier 's/^cls\.predictions\.transform\.LayerNorm/classifier/; s/^cls\..*//'
train from-classifier 2 --load "$T/classifier" --finetune
like 'the head of a classifier is ignored, with a warning' "$(cat "$T/err")" \
    'output_layer.bias; ignored: classifier.bias, classifier.weight$'
ok 'only the encoder of a classifier is loaded' is_merged from-classifier

# ---- a model with the binary head: BertForNextSentencePrediction

new pairs 1
convert pairs both
folder both next 's/^cls\.predictions.*//'
train next-tuned 2 --load "$T/next" --finetune
like 'the binary head is loaded' "$(meg-convert --info "$T/next-tuned")" '^binary_head.weight '
like 'the language-model head is initialised' "$(cat "$T/err")" 'found no language-model head'

# ---- commands that need the head

status 'no mask is filled by a missing head' 65 meg-eval --task fill-mask --load "$T/encoder" --input /dev/null
like 'meg-eval says what is missing' "$(cat "$T/err")" "encoder: $no_head"
status 'weights are not invented by a conversion' 65 meg-convert --load-dir "$T/encoder" --save-dir "$T/native"
like 'meg-convert says what is missing' "$(cat "$T/err")" "encoder: $no_head"
ok 'nothing is written' test ! -e "$T/native"
status 'an evaluation without training is refused' 65 meg-train -q --load "$T/encoder" --skip-train --seq-length 32 \
    --micro-batch-size 2 --eval-iters 1 --data-path "$T/text_text_sentence"
like 'meg-train says what is missing' "$(cat "$T/err")" "encoder: $no_head"
meg-convert --info "$T/encoder" --json >"$T/encoder.json"
meg-convert --info "$T/masked" --json >"$T/masked.json"
is '--info names the missing parameters' "$(jq -r '.missing' "$T/encoder.json" | tr -cd ,)" ,,,,
vocab=$(jq .vocab_size "$T/encoder.json")
is 'and does not count them' "$(jq .parameters "$T/encoder.json")" \
    $(($(jq .parameters "$T/masked.json") - 32 * 32 - 3 * 32 - vocab))
done_testing
