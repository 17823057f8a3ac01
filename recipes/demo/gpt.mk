# GPT: byte-level BPE, documents, perplexity, samples.
VOCAB  ?= 1024
DATA    := train_text_document.idx valid_text_document.idx
RESULTS := eval.json samples.txt

vocab.json merges.txt &: train.jsonl gpt.from
	meg-vocab --input $< --vocab-size $(VOCAB) --output-dir .
%_text_document.idx: %.jsonl vocab.json merges.txt  # .idx is written last, after .bin
	meg-preprocess --input $< --tokenizer-type GPT2BPETokenizer --vocab-file vocab.json --merge-file merges.txt \
	    --append-eod --output-prefix $*
prompts.jsonl: valid.jsonl
	head -n 4 $< | jq -c '{prompt: .text[:24]}' >$@
%/eval.json: %/done
	meg-eval --task ppl --load $* --data-path valid_text_document >$@
%/samples.txt: %/done prompts.jsonl
	meg-generate --load $* --tokens-to-generate 96 --top_p 0.9 --seed 1 --format text <prompts.jsonl >$@
