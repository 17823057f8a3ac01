# Each harness in tests/fuzz is linked with the modules and files of lib/ckpt that parse untrusted files, and with what
# these files call.
FUZZ_S     ?= 60
FUZZ_CC    ?= clang
FUZZ_MODULES := base foreign file option unicode io sentence tokenizer data preprocess
FUZZ_SRCS  := $(foreach m,$(FUZZ_MODULES),$(wildcard lib/$m/*.c lib/$m/*/*.c)) \
              $(patsubst %,lib/ckpt/%.c,safetensors folder megatron/names megatron/pt megatron/pickle megatron/zip \
              $(addprefix torch_dist/,chunks compose item metadata names run)) lib/tensor/dtype.c
FUZZERS    := $(patsubst %.c,build/fuzz/%,$(wildcard tests/fuzz/*.c))
FUZZ_FLAGS := -O1 -g -std=gnu11 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all
build/fuzz/%: %.c $(FUZZ_SRCS)
	@mkdir -p $(@D)
	$(call run,$(FUZZ_CC) $(MEG_CPPFLAGS) $(FUZZ_FLAGS) -o $@ $< $(FUZZ_SRCS) $(MEG_LIBS))
fuzz: $(FUZZERS)
	@t=$$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d); trap 'rm -rf "$$t"' EXIT; \
	for f in $(FUZZERS); do \
	    mkdir -p $$f.corpus; \
	    echo "$$f: $(FUZZ_S) s"; \
	    TMPDIR=$$t $$f -max_total_time=$(FUZZ_S) -close_fd_mask=2 -artifact_prefix=$$f. \
	        $$f.corpus $$(ls -d tests/fuzz/$${f##*/}.seeds 2>/dev/null) || exit 1; \
	done
