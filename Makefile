# meg: build, test and install.  `make help` prints these lines.
#
# make             build libmeg.a and the commands in bin/
# make demo        train a small GPT from text to samples in a few minutes; CORPUS=FILE|DIR: on your text;
#                  MODEL=bert|t5: train a small BERT or T5 that fills masks
# make check       build and run the test suite, then list the skipped tests; TESTS='file/lock toy.t': run only these
#                  tests; TESTS=failed: run those that failed in the last run
# make install     install commands, manual pages and shell completion; PREFIX=/usr/local, DESTDIR=
# make deps        install the Debian packages that check and demo require; check and demo run it unless DEPS=0
# make clean       remove build/, bin/ and demo/
#
# For contributors (CONTRIBUTING.md):
# make quick       build in build/quick, for this CPU only and without CUDA; TESTS=: build what these tests require, and
#                  run them; with other goals ('make quick check-nn'): build these
# make check-MODULE   run the unit tests of lib/MODULE and the shell tests that name it in line 2 or 3
# make ci          run all checks required for a change: check-format, lint, check-clang, check-san, check-mpich, check
# make format      format the C files with clang-format; check-format: fail if a file is not formatted
# make lint        run cppcheck, mandoc -Tlint and shellcheck
# make check-clang compile everything with clang and -Werror
# make check-san   run the unit tests under AddressSanitizer and UndefinedBehaviorSanitizer
# make check-mpich run tests of the MPI library with MPICH
# make check-layouts  compare a covering array of parallel layouts with one rank; FULL=1: all layouts (hours), PART=I/N
# make check-faults   kill or stop ranks, kill commands at every write, then resume; KILLS= STOPS= LONG_STOPS= POINTS=
#                  SEED= TRIALS= STRIDE=
# make check-effects  list the options whose effect tests/effects_*.t do not notice
# make check-queue train on the device of tests/queue: SEEDS=200 random orders per configuration, then all layouts of
#                  check-layouts
# make check-placement  check the placements of tensors in a debug build; PART=I/N of check-layouts (default: 1/30)
# make check-emulated  train CELLS=60 of the layouts of check-layouts on the CUDA backend without a GPU:
#                  FIRST= MAX_RANKS= STEPS=
# make check-gpu   compare operations, training and inference on a GPU with those on the CPU: SEED=
# make check-peers compare with other tokenizers on 240 MB of text; MEG_PYTHON=: a Python with these tokenizers
# make check-chroot   run check and demo in a minimal Debian (as root)
# make fuzz        fuzz the parsers with libFuzzer, FUZZ_S=60 seconds each (requires clang)
# make bench-gpu   benchmark kernels and training on a GPU: BENCH_MODELS=, MEG_PYTHON=: a Python with PyTorch
# make bench       benchmark against other tools (tests/bench/*.sh); BENCHES='encode generate models ranks step threads'
# make compile_commands.json   write the compilation database for clangd and other tools
#
# Variables
# CC= CFLAGS=      compiler and flags (default: -O2 -g1); DEBUG=1: -O0 -g3 and shape checks, in build/debug
# SAN=1            build and test under ASan and UBSan; SAN=thread: run the tests of threaded code under TSan
# MPI=             0, 1, auto, openmpi or mpich; check and demo install Open MPI (mpich: MPICH) unless MPI=0
# CUDA= NCCL= CUDNN=   0, 1 or auto; NCCL requires nccl.h and cuda_runtime.h, but not CUDA=1
# STRICT=1         fail a test that is skipped for lack of MPI, MEG_SHARED or a program; TEST_S=: seconds per test;
#                  TEST_JOBS=4: tests at a time
# MEG_SHARED=      directory with real tokenizers, corpora and weights, for the tests that require them
# V=1              print complete command lines

VERSION := 0.1.0
MODULES := base foreign file option unicode io sentence tokenizer data preprocess tensor cpu cuda device watchdog comm \
           parallel params placement nn model optim ckpt logging run plan train infer eval

