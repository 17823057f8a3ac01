# Sourced after lib.sh by tests of filled masks: create a dataset of sentences in which a number belongs to each letter,
# $T/facts_text_sentence, and options of a tiny model for them, $T/conf, to which a test adds those of its family.
bert_vocab=$golden/../tokenizers/bert-lower.txt

awk 'BEGIN {
    for (i = 0; i < 200; i++)
        printf "{\"text\":\"%c is %d. %c is %d.\"}\n", 65 + i % 5, i % 5, 65 + i % 5, i % 5
}' >"$T/facts.jsonl"
meg-preprocess -q --input "$T/facts.jsonl" --tokenizer-type BertWordPieceLowerCase --vocab-file "$bert_vocab" \
    --split-sentences --output-prefix "$T/facts" 2>"$T/err" || cat "$T/err"

cat >"$T/conf" <<end
hidden-size = 32
num-attention-heads = 2
hidden-dropout = 0
attention-dropout = 0
seq-length = 16
max-position-embeddings = 16
short-seq-prob = 0.01
micro-batch-size = 16
lr-warmup-iters = 10
eval-iters = 0
split = 100,0,0
data-path = $T/facts_text_sentence
tokenizer-type = BertWordPieceLowerCase
vocab-file = "$bert_vocab"
end
