# What builds and runs the tests.  Folders of tests that build variants of the commands have a rules.mk of their own.

# $(call wrap,FUNCTION...): let the linker redirect calls of FUNCTION to __wrap_FUNCTION
wrap = $(1:%=-Wl,--wrap=%)
UNITS := $(patsubst %.c,$(B)/%,$(wildcard tests/unit/*/*.c))
$(B)/tests/unit/%.o: MODULE_FLAGS := -Itests/unit
$(UNITS): LD_FLAGS = -lcmocka
$(UNITS): %: %.c.o $(B)/libmeg.a
	$(ld)

# The cases of operations, which several programs run.
OPS_OBJS := $(patsubst %,$(B)/%.o,$(wildcard tests/ops/*.c))
$(B)/tests/unit/cpu/ops $(B)/tests/unit/placement/rules: $(OPS_OBJS)

include $(patsubst %,tests/%/rules.mk,ranks queue nccl cuda fuzz)

# meg-train with families of models that are not in the library.
TRAIN_TOY := $(B)/tests/toy/meg-train
$(TRAIN_TOY): $(B)/cmd/train/main.c.o $(patsubst %,$(B)/%.o,$(wildcard tests/toy/*.c)) $(B)/libmeg.a
	$(ld)
# Commands that reset one option to its default after parsing.
RESET := $(MAINS:cmd/%/main.c=$(B)/tests/effects/bin/meg-%)
$(RESET): LD_FLAGS = $(call wrap,meg_opt_parse)
$(B)/tests/effects/bin/meg-%: $(B)/cmd/%/main.c.o $(B)/tests/effects/reset.c.o $(B)/libmeg.a | $$(@D)/
	$(ld)
# Tests preload this library to fail each call of a write path in turn.
FAULT := $(B)/tests/fault.so
$(FAULT): tests/fault/fault.c $(B)/flags | $$(@D)/
	$(call run,$(CC) -g -O2 -Wall -Wextra -shared -fPIC -o $@ $< -ldl)

# The programs that the shell tests start.
TEST_PROGRAMS := $(RANKS) $(STORE) $(TRAIN_TOY) $(NCCL_TESTS) $(EMULATED) $(CUDNN_ACCEPT) $(QUEUE) $(FAULT)
build-tests: $(UNITS) $(TEST_PROGRAMS) $(CHECK_GPU)

# ---- check --------------------------------------------------------------------------------------

# Tests of threads other than OpenMP's: ThreadSanitizer reports each OpenMP barrier as a race.
THREADED := $(B)/tests/unit/data/gpt_data tests/cmd/preprocess.t tests/cmd/preprocess-golden.t
# The longest tests are the first.
SLOW := cuda experts cuda_layouts ckpt_layouts layouts nccl faults ranks_signals torchrun queue memory cuda_demo \
        cuda_golden
SHELL_TESTS := $(wildcard $(patsubst %,tests/%.t,$(SLOW)))
SHELL_TESTS += $(filter-out $(SHELL_TESTS),$(wildcard tests/*.t tests/cmd/*.t))
# Line 2 or 3 of a shell test names the modules that it tests: "# modules: nn model".
MODULE_GOALS := $(filter $(filter-out check-placement,$(MODULES:%=check-%)),$(GOALS))
tests_of = $(filter $(B)/tests/unit/$1/%,$(UNITS)) $(shell grep -lw '^# modules:.* $1' $(SHELL_TESTS))
TESTS ?= $(if $(MODULE_GOALS),$(foreach m,$(MODULE_GOALS:check-%=%),$(call tests_of,$m)),$(if \
             $(filter thread,$(SAN)),$(THREADED),$(SHELL_TESTS) $(UNITS)))
# A test in TESTS is a path, MODULE/NAME (a unit test), NAME.t, or failed: those that failed in the last run.
RUN := $(foreach t,$(patsubst failed,$(file <$(B)/failed),$(TESTS)),$(or \
           $(patsubst %.c,$(B)/%,$(wildcard tests/unit/$t.c)),$(wildcard $(filter %.t,tests/$t)),$t))
# Line 2 of a shell test names the programs of $(B)/tests that it runs, or directories: "# needs: ranks/comm toy".
NEEDS := $(patsubst %,$(B)/tests/%%,$(shell sed -sn '2s/^# needs: //p' /dev/null $(filter tests/%.t,$(RUN))))
WITH_BUILD = PATH="$(abspath $(BIN)):$$PATH" B="$(abspath $(B))"
# use_tls=0: LeakSanitizer crashes when it scans thread-local storage of libraries opened at run time.  lsan.supp
# suppresses the leak report for the message that a failed dlopen stores there.
check: export ASAN_OPTIONS = allocator_may_return_null=1
check: export LSAN_OPTIONS = use_tls=0:print_suppressions=0:suppressions="$(CURDIR)/tests/lsan.supp"
check: $(FAULT) $(filter-out $(if $(filter build,$(B)),build/san/%),$(filter $(B)/%,$(RUN))) \
       $(if $(filter mpich:%,$(RUN)),$(MPICH)) $(if $(filter %.t,$(RUN)),all $(filter $(NEEDS),$(TEST_PROGRAMS)))
	@$(if $(RUN),CMOCKA_MESSAGE_OUTPUT=TAP OMP_WAIT_POLICY=passive FAILED="$(abspath $(B))/failed" $(WITH_BUILD) \
	    tests/prove.sh $(RUN),echo 'there are no tests to run')
$(filter-out check-placement,$(MODULES:%=check-%)): check
quick: $(if $(filter-out quick,$(GOALS)),,$(if $(filter file,$(origin TESTS)),all,check))

# To take less time, kernels are compiled for the CPU only, and the CPU operations only for the baseline and x86-64-v4
# (ISAS).  Tests that measure time are omitted.
SAN_TESTS := $(filter %/check,$(EMULATED)) $(filter-out %/ckpt_scale %/long_words,$(UNITS))
SAN_TESTS := $(SAN_TESTS:$(B)/%=build/san/%)
SAN_MAKE := SAN=1 B=build/san CUDA=0 ISAS='$(filter v4,$(ISAS))' CFLAGS='-Og -g1' DEPS=0
san-tests:
	+$(MAKE) $(SAN_MAKE) build/san/tests/fault.so $(SAN_TESTS)
check-san:
	+$(MAKE) $(SAN_MAKE) check TESTS='$(SAN_TESTS)'
# tests/tap.sh runs mpich:TEST with the programs in $(B)/mpich.
MPICH_TESTS := $(patsubst %,mpich:tests/%.t,comm cp pipe ranks_differ ranks_signals)
check-mpich:
	+$(MAKE) check DEPS=0 TESTS='$(MPICH_TESTS)'

check-peers:
	@MEG_CORPUS_MB=$(or $(MEG_CORPUS_MB),240) $(MAKE) --no-print-directory check TESTS='$(wildcard tests/peers-*.t)'

# By default, each triple of option values occurs in at least one layout.  FULL=1: all layouts.  PART=I/N: part I of N
# of all layouts, chosen by a fixed random permutation, without tests of checkpoints.
check-layouts check-queue: export LAYOUTS := $(if $(FULL)$(PART),full,cover)
check-layouts: all $(RANKS) $(FAULT)
	@$(WITH_BUILD) tests/layouts.t
	$(if $(PART),,@OMP_WAIT_POLICY=passive $(WITH_BUILD) FULL=1 tests/ckpt_layouts.t)

# Check in a debug build how tensors are placed on ranks (lib/placement), and that wrong placements are found.
check-placement: export MEG_PLACEMENT := 1
check-placement: export TEST_S := 3600
check-placement:
	+$(MAKE) DEBUG=1 B=build/debug CUDA=0 ISAS='$(filter v3,$(ISAS))' DEPS=0 check TESTS='placement/placement placement.t'
	tests/mutants.sh --placement

check-faults: all $(RANKS) $(FAULT)
	@export KILLS=$(or $(KILLS),50) STOPS=$(or $(STOPS),47) LONG_STOPS=$(or $(LONG_STOPS),3) POINTS=$(or $(POINTS),20); \
	    OMP_WAIT_POLICY=passive $(WITH_BUILD) tests/faults.t
	@TRIALS=$(or $(TRIALS),200) STRIDE=$(or $(STRIDE),1) $(WITH_BUILD) tests/writers.t

check-effects: $(RESET) $(FAULT)
	@MEG_RESET=1 PATH="$(abspath $(B))/tests/effects/bin:$$PATH" B="$(abspath $(B))" prove -e '' tests/effects_*.t

check-queue: all build-tests
	@SEEDS=$(or $(SEEDS),200) $(WITH_BUILD) tests/queue.t
	@MEG_QUEUE_SEED=1 $(WITH_BUILD) tests/layouts.t

check-emulated: all $(RANKS) $(EMULATED)
	@CELLS=$(or $(CELLS),60) MAX_RANKS=$(or $(MAX_RANKS),4) STEPS=$(or $(STEPS),10) $(WITH_BUILD) tests/cuda_layouts.t

check-gpu bench-gpu: all $(CHECK_GPU)
	@$(if $(CHECK_GPU),$(WITH_BUILD) tests/$(if $(filter bench-gpu,$@),bench,cuda)/gpu.sh,echo \
	    'this build has no CUDA: install nvcc, or name it by NVCC='; exit 1)

check-chroot:
	tests/chroot.sh

BENCH := $(patsubst %.c,$(B)/%,$(wildcard tests/bench/*.c))
$(B)/tests/bench/peak.c.o: MODULE_FLAGS := -ffp-contract=fast
$(BENCH): %: %.c.o $(B)/libmeg.a
	$(ld)
bench: all $(BENCH) $(CHECK_GPU)
	$(WITH_BUILD) tests/bench/run $(BENCHES)