# As a goal, also beside others, quick selects a build for this CPU only, without CUDA.
QUICK  := $(filter quick,$(MAKECMDGOALS))
PREFIX ?= /usr/local
CUDA   ?= $(if $(QUICK),0,auto)
NCCL   ?= $(if $(QUICK),0,auto)
CUDNN  ?= auto
MPI    ?= auto
DEPS   ?= 1
CFLAGS ?= $(if $(DEBUG),-O0 -g3,$(if $(QUICK),-O1,-O2) -g1)
NVCC   ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc) nvcc)
# Kernels are compiled to a cubin for each of CUDA_ARCHS, and to PTX for CUDA_PTX.  The driver of a newer GPU compiles
# the PTX.  PTX for one of CUDA_ARCHS takes no time, because nvcc makes the cubin from it.  For 90 instead of 90a, the
# kernels contain no wgmma and are slower.
CUDA_ARCHS ?= 80 90a
CUDA_PTX ?= 80
B      ?= build$(if $(SAN),/$(if $(filter thread,$(SAN)),tsan,san),$(if $(DEBUG),/debug,$(QUICK:%=/%)))
# Make B relative to this directory: dependency files and $(B)/objects name files by relative paths.
override B := $(subst $(CURDIR)/,,$(B))
ifneq ($(word 2,$(B)),)
$(error B is '$(B)': make takes a space for the end of a name; name a build folder without one)
endif
BIN    := $(if $(filter build,$(B)),bin,$(B)/bin)
GOALS  := $(or $(MAKECMDGOALS),all)

.DELETE_ON_ERROR:
.SECONDARY:
.SECONDEXPANSION:
all:
FORCE:
%/:
	@mkdir -p $@

include packages.mk

# ---- libraries that are used --------------------------------------------------------------------

# $(call use,NAME,FILE): 1 when NAME is 1, or auto and FILE exists
use = $(filter 1,$(if $(filter auto,$($1)),$(if $(wildcard $2),1),$($1)))
MPI_TYPE := $(filter openmpi mpich,$(MPI))
CUDA_HOME := $(abspath $(dir $(NVCC))/..)
# lib/comm/nccl* and lib/cuda are compiled with the headers of NCCL, cuBLASLt and cuDNN, and load these at run time.
include_of = $(firstword $(wildcard $(CUDA_HOME)/include/$1 /usr/include/$1))
NCCL_H := $(if $(call include_of,cuda_runtime.h),$(call include_of,nccl.h))
CUDNN_H := $(if $(filter-out 0,$(CUDNN)),$(call include_of,cudnn.h))
USES := $(if $(call use,CUDA,$(NVCC)),CUDA) $(if $(call use,NCCL,$(NCCL_H)),NCCL) \
        $(if $(MPI_TYPE)$(call use,MPI,$(shell command -v mpicc)),MPI)
USES += $(if $(filter CUDA,$(USES)),$(if $(call use,CUDNN,$(CUDNN_H)),CUDNN))
ifneq ($(and $(filter CUDA,$(USES)),$(if $(wildcard $(NVCC)),,1)),)
$(error CUDA=1, but there is no nvcc: put it in PATH or give NVCC=)
endif
ifeq ($(NCCL)$(NCCL_H),1)
$(error NCCL=1, but nccl.h and cuda_runtime.h are not in $(CUDA_HOME)/include or /usr/include: install them, or say \
    where CUDA is by NVCC=)
endif
# If MPI is used, fail if pkg-config does not find it or, for the targets check*, if there is no mpirun.  Skip this for
# the targets clean, deps and lint, and if packages are about to be installed.
MPI_PKG := $(or $(patsubst openmpi,ompi-c,$(MPI_TYPE)),mpi-c)
export MPIRUN ?= mpirun$(MPI_TYPE:%=.%)
ifeq ($(or $(if $(filter MPI,$(USES)),,no MPI),$(INSTALLS),$(filter clean deps lint,$(GOALS))),)
ifneq ($(shell pkg-config --exists $(MPI_PKG) && echo found),found)
$(error MPI=$(MPI), but pkg-config finds no $(MPI_PKG): install $(or $(DEPS_MPI),an MPI), or say MPI=0)
endif
ifneq ($(and $(filter check%,$(GOALS)),$(if $(shell command -v $(firstword $(MPIRUN))),,1)),)
$(error MPI=$(MPI), but there is no $(firstword $(MPIRUN)) to start ranks with: install $(DEPS_MPI), or say MPI=0)
endif
endif

