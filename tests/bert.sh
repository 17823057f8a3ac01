# Sourced after lib.sh by tests of BERT: create a dataset of sentences, $T/text_text_sentence, and the options of a tiny
# BERT, $T/conf.
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
vocab-file = $bert_vocab
end
