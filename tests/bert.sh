# Sourced after lib.sh by tests of BERT: create a dataset of sentences, $T/text_text_sentence, and the options of a tiny
# BERT, $T/conf.  convert and same_weights compare the formats of checkpoints.
awk 'BEGIN { RS = "" } { gsub(/[^A-Za-z0-9 .,\n]/, ""); gsub(/\n */, " "); print "{\"text\":\"" $0 "\"}" }' \
    "$golden/../../../LICENSE" "$golden/../../../README.md" "$golden/../../../CONTRIBUTING.md" >"$T/text.jsonl"
bert_vocab=$golden/../tokenizers/bert-lower.txt
meg-preprocess -q --input "$T/text.jsonl" --tokenizer-type BertWordPieceLowerCase --vocab-file "$bert_vocab" \
    --split-sentences --output-prefix "$T/text" 2>"$T/err" || exit 1

cat >"$T/conf" <<end
model = bert
num-layers = 2
hidden-size = 32
num-attention-heads = 4
seq-length = 32
max-position-embeddings = 32
micro-batch-size = 2
global-batch-size = 8
train-iters = 10
lr = 1e-2
lr-warmup-iters = 2
eval-iters = 1
eval-interval = 5
log-interval = 1
split = 80,20,0
data-path = $T/text_text_sentence
tokenizer-type = BertWordPieceLowerCase
vocab-file = "$bert_vocab"
end

convert() { # FROM TO OPTION...: convert the checkpoint $T/FROM to $T/TO
    from=$1 to=$2
    shift 2
    meg-convert -q --load-dir "$T/$from" --save-dir "$T/$to" "$@" 2>"$T/err" || cat "$T/err"
}
same_weights() { # A B: native checkpoints have equal weights
    same_tensors "$T/$1/release" "$T/$2/release"
}