# ---- what is built ------------------------------------------------------------------------------

OPTIONAL_CUDA  := $(wildcard lib/cuda/* lib/cuda/*/*)
OPTIONAL_CUDNN := $(wildcard lib/cuda/cudnn/*)
OPTIONAL_NCCL  := $(wildcard lib/comm/nccl*)
OPTIONAL_MPI   := $(wildcard lib/comm/mpi*)
USED  := $(foreach u,$(USES),$(if $(OPTIONAL_$u),$u))
EXCLUDED := $(foreach u,$(filter-out $(USES),CUDA CUDNN NCCL MPI),$(OPTIONAL_$u))
SRCS  := $(filter-out $(EXCLUDED),$(foreach m,$(MODULES),$(wildcard $(foreach t,c cu,lib/$m/*.$t lib/$m/*/*.$t))))
MAINS := $(wildcard cmd/*/main.c)
CMDS  := $(MAINS:cmd/%/main.c=$(BIN)/meg-%)

# Files of lib/cpu with the comment "isa: baseline v3 v4" are compiled once per instruction set.  A program selects the
# instruction set when it starts.
ISAS    := $(if $(QUICK),,$(if $(filter x86_64%,$(shell $(CC) -dumpmachine)),v3 v4))
PER_ISA := $(if $(wildcard lib/cpu/*.c),$(shell \
               awk 'FNR <= 3 && /\/\* isa: baseline v3 v4 \*\// { print FILENAME }' lib/cpu/*.c))
OBJS    := $(SRCS:%=$(B)/%.o) $(foreach i,$(ISAS),$(PER_ISA:%=$(B)/%.$i.o))

# ---- flags --------------------------------------------------------------------------------------

comma := ,
PKG_CONFIG = $(shell pkg-config $1 $(if $(MISSING),2>/dev/null))
PKGS := jansson libxxhash libzstd zlib liblzma libutf8proc libpcre2-8
# List the libraries of the enabled features; --as-needed links only those that a program uses.
CUDA_LIBS  := -L$(CUDA_HOME)/lib64 -Wl,--enable-new-dtags,-rpath,$(CUDA_HOME)/lib64 -lcudart_static -lrt -lstdc++
NCCL_LIBS  := -Wl,--enable-new-dtags,-rpath,$(CUDA_HOME)/lib64
MPI_LIBS    = $(call PKG_CONFIG,--libs $(MPI_PKG))
MPI_CFLAGS  = $(call PKG_CONFIG,--cflags $(MPI_PKG))

MEG_CPPFLAGS := -Ilib -DMEG_VERSION='"$(VERSION)"' $(if $(DEBUG),-DMEG_DEBUG) $(ISAS:v%=-DMEG_HAVE_ISA_V%) \
                $(USED:%=-DMEG_HAVE_%) $(call PKG_CONFIG,--cflags $(PKGS))
MEG_CFLAGS := -std=gnu11 -fopenmp -ffp-contract=off -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
              '-ffile-prefix-map=$(CURDIR)=.'
MEG_LIBS   := -Wl,--as-needed $(foreach u,$(USED),$($u_LIBS)) $(call PKG_CONFIG,--libs $(PKGS)) -lm -lpthread -ldl
SAN_FLAGS  := $(if $(SAN),$(if $(filter thread,$(SAN)),-fsanitize=thread,\
                  -fsanitize=address -fsanitize=undefined -fno-sanitize-recover=all) -fno-omit-frame-pointer)
SAN_OBJ    := $(if $(filter-out thread,$(SAN)),$(B)/tests/san/dlclose.c.o)
CPU_FLAGS  := -O3 -fno-math-errno -fno-trapping-math -ffp-contract=fast
COMPILE = $(CC) $(MEG_CPPFLAGS) $(CPPFLAGS) $(MEG_CFLAGS) $(CFLAGS) $(SAN_FLAGS)
LINK    = $(CC) -fopenmp $(CFLAGS) $(SAN_FLAGS) $(LDFLAGS) $(SAN_OBJ) $(SAN_OBJ:%=-Wl,--export-dynamic-symbol=dlclose)
NVCC_COMPILE = $(NVCC) -O3 -std=c++17 -ccbin $(CC) $(MEG_CPPFLAGS) $(CPPFLAGS) -Xcompiler -Wall,-Wextra \
    -Werror all-warnings -Xptxas -v,-warn-spills,-warn-lmem-usage -Xfatbin -compress-all \
    $(foreach a,$(CUDA_ARCHS),-gencode \
        'arch=compute_$a,code=[sm_$a$(if $(filter $a,$(CUDA_PTX)),$(comma)compute_$a)]') \
    $(foreach a,$(filter-out $(CUDA_ARCHS),$(CUDA_PTX)),-gencode arch=compute_$a,code=compute_$a)

# ---- rules --------------------------------------------------------------------------------------

# $(call run,COMMAND): run COMMAND and print the name of the target instead of COMMAND, unless V is set
run = $(if $(V),,@echo '  $@';) $1
cc  = $(call run,$(COMPILE) $(MODULE_FLAGS) $(ISA_FLAGS) -MMD -MP -c -o $@ $<)
ld  = $(call run,$(LINK) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LD_FLAGS) $(MEG_LIBS))

all: $(B)/libmeg.a $(CMDS)

$(B)/lib/cpu/%.o: MODULE_FLAGS := $(CPU_FLAGS)
$(B)/lib/comm/mpi%.o: MODULE_FLAGS = $(MPI_CFLAGS)
$(B)/lib/comm/nccl%.o $(B)/lib/cuda/%.c.o: MODULE_FLAGS = -isystem $(CUDA_HOME)/include
$(PER_ISA:%=$(B)/%.o): ISA_FLAGS := -DMEG_ISA=base $(if $(QUICK),-march=native)
$(B)/%.v3.o: ISA_FLAGS := -DMEG_ISA=v3 -march=x86-64-v3
$(B)/%.v4.o: ISA_FLAGS := -DMEG_ISA=v4 -march=x86-64-v4 -mprefer-vector-width=512

$(B)/%.c.o: %.c $(B)/flags | $$(@D)/
	$(cc)
$(B)/%.c.v3.o: %.c $(B)/flags | $$(@D)/
	$(cc)
$(B)/%.c.v4.o: %.c $(B)/flags | $$(@D)/
	$(cc)
# The report of ptxas and the release of nvcc are kept for tests/cuda_registers.t.
$(B)/%.cu.o: %.cu $(B)/flags.cuda | $$(@D)/
	$(call run,$(NVCC_COMPILE) -MMD -MP -c -o $@ $< 2>$@.ptxas; rc=$$?; \
	    grep -vE '^ptxas info|bytes stack frame' $@.ptxas >&2; $(NVCC) --version >>$@.ptxas; exit $$rc)
$(B)/libmeg.a: $(OBJS) $(B)/objects | $(SAN_OBJ)
	$(call run,rm -f $@ && $(AR) rcsD $@ $(OBJS))
$(BIN)/meg-%: $(B)/cmd/%/main.c.o $(B)/libmeg.a | $$(@D)/
	$(ld)

include $(wildcard tests/rules.mk)

# $(call keep,FILE,TEXT): write TEXT to FILE unless FILE already contains it
keep = $(if $(subst x$(strip $2),,x$(strip $(file <$1)))$(if $(wildcard $1),,x),\
           $(shell mkdir -p $(dir $1))$(file >$1,$(strip $2)))
ifneq ($(filter-out clean deps lint,$(GOALS)),)
$(call keep,$(B)/flags,$(COMPILE) $(CPU_FLAGS) $(CXX_COMPILE) $(LINK) $(MEG_LIBS))
$(if $(filter CUDA,$(USED)),$(call keep,$(B)/flags.cuda,$(NVCC_COMPILE)))
$(call keep,$(B)/objects,$(OBJS))
endif
-include $(wildcard $(foreach d,lib/* lib/*/* cmd/* mpich/lib/* tests/* tests/*/* tests/*/lib/* tests/*/lib/*/*, \
             $(B)/$d/*.d))

# ---- install, demo, checks of a change ----------------------------------------------------------

D := $(DESTDIR)$(PREFIX)
install: all
	install -d "$D/bin" "$D/share/man/man1" "$D/share/man/man5" "$D/share/man/man7" "$D/share/bash-completion/completions"
	install -m 755 $(CMDS) "$D/bin"
	for n in 1 5 7; do install -m 644 man/*.$$n "$D/share/man/man$$n" || exit 1; done
	for c in $(CMDS); do $$c --completion bash >"$D/share/bash-completion/completions/$${c##*/}" || exit 1; done

