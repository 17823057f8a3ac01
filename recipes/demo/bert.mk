# BERT: WordPiece, sentences, masked words.
VOCAB  ?= 2048
DATA    := train_text_sentence.idx valid_text_sentence.idx
RESULTS := masked.json examples.txt

vocab.txt: train.jsonl $(MODEL).from
	meg-vocab --input $< --tokenizer-type BertWordPieceLowerCase --vocab-size $(VOCAB) --output-dir .
%_text_sentence.idx: %.jsonl vocab.txt
	meg-preprocess --input $< --tokenizer-type BertWordPieceLowerCase --vocab-file vocab.txt --split-sentences \
	    --output-prefix $*
masked.jsonl: valid.jsonl vocab.txt $(HERE)/mask.jq
	jq -c --rawfile vocab vocab.txt -f $(HERE)/mask.jq $< >$@
%/filled.jsonl: %/done masked.jsonl
	meg-eval --task fill-mask --load $* <masked.jsonl >$@
%/masked.json: %/filled.jsonl $(HERE)/masked.jq
	jq -n --slurpfile masked masked.jsonl --slurpfile filled $< -f $(HERE)/masked.jq >$@
%/examples.txt: %/filled.jsonl $(HERE)/example.jq
	paste masked.jsonl $< | awk 'NR % 300 == 1' | jq -r -f $(HERE)/example.jq >$@

.PRECIOUS: %/filled.jsonl