demo: all
	@mkdir -p demo
	+@PATH="$(abspath $(BIN)):$$PATH" $(MAKE) --no-print-directory -C demo -f ../recipes/demo/Makefile \
	    $(if $(CORPUS),CORPUS='$(foreach f,$(CORPUS),$(if $(filter /%,$f),$f,../$f))')

# All programs are built side by side, and then all tests run side by side.
ci:
	+$(MAKE) check-format lint check-clang san-tests all build-tests $(MPICH)
	+$(MAKE) check TESTS='$(MPICH_TESTS) $(TESTS) $(SAN_TESTS)'

C_FILES = $(wildcard $(foreach d,lib/* lib/*/* cmd/* tests/* tests/unit/*,$d/*.c $d/*.h $d/*.cu))
format:
	@clang-format -i $(C_FILES)
check-format:
	@clang-format --dry-run -Werror $(C_FILES)

SH_FILES := .ci/run $(wildcard $(patsubst %,tests/%,*.sh *.t cuda/*.sh cmd/*.t bench/run bench/texts bench/*.sh))
# Suppress warnings that are false: cppcheck does not detect that a callee sets an out-parameter, that a create function
# keeps no pointer to a local variable, or that a sum of exponentials is positive.
CPPCHECK_SUPPRESS := uninitvar ctuuninitvar returnDanglingLifetime invalidFunctionArg:lib/cpu/xent.c
lint:
	mandoc -Tlint -Wwarning $(wildcard man/*)
	cppcheck -q --std=c11 --enable=warning,performance,portability --inline-suppr $(CPPCHECK_SUPPRESS:%=--suppress=%) \
	    --error-exitcode=1 -Ilib -DMEG_VERSION='""' -DMEG_ISA=base lib cmd
	shellcheck -s sh -S warning -e SC1091,SC2010,SC2034,SC2154 $(SH_FILES)

# clang only prints warnings.  To take less time, it compiles kernels for the CPU only, and the CPU operations only for
# the baseline and x86-64-v4 (ISAS).
check-clang:
	+$(MAKE) B=build/clang CC=clang CXX=clang++ CUDA=0 ISAS='$(filter v4,$(ISAS))' CFLAGS='-fsyntax-only -Werror' \
	    DEPS=0 objects
objects: $(OBJS) $(if $(NCCL_TESTS),$(NCCL_OBJS)) \
         $(patsubst %,$(B)/%.o,$(MAINS) $(wildcard $(patsubst %,tests/%/*.c,unit/* ranks toy queue effects bench)))

# List one command per C file, for the baseline instruction set only.
DB_FILES := $(filter %.c,$(SRCS)) $(MAINS) $(UNITS:$(B)/%=%.c)
DB_FLAGS  = -Itests/unit -DMEG_ISA=base $(if $(filter MPI,$(USED)),$(MPI_CFLAGS))
db_entry  = {"directory": "$(CURDIR)", "file": "$1", "command": "$(subst ",\",$(COMPILE) $(DB_FLAGS)) -c $1"}
compile_commands.json: FORCE
	$(file >$@,[)
	$(foreach f,$(DB_FILES),$(file >>$@,$(call db_entry,$f)$(if $(filter-out $(lastword $(DB_FILES)),$f),$(comma))))
	$(file >>$@,])
	@echo '  $@'

deps:

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile

clean:
	rm -rf build bin demo

.PHONY: all quick build-tests check san-tests ci objects format lint install demo deps fuzz bench bench-gpu help clean \
        FORCE $(patsubst %,check-%,$(MODULES) format clang san mpich peers layouts faults effects queue emulated gpu \
        chroot)
