# meg: build, test and install.  `make help` prints these lines.
#
# make             build libmeg.a and the commands in bin/
# make demo        train a small GPT from text to samples in a few minutes; CORPUS=FILE|DIR: on your text;
#                  MODEL=bert|t5: train a small BERT or T5 that fills masks
# make check       build and run the test suite, then list the skipped tests; TESTS='FILE...': run only these tests
# make install     install commands, manual pages and shell completion; PREFIX=/usr/local, DESTDIR=
# make deps        install the Debian packages that check and demo require; check and demo run it unless DEPS=0
# make clean       remove build/, bin/ and demo/
#
# For contributors (CONTRIBUTING.md):
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
# make check-emulated  train CELLS=60 of the layouts of check-layouts on the CUDA backend without a GPU:
#                  FIRST= MAX_RANKS= STEPS=
# make check-gpu   compare operations, training and inference on a GPU with those on the CPU: SEED=
# make check-peers compare with other tokenizers on 240 MB of text; MEG_PYTHON=: a Python with these tokenizers
# make check-chroot   run check and demo in a minimal Debian (as root)
# make fuzz        fuzz the parsers with libFuzzer, FUZZ_S=60 seconds each (requires clang)
# make bench-gpu   benchmark kernels and training on a GPU: BENCH_MODELS=, MEG_PYTHON=: a Python with PyTorch
# make bench       benchmark against other tools; BENCHES='encode generate models ranks step threads': only these; see tests/bench/*.sh
# make compile_commands.json   write the compilation database for clangd and other tools
#
# Variables
# CC= CFLAGS=      compiler and flags (default: -O2 -g); DEBUG=1: -O0 -g3 and shape checks, in build/debug
# SAN=1            build and test under ASan and UBSan; SAN=thread: run the tests of threaded code under TSan
# MPI=             0, 1, auto, openmpi or mpich; check and demo install Open MPI (mpich: MPICH) unless MPI=0
# CUDA= NCCL= CUDNN=   0, 1 or auto; NCCL requires nccl.h and cuda_runtime.h, but not CUDA=1
# STRICT=1         fail a test that is skipped for lack of MPI, MEG_SHARED or a program; TEST_S=: seconds per test;
#                  TEST_JOBS=3: tests at a time
# MEG_SHARED=      directory with real tokenizers, corpora and weights, for the tests that require them
# V=1              print complete command lines

VERSION := 0.1.0
MODULES := base foreign file option unicode io sentence tokenizer data preprocess tensor cpu cuda device watchdog comm parallel params nn model \
           optim ckpt logging run plan train infer eval

PREFIX ?= /usr/local
CUDA   ?= auto
NCCL   ?= auto
CUDNN  ?= auto
MPI    ?= auto
DEPS   ?= 1
CFLAGS ?= $(if $(DEBUG),-O0 -g3,-O2 -g)
NVCC   ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc) nvcc)
# Kernels are compiled to a cubin for each of CUDA_ARCHS, and to PTX for CUDA_PTX.  The driver of a newer GPU compiles the PTX.
# PTX for one of CUDA_ARCHS takes no time, because nvcc makes the cubin from it.  For 90 instead of 90a, the kernels contain no
# wgmma and are slower.
CUDA_ARCHS ?= 80 90a
CUDA_PTX ?= 80
B      ?= build$(if $(SAN),/$(if $(filter thread,$(SAN)),tsan,san),$(if $(DEBUG),/debug))
# Make B relative to this directory: dependency files and $(B)/objects name files by relative paths.
override B := $(subst $(CURDIR)/,,$(B))
ifneq ($(word 2,$(B)),)
$(error B is '$(B)': make takes a space for the end of a name; name a build folder without one)
endif
BIN    := $(if $(filter build,$(B)),bin,$(B)/bin)

.DELETE_ON_ERROR:
.SECONDARY:
all:
FORCE:

# ---- packages -----------------------------------------------------------------------------------

DEPS_BUILD := $(if $(shell command -v $(firstword $(CC))),,gcc) libc6-dev make pkg-config libdnnl-dev libjansson-dev libxxhash-dev libzstd-dev \
              zlib1g-dev liblzma-dev libutf8proc-dev libpcre2-dev $(if $(filter-out 0,$(CUDA)),$(if $(wildcard $(NVCC)),g++))
DEPS_MPI   := $(if $(filter 0,$(MPI)),,$(if $(filter mpich,$(MPI)),libmpich-dev mpich,libopenmpi-dev openmpi-bin))
DEPS_demo  := gnuplot-nox jq zstd $(DEPS_MPI)
DEPS_check := g++ libcmocka-dev perl mandoc xz-utils gzip $(DEPS_demo)
DEPS_check-layouts := $(DEPS_check)
DEPS_check-faults  := $(DEPS_check)
DEPS_check-queue   := $(DEPS_check)
DEPS_check-emulated := $(DEPS_check)
DEPS_check-gpu     := $(DEPS_check)
DEPS_deps  := $(DEPS_check)
DEPS_lint  := mandoc cppcheck shellcheck
DEPS_fuzz  := clang
DEPS_check-format := clang-format
DEPS_check-clang  := $(DEPS_check) clang libomp-dev
DEPS_check-san    := $(DEPS_check)
DEPS_check-mpich  := $(DEPS_check) libmpich-dev mpich
DEPS_ci    := $(sort $(DEPS_lint) $(DEPS_check-format) $(DEPS_check-clang) $(DEPS_check-mpich) $(DEPS_check))
DEPS_check-chroot := debootstrap
GOALS := $(or $(MAKECMDGOALS),all)
DEPS_DEBIAN := $(sort $(DEPS_BUILD) $(foreach g,$(GOALS),$(DEPS_$g)))

ifneq ($(shell command -v dpkg-query),)
MISSING := $(filter-out $(shell dpkg-query -W -f '$${db:Status-Status} $${Package}\n' $(DEPS_DEBIAN) \
               2>/dev/null | sed -n 's/^installed //p'),$(DEPS_DEBIAN))
endif
export DEBIAN_FRONTEND := noninteractive
APT_GET := $(if $(filter-out 0,$(shell id -u)),sudo )apt-get
APT_INSTALL := $(APT_GET) install -y --no-install-recommends $(MISSING)
# Only a warning, or an error (-), says that packages are missing, and nothing installs them.
ONLY_SAY := $(or $(filter 0,$(DEPS))$(findstring n,$(firstword -$(MAKEFLAGS))),$(if $(filter check demo deps ci,$(GOALS)),,-))
INSTALLS := $(if $(MISSING),$(if $(ONLY_SAY),,1))

ifneq ($(filter-out clean help format check-format,$(GOALS)),)
ifneq ($(MISSING),)
ifneq ($(ONLY_SAY),)
$(call $(if $(filter-out -,$(ONLY_SAY)),warning,error),missing packages: $(MISSING); to install them: $(if \
    $(filter-out $(DEPS_BUILD) $(DEPS_deps),$(MISSING)),,make deps or )$(APT_INSTALL); to build without them: make DEPS=0)
else
ifdef MAKE_RESTARTS
$(error still missing after installing: $(MISSING))
endif
# make builds an included file first, and restarts if that file has changed.
include $(B)/installed
$(B)/installed: FORCE
	@mkdir -p $(@D)
	@echo 'some packages are missing; make DEPS=0 would not install them'
	@apt-cache show $(MISSING) >/dev/null 2>&1 || { echo '$(APT_GET) update'; $(APT_GET) update -q; }
	@echo '$(APT_INSTALL)'; $(APT_INSTALL) || \
	    { echo '$(APT_GET) update, then try again'; $(APT_GET) update -q && $(APT_INSTALL); }
	@echo '# made by make when it installed packages' >$@
endif
endif
endif

# ---- what is built ------------------------------------------------------------------------------

# $(call use,NAME,FILE): 1 when NAME is 1, or auto and FILE exists
use = $(filter 1,$(if $(filter auto,$($1)),$(if $(wildcard $2),1),$($1)))
MPI_KIND := $(filter openmpi mpich,$(MPI))
CUDA_HOME := $(abspath $(dir $(NVCC))/..)
# lib/comm/nccl* and lib/cuda are compiled with the headers of NCCL, cuBLASLt and cuDNN, and load the libraries at run time.
include_of = $(firstword $(wildcard $(CUDA_HOME)/include/$1 /usr/include/$1))
NCCL_H := $(if $(call include_of,cuda_runtime.h),$(call include_of,nccl.h))
CUDNN_H := $(if $(filter-out 0,$(CUDNN)),$(call include_of,cudnn.h))
USES := $(if $(call use,CUDA,$(NVCC)),CUDA) $(if $(call use,NCCL,$(NCCL_H)),NCCL) \
        $(if $(MPI_KIND)$(call use,MPI,$(shell command -v mpicc)),MPI)
# If MPI is used, fail if pkg-config does not find it or, for the targets check*, if there is no mpirun.  Skip this for the
# targets clean, deps and lint, and if packages are about to be installed.
MPI_PKG := $(or $(patsubst openmpi,ompi-c,$(MPI_KIND)),mpi-c)
export MPIRUN ?= mpirun$(MPI_KIND:%=.%)
ifneq ($(filter MPI,$(USES)),)
ifeq ($(INSTALLS)$(filter clean deps lint,$(GOALS)),)
ifneq ($(shell pkg-config --exists $(MPI_PKG) && echo found),found)
$(error MPI=$(MPI), but pkg-config finds no $(MPI_PKG): install $(or $(DEPS_MPI),an MPI), or say MPI=0)
endif
ifneq ($(filter check%,$(GOALS)),)
ifeq ($(shell command -v $(firstword $(MPIRUN))),)
$(error MPI=$(MPI), but there is no $(firstword $(MPIRUN)) to start ranks with: install $(DEPS_MPI), or say MPI=0)
endif
endif
endif
endif
ifeq ($(NCCL)$(NCCL_H),1)
$(error NCCL=1, but nccl.h and cuda_runtime.h are not in $(CUDA_HOME)/include or /usr/include: install them, or say \
    where CUDA is by NVCC=)
endif
ifneq ($(filter CUDA,$(USES)),)
USES += $(if $(call use,CUDNN,$(CUDNN_H)),CUDNN)
ifeq ($(wildcard $(NVCC)),)
$(error CUDA=1, but there is no nvcc: put it in PATH or give NVCC=)
endif
endif

OPTIONAL_CUDA  := $(wildcard lib/cuda/* lib/cuda/*/*)
OPTIONAL_CUDNN := $(wildcard lib/cuda/cudnn/*)
OPTIONAL_NCCL  := $(wildcard lib/comm/nccl*)
OPTIONAL_MPI   := $(wildcard lib/comm/mpi*)
LEFT_OUT := $(foreach u,$(filter-out $(USES),CUDA CUDNN NCCL MPI),$(OPTIONAL_$u))
SRCS  := $(filter-out $(LEFT_OUT),$(foreach m,$(MODULES),$(wildcard $(foreach t,c cu,lib/$m/*.$t lib/$m/*/*.$t))))
MAINS := $(wildcard cmd/*/main.c)
CMDS  := $(MAINS:cmd/%/main.c=$(BIN)/meg-%)
UNITS := $(patsubst %.c,$(B)/%,$(wildcard tests/unit/*/*.c))
BENCH := $(patsubst %.c,$(B)/%,$(wildcard tests/bench/*.c))

# Files of lib/cpu with the comment "isa: baseline v3 v4" are compiled once per instruction set.  A program selects the
# instruction set when it starts.
TARGET := $(shell $(CC) -dumpmachine)
ISAS   := $(if $(filter x86_64%,$(TARGET)),v3 v4)
HOT    := $(if $(wildcard lib/cpu/*.c),$(shell \
              awk 'FNR <= 3 && /\/\* isa: baseline v3 v4 \*\// { print FILENAME }' lib/cpu/*.c))
OBJS   := $(SRCS:%=$(B)/%.o) $(foreach i,$(ISAS),$(HOT:%=$(B)/%.$i.o))

# ---- flags --------------------------------------------------------------------------------------

comma := ,
PKG_CONFIG = $(shell pkg-config $1 $(if $(MISSING),2>/dev/null))
PKGS := jansson libxxhash libzstd zlib liblzma libutf8proc libpcre2-8
# List the libraries of the enabled features; --as-needed links only those that a program uses.
CUDA_LIBS  := -L$(CUDA_HOME)/lib64 -Wl,--enable-new-dtags,-rpath,$(CUDA_HOME)/lib64 -lcudart_static -lrt -lstdc++
NCCL_LIBS  := -Wl,--enable-new-dtags,-rpath,$(CUDA_HOME)/lib64
MPI_LIBS    = $(call PKG_CONFIG,--libs $(MPI_PKG))
MPI_CFLAGS  = $(call PKG_CONFIG,--cflags $(MPI_PKG))
USED := $(foreach u,$(USES),$(if $(OPTIONAL_$u),$u))
RANKS := $(if $(filter MPI,$(USED)),$(patsubst %.c,$(B)/%,$(wildcard tests/ranks/*.c)))
# meg-train with families of models that are not in the library.
TOY := $(B)/tests/toy/meg-train
QUEUE_OBJS := $(patsubst %,$(B)/%.o,$(filter-out tests/queue/test.c,$(wildcard tests/queue/*.c)))
RESET := $(MAINS:cmd/%/main.c=$(B)/tests/effects/bin/meg-%)
QUEUE := $(patsubst %,$(B)/tests/queue/bin/meg-%,train eval generate) $(B)/tests/queue/test
QUEUE += $(if $(RANKS),$(B)/tests/queue/layouts)
# A test program whose ranks communicate only over the store (lib/comm/store_transport.c), so it is built even without MPI.
STORE := $(B)/tests/store/comm
# A test double of NCCL and the CUDA runtime, for machines without a GPU, and the programs that use the double as their device.
NCCL_DOUBLE := $(B)/tests/nccl/libcudart-double.so
NCCL_OBJS := $(B)/tests/nccl/device.c.o $(B)/tests/nccl/lib/device/device.c.o $(B)/tests/queue/queue_ops.c.o
DOUBLE := $(if $(filter NCCL,$(USED)),$(B)/tests/nccl/comm $(B)/tests/nccl/bin/meg-train)
# Programs whose kernels are compiled for the CPU (tests/cuda/emulate.h).  They are linked with NCCL_DOUBLE and with doubles of
# cuBLASLt and cuDNN.  They require the headers of CUDA and NCCL, but no nvcc.  The header of cuDNN is optional.
CHECK_OBJS := $(patsubst %,$(B)/%.o,$(wildcard tests/cuda/check*.c))
EMULATED_SRCS := lib/device/device.c $(filter-out $(if $(CUDNN_H),,$(OPTIONAL_CUDNN)),$(wildcard $(foreach t,c cu,lib/cuda/*.$t lib/cuda/*/*.$t)))
EMULATED_OBJS := $(EMULATED_SRCS:%=$(B)/tests/cuda/%.o)
# Programs with MPICH; what does not depend on the MPI library is that of the other programs.
MPICH_OBJS := $(patsubst %,$(B)/mpich/%.o,$(wildcard lib/comm/mpi*.c))
MPICH := $(if $(RANKS),$(B)/mpich/bin/meg-train $(patsubst %,$(B)/mpich/tests/ranks/%,comm cp pipe) $(B)/mpich/tests/fault.so)
EMULATED_LIBS := $(NCCL_DOUBLE) $(B)/tests/cuda/libcublasLt.so.13 $(if $(CUDNN_H),$(B)/tests/cuda/libcudnn.so.9)
# The unit tests that compare models with reference numbers (tests/unit/golden_device.h).
GOLDEN := model/gpt_golden model/bert_golden model/t5_golden train/steps eval/fill_mask
EMULATED := $(if $(NCCL_H),$(if $(call include_of,cublasLt.h),$(B)/tests/cuda/check $(GOLDEN:%=$(B)/tests/cuda/unit/%) \
                $(patsubst %,$(B)/tests/cuda/bin/meg-%,train eval generate)))
CUDNN_ACCEPT := $(if $(NCCL_H),$(if $(CUDNN_H),$(B)/tests/cuda/cudnn_accept))
CHECK_GPU := $(if $(filter CUDA,$(USED)),$(B)/tests/cuda/check-gpu $(B)/tests/cuda/bench)

MEG_CPPFLAGS := -Ilib -DMEG_VERSION='"$(VERSION)"' $(if $(DEBUG),-DMEG_DEBUG) $(ISAS:v%=-DMEG_HAVE_ISA_V%) $(USED:%=-DMEG_HAVE_%) \
                $(call PKG_CONFIG,--cflags $(PKGS))
MEG_CFLAGS := -std=gnu11 -fopenmp -ffp-contract=off -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
              '-ffile-prefix-map=$(CURDIR)=.'
MEG_LIBS   := -Wl,--as-needed $(foreach u,$(USED),$($u_LIBS)) $(call PKG_CONFIG,--libs $(PKGS)) -lm -lpthread -ldl
SAN_FLAGS  := $(if $(SAN),$(if $(filter thread,$(SAN)),-fsanitize=thread,\
                  -fsanitize=address -fsanitize=undefined -fno-sanitize-recover=all) -fno-omit-frame-pointer)
CPU_FLAGS  := -O3 -fno-math-errno -fno-trapping-math -ffp-contract=fast
COMPILE = $(CC) $(MEG_CPPFLAGS) $(CPPFLAGS) $(MEG_CFLAGS) $(CFLAGS) $(SAN_FLAGS)
SAN_OBJ    := $(if $(filter-out thread,$(SAN)),$(B)/tests/san/dlclose.c.o)
LINK    = $(CC) -fopenmp $(CFLAGS) $(SAN_FLAGS) $(LDFLAGS) $(SAN_OBJ) $(SAN_OBJ:%=-Wl,--export-dynamic-symbol=dlclose)
NVCC_COMPILE = $(NVCC) -O3 -std=c++17 -ccbin $(CC) $(MEG_CPPFLAGS) $(CPPFLAGS) -Xcompiler -Wall,-Wextra \
               -Werror all-warnings -Xptxas -v,-warn-spills,-warn-lmem-usage \
               $(foreach a,$(CUDA_ARCHS),-gencode 'arch=compute_$a,code=[sm_$a$(if $(filter $a,$(CUDA_PTX)),$(comma)compute_$a)]') \
               $(foreach a,$(filter-out $(CUDA_ARCHS),$(CUDA_PTX)),-gencode arch=compute_$a,code=compute_$a)
CXX_COMPILE = $(CXX) -x c++ -std=c++17 $(MEG_CPPFLAGS) $(CPPFLAGS) $(MODULE_FLAGS) -Itests/cuda -Wall -Wextra \
              -Wno-unknown-pragmas $(CFLAGS:-g=-g1) $(SAN_FLAGS)

# $(call keep,FILE,TEXT): write TEXT to FILE unless FILE already contains it
keep = $(if $(subst x$(strip $2),,x$(file <$1))$(if $(wildcard $1),,x),$(shell mkdir -p $(dir $1))$(file >$1,$(strip $2)))
ifneq ($(filter-out clean deps lint,$(GOALS)),)
$(call keep,$(B)/flags,$(COMPILE) $(CPU_FLAGS) $(CXX_COMPILE) $(LINK) $(MEG_LIBS))
$(if $(filter CUDA,$(USED)),$(call keep,$(B)/flags.cuda,$(NVCC_COMPILE)))
$(call keep,$(B)/objects,$(OBJS))
endif

# ---- rules --------------------------------------------------------------------------------------

# $(call run,COMMAND): run COMMAND and print the name of the target instead of COMMAND, unless V is set
run = $(if $(V),,@echo '  $@';) $1
cc  = $(call run,$(COMPILE) $(MODULE_FLAGS) $(ISA_FLAGS) -MMD -MP -c -o $@ $<)
ld  = $(call run,$(LINK) -o $@ $(filter %.o %.a,$^) $1 $(MEG_LIBS))

all: $(B)/libmeg.a $(CMDS)

$(B)/lib/cpu/%.o: MODULE_FLAGS := $(CPU_FLAGS)
$(B)/tests/unit/%.o: MODULE_FLAGS := -Itests/unit
$(B)/tests/bench/peak.c.o: MODULE_FLAGS := -ffp-contract=fast
$(B)/lib/comm/mpi%.o: MODULE_FLAGS = $(MPI_CFLAGS)
$(B)/lib/comm/nccl%.o $(B)/lib/cuda/%.c.o: MODULE_FLAGS = -isystem $(CUDA_HOME)/include
$(B)/tests/cuda/%.o: MODULE_FLAGS = -isystem $(CUDA_HOME)/include -DMEG_HAVE_CUDA $(if $(CUDNN_H),-DMEG_HAVE_CUDNN)
$(HOT:%=$(B)/%.o): ISA_FLAGS := -DMEG_ISA=base
$(B)/%.v3.o: ISA_FLAGS := -DMEG_ISA=v3 -march=x86-64-v3
$(B)/%.v4.o: ISA_FLAGS := -DMEG_ISA=v4 -march=x86-64-v4 -mprefer-vector-width=512

$(sort $(dir $(OBJS) $(SAN_OBJ) $(CMDS) $(UNITS) $(RANKS) $(STORE) $(TOY) $(DOUBLE) $(NCCL_OBJS) $(EMULATED) $(EMULATED_OBJS) $(CHECK_OBJS) $(CHECK_GPU) $(BENCH) $(QUEUE) $(QUEUE_OBJS) $(RESET) $(B)/tests/effects/reset.c.o $(MAINS:%=$(B)/%) $(MPICH) $(MPICH_OBJS)) $(B)/tests/ranks/):
	@mkdir -p $@

.SECONDEXPANSION:
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
$(B)/tests/cuda/lib/%.c.o: lib/%.c $(B)/flags | $$(@D)/
	$(cc)
$(B)/tests/cuda/lib/%.cu.o: lib/%.cu $(B)/flags | $$(@D)/
	$(call run,$(CXX_COMPILE) -MMD -MP -c -o $@ $<)

$(B)/libmeg.a: $(OBJS) $(B)/objects | $(SAN_OBJ)
	$(call run,rm -f $@ && $(AR) rcsD $@ $(OBJS))

$(BIN)/meg-%: $(B)/cmd/%/main.c.o $(B)/libmeg.a | $(BIN)/
	$(call ld)
$(B)/tests/unit/%: $(B)/tests/unit/%.c.o $(B)/libmeg.a
	$(call ld,-lcmocka)
$(B)/tests/ranks/%: $(B)/tests/ranks/%.c.o $(B)/libmeg.a
	$(call ld)
$(B)/tests/store/%: $(B)/tests/ranks/%.c.o $(B)/libmeg.a | $(B)/tests/store/
	$(call ld)
$(B)/tests/bench/%: $(B)/tests/bench/%.c.o $(B)/libmeg.a
	$(call ld)
# MPICH precedes the other MPI library and libmeg.a, so that nothing in them that is of the other MPI is linked.
MPICH_LD = $(call ld,-Wl$(comma)--as-needed $(call PKG_CONFIG,--libs mpich))
$(MPICH_OBJS): MODULE_FLAGS = $(call PKG_CONFIG,--cflags mpich)
$(B)/mpich/lib/%.c.o: lib/%.c $(B)/flags | $$(@D)/
	$(cc)
$(B)/mpich/bin/meg-%: $(B)/cmd/%/main.c.o $(MPICH_OBJS) $(B)/libmeg.a | $$(@D)/
	$(MPICH_LD)
$(B)/mpich/tests/ranks/%: $(B)/tests/ranks/%.c.o $(MPICH_OBJS) $(B)/libmeg.a | $$(@D)/
	$(MPICH_LD)
$(B)/mpich/tests/fault.so: $(B)/tests/fault.so | $$(@D)/
	@ln -sf ../../tests/fault.so $@
$(TOY): $(B)/cmd/train/main.c.o $(B)/tests/toy/toy.c.o $(B)/tests/toy/experts.c.o $(B)/libmeg.a
	$(call ld,-Wl$(comma)--wrap=meg_layout_make)
# Programs that run on the queue device (tests/queue/queue.h): the linker redirects calls that open a device to tests/queue.
QUEUE_WRAP := meg_device_open meg_device_cpu meg_device_current meg_cpu_ops meg_comm_open meg_comm_open_tensors
$(B)/tests/queue/%.c.o: MODULE_FLAGS := -Itests/queue
$(B)/tests/queue/bin/meg-%: $(B)/cmd/%/main.c.o $(QUEUE_OBJS) $(B)/libmeg.a | $(B)/tests/queue/bin/
	$(call ld,$(QUEUE_WRAP:%=-Wl,--wrap=%))
$(B)/tests/queue/layouts: $(B)/tests/ranks/layouts.c.o $(QUEUE_OBJS) $(B)/libmeg.a
	$(call ld,$(QUEUE_WRAP:%=-Wl,--wrap=%))
$(B)/tests/queue/test: $(B)/tests/queue/test.c.o $(QUEUE_OBJS) $(B)/libmeg.a
	$(call ld,$(QUEUE_WRAP:%=-Wl,--wrap=%) -lcmocka)
# Programs that reset one option to its default after parsing.
$(B)/tests/effects/bin/meg-%: $(B)/cmd/%/main.c.o $(B)/tests/effects/reset.c.o $(B)/libmeg.a | $(B)/tests/effects/bin/
	$(call ld,-Wl$(comma)--wrap=meg_opt_parse)
# Tests preload fault.so to fail each call of a write path in turn.
$(B)/tests/fault.so: tests/fault/fault.c $(B)/flags
	@mkdir -p $(@D)
	$(call run,$(CC) -g -O2 -Wall -Wextra -shared -fPIC -o $@ $< -ldl)

# One library is the double of both NCCL and the CUDA runtime.  Programs are linked with it as the CUDA runtime, and lib/comm
# loads it by dlopen as NCCL (libnccl.so.2).
$(NCCL_DOUBLE): $(filter-out %/device.c,$(wildcard tests/nccl/*.[ch])) $(B)/flags
	@mkdir -p $(@D)
	$(call run,$(CC) -g -O2 -Wall -Wextra -Ilib -fvisibility=hidden -isystem $(CUDA_HOME)/include -shared -fPIC \
	    -Wl$(comma)-soname$(comma)$(@F) -o $@ $(filter %.c,$^) -lpthread)
	@ln -sf $(@F) $(@D)/libnccl.so.2
NCCL_LD = $(call ld,$(filter %.so,$^) '-Wl$(comma)-rpath$(comma)$$ORIGIN:$$ORIGIN/..' \
    $(addprefix -Wl$(comma)--wrap=,meg_device_open meg_device_cpu meg_device_current))
# Compile lib/device without CUDA, because lib/cuda would be linked with the real CUDA runtime.
$(B)/tests/nccl/lib/device/device.c.o: MODULE_FLAGS = -UMEG_HAVE_CUDA
$(B)/tests/nccl/lib/device/device.c.o: lib/device/device.c $(B)/flags | $$(@D)/
	$(cc)
$(B)/tests/nccl/device.c.o: MODULE_FLAGS = -Itests/queue -isystem $(CUDA_HOME)/include
$(B)/tests/nccl/comm: $(B)/tests/ranks/comm.c.o $(NCCL_OBJS) $(B)/libmeg.a $(NCCL_DOUBLE)
	$(NCCL_LD)
$(B)/tests/nccl/bin/meg-%: $(B)/cmd/%/main.c.o $(NCCL_OBJS) $(B)/libmeg.a $(NCCL_DOUBLE) | $(B)/tests/nccl/bin/
	$(NCCL_LD)

# Programs are linked with the doubles, so that lib/cuda finds the doubles when it loads cuBLASLt and cuDNN.
$(B)/tests/cuda/libcublasLt.so.13: tests/cuda/cublaslt_double.c tests/nccl/common.h
$(B)/tests/cuda/libcudnn.so.9: tests/cuda/cudnn_double.c tests/nccl/common.h
$(filter-out $(NCCL_DOUBLE),$(EMULATED_LIBS)): $(NCCL_DOUBLE) $(B)/flags
	@mkdir -p $(@D)
	$(call run,$(CC) -g -O2 -Wall -Wextra -Ilib -fvisibility=hidden -isystem $(CUDA_HOME)/include -shared -fPIC \
	    -Wl$(comma)-soname$(comma)$(@F) -o $@ $(filter %.c,$^) $(NCCL_DOUBLE) -lm -lpthread)
EMULATED_LD = $(call ld,-Wl$(comma)--no-as-needed $(EMULATED_LIBS) $1 \
    '-Wl$(comma)-rpath$(comma)$$ORIGIN:$$ORIGIN/..:$$ORIGIN/../..:$$ORIGIN/../nccl:$$ORIGIN/../../nccl:$$ORIGIN/../../../nccl' -lstdc++)
$(B)/tests/cuda/check: $(CHECK_OBJS) $(EMULATED_OBJS) $(B)/libmeg.a $(EMULATED_LIBS)
	$(EMULATED_LD)
$(B)/tests/cuda/bin/meg-%: $(B)/cmd/%/main.c.o $(EMULATED_OBJS) $(B)/libmeg.a $(EMULATED_LIBS) | $(B)/tests/cuda/bin/
	$(EMULATED_LD)
$(B)/tests/cuda/unit/%: $(B)/tests/unit/%.c.o $(EMULATED_OBJS) $(B)/libmeg.a $(EMULATED_LIBS) | $$(@D)/
	$(call EMULATED_LD,-lcmocka)
# The program loads the real cuDNN, not its double.  Without a GPU, cuDNN uses the stub of the driver in tests/cuda/stub.
$(B)/tests/cuda/cudnn_accept: $(B)/tests/cuda/cudnn_accept.c.o $(patsubst %,$(B)/tests/cuda/%.o,$(wildcard lib/cuda/cudnn/*.c)) \
                           $(B)/libmeg.a $(NCCL_DOUBLE)
	$(call ld,$(NCCL_DOUBLE) '-Wl$(comma)-rpath$(comma)$$ORIGIN/../nccl:$(CUDA_HOME)/lib64')
	@mkdir -p $(@D)/stub
	@ln -sf $(CUDA_HOME)/lib64/stubs/libcuda.so $(@D)/stub/libcuda.so.1
$(B)/tests/cuda/check-gpu: $(CHECK_OBJS) $(B)/libmeg.a
	$(call ld)
$(B)/tests/cuda/bench: $(B)/tests/cuda/bench.c.o $(B)/libmeg.a
	$(call ld)

-include $(wildcard $(B)/lib/*/*.d $(B)/lib/*/*/*.d $(B)/cmd/*/*.d $(B)/tests/*/*.d $(B)/tests/*/*/*.d $(B)/tests/*/lib/*/*.d $(B)/tests/*/lib/*/*/*.d)

# ---- what is run --------------------------------------------------------------------------------

# The programs that the shell tests start.
TEST_PROGRAMS := $(RANKS) $(STORE) $(TOY) $(DOUBLE) $(EMULATED) $(CUDNN_ACCEPT) $(QUEUE) $(B)/tests/fault.so
build-tests: $(UNITS) $(TEST_PROGRAMS) $(CHECK_GPU)

# Tests of threads other than OpenMP's: ThreadSanitizer reports each OpenMP barrier as a race.
THREADED := $(B)/tests/unit/data/gpt_data tests/cmd/preprocess.t tests/cmd/preprocess-golden.t
# The longest tests are the first.
SLOW := cuda experts cuda_layouts ckpt_layouts layouts nccl faults ranks_signals torchrun queue memory cuda_demo cuda_golden
SHELL_TESTS := $(wildcard $(patsubst %,tests/%.t,$(SLOW)))
SHELL_TESTS += $(filter-out $(SHELL_TESTS),$(wildcard tests/*.t tests/cmd/*.t))
TESTS ?= $(if $(filter thread,$(SAN)),$(THREADED),$(SHELL_TESTS) $(UNITS))
# Line 2 of a shell test names the programs of $(B)/tests that it runs, or directories of them: "# needs: ranks/comm toy".
NEEDS = $(patsubst %,$(B)/tests/%%,$(shell sed -sn '2s/^# needs: //p' $(filter tests/%.t,$(TESTS))))
# use_tls=0: LeakSanitizer crashes when it scans thread-local storage of libraries opened at run time.  lsan.supp
# suppresses the leak report for the message that a failed dlopen stores there.
check: export ASAN_OPTIONS = allocator_may_return_null=1
check: export LSAN_OPTIONS = use_tls=0:print_suppressions=0:suppressions="$(CURDIR)/tests/lsan.supp"
check: export STRICT ?=
check: export TEST_S ?= 1800
check: $(B)/tests/fault.so $(filter-out build/san/%,$(filter $(B)/%,$(TESTS))) $(if $(filter %.t,$(TESTS)),all $(filter $(NEEDS),$(TEST_PROGRAMS))) \
       $(if $(filter mpich:%,$(TESTS)),$(MPICH))
	@CMOCKA_MESSAGE_OUTPUT=TAP OMP_WAIT_POLICY=passive PATH="$(abspath $(BIN)):$$PATH" B="$(abspath $(B))" \
	    tests/prove.sh $(TESTS)

demo: all
	@mkdir -p demo
	+@PATH="$(abspath $(BIN)):$$PATH" $(MAKE) --no-print-directory -C demo -f ../recipes/demo/Makefile \
	    $(if $(CORPUS),CORPUS='$(foreach f,$(CORPUS),$(if $(filter /%,$f),$f,../$f))')

# ---- what a change must pass --------------------------------------------------------------------

# All programs are built side by side, and then all tests run side by side.
ci:
	+$(MAKE) check-format lint check-clang san-tests all build-tests $(MPICH)
	+$(MAKE) check TESTS='$(MPICH_TESTS) $(TESTS) $(SAN_TESTS)'

C_FILES = $(wildcard $(foreach d,lib/* lib/*/* cmd/* tests/* tests/unit/*,$d/*.c $d/*.h $d/*.cu))
format:
	@clang-format -i $(C_FILES)
check-format:
	@clang-format --dry-run -Werror $(C_FILES)

SH_FILES := .ci/run $(wildcard tests/*.sh tests/*.t tests/cuda/*.sh tests/cmd/*.t tests/bench/run tests/bench/texts tests/bench/*.sh)
# Suppress warnings that are false: cppcheck does not detect that a callee sets an out-parameter, that a create function keeps
# no pointer to a local variable, or that a sum of exponentials is positive.
NOT_SO := uninitvar ctuuninitvar returnDanglingLifetime invalidFunctionArg:lib/cpu/xent.c
lint:
	mandoc -Tlint -Wwarning $(wildcard man/*)
	cppcheck -q --std=c11 --enable=warning,performance,portability --inline-suppr $(NOT_SO:%=--suppress=%) --error-exitcode=1 \
	    -Ilib -DMEG_VERSION='""' -DMEG_ISA=base lib cmd
	shellcheck -s sh -S warning -e SC1091,SC2010,SC2034,SC2154 $(SH_FILES)

# These use directories of their own.  To take less time, kernels are compiled for the CPU only, and the CPU operations only for
# the baseline and x86-64-v4 (ISAS).  clang only prints warnings.
check-clang:
	+$(MAKE) B=build/clang CC=clang CXX=clang++ CUDA=0 ISAS='$(filter v4,$(ISAS))' CFLAGS='-fsyntax-only -Werror' DEPS=0 objects
objects: $(OBJS) $(patsubst %,$(B)/%.o,$(MAINS) $(wildcard $(foreach d,unit/* ranks toy queue effects bench,tests/$d/*.c))) \
         $(CUDNN_ACCEPT:%=%.c.o) $(if $(filter NCCL,$(USED)),$(NCCL_OBJS)) $(if $(EMULATED),$(EMULATED_OBJS) $(CHECK_OBJS))
# Tests that measure time are omitted.
SAN_TESTS := $(patsubst $(B)/%,build/san/%,$(filter %/check,$(EMULATED)) $(filter-out %/ckpt_scale %/long_words,$(UNITS)))
SAN_MAKE := SAN=1 B=build/san CUDA=0 ISAS='$(filter v4,$(ISAS))' CFLAGS='-Og -g1' DEPS=0
san-tests:
	+$(MAKE) $(SAN_MAKE) build/san/tests/fault.so $(SAN_TESTS)
check-san:
	+$(MAKE) $(SAN_MAKE) check TESTS='$(SAN_TESTS)'
# tests/tap.sh runs mpich:TEST with the programs in $(B)/mpich.
MPICH_TESTS := $(patsubst %,mpich:tests/%.t,comm cp pipe ranks_differ ranks_signals)
check-mpich:
	+$(MAKE) check DEPS=0 TESTS='$(MPICH_TESTS)'

bench: all $(BENCH) $(CHECK_GPU)
	PATH="$(abspath $(BIN)):$$PATH" B="$(abspath $(B))" tests/bench/run $(BENCHES)

deps:

check-peers: export MEG_CORPUS_MB ?= 240
check-peers:
	@$(MAKE) --no-print-directory check TESTS='$(wildcard tests/peers-*.t)'

# By default, each triple of option values occurs in at least one layout.  FULL=1: all layouts.  PART=I/N: part I of N
# of all layouts, chosen by a fixed random permutation, without tests of checkpoints.
check-layouts: export LAYOUTS := $(if $(FULL)$(PART),full,cover)
check-layouts: all $(RANKS) $(B)/tests/fault.so
	@PATH="$(abspath $(BIN)):$$PATH" B="$(abspath $(B))" tests/layouts.t
	$(if $(PART),,@OMP_WAIT_POLICY=passive PATH="$(abspath $(BIN)):$$PATH" B="$(abspath $(B))" FULL=1 tests/ckpt_layouts.t)

check-faults: export KILLS ?= 50
check-faults: export STOPS ?= 47
check-faults: export LONG_STOPS ?= 3
check-faults: export POINTS ?= 20
check-faults: export TRIALS ?= 200
check-faults: export STRIDE ?= 1
check-faults: all $(RANKS) $(B)/tests/fault.so
	@OMP_WAIT_POLICY=passive PATH="$(abspath $(BIN)):$$PATH" B="$(abspath $(B))" tests/faults.t
	@PATH="$(abspath $(BIN)):$$PATH" B="$(abspath $(B))" tests/writers.t

check-effects: $(RESET) $(B)/tests/fault.so
	@MEG_RESET=1 PATH="$(abspath $(B))/tests/effects/bin:$$PATH" B="$(abspath $(B))" prove -e '' tests/effects_*.t

check-queue: export SEEDS ?= 200
check-queue: all build-tests
	@PATH="$(abspath $(BIN)):$$PATH" B="$(abspath $(B))" tests/queue.t
	@PATH="$(abspath $(BIN)):$$PATH" MEG_QUEUE_SEED=1 LAYOUTS=$(if $(FULL)$(PART),full,cover) B="$(abspath $(B))" \
	    tests/layouts.t

# Kernels are compiled for the CPU, and the libraries of NVIDIA are test doubles.
check-emulated: export CELLS ?= 60
check-emulated: export MAX_RANKS ?= 4
check-emulated: export STEPS ?= 10
check-emulated: all $(RANKS) $(EMULATED)
	@PATH="$(abspath $(BIN)):$$PATH" B="$(abspath $(B))" tests/cuda_layouts.t

check-gpu bench-gpu: all $(CHECK_GPU)
	@$(if $(CHECK_GPU),PATH="$(abspath $(BIN)):$$PATH" B="$(abspath $(B))" \
	    tests/$(if $(filter bench-gpu,$@),bench,cuda)/gpu.sh,echo 'this build has no CUDA: install nvcc, or name it by NVCC='; exit 1)

check-chroot:
	tests/chroot.sh

-include tests/fuzz/rules.mk

D := $(DESTDIR)$(PREFIX)
install: all
	install -d "$D/bin" "$D/share/man/man1" "$D/share/man/man5" "$D/share/man/man7" "$D/share/bash-completion/completions"
	install -m 755 $(CMDS) "$D/bin"
	for n in 1 5 7; do install -m 644 man/*.$$n "$D/share/man/man$$n" || exit 1; done
	for c in $(CMDS); do $$c --completion bash >"$D/share/bash-completion/completions/$${c##*/}" || exit 1; done

# List one command per C file, for the baseline instruction set only.
DB_FILES := $(filter %.c,$(SRCS)) $(MAINS) $(UNITS:$(B)/%=%.c)
DB_FLAGS  = -Itests/unit -DMEG_ISA=base $(if $(filter MPI,$(USED)),$(MPI_CFLAGS))
db_entry  = {"directory": "$(CURDIR)", "file": "$1", "command": "$(subst ",\",$(COMPILE) $(DB_FLAGS)) -c $1"}
compile_commands.json: FORCE
	$(file >$@,[)
	$(foreach f,$(DB_FILES),$(file >>$@,$(call db_entry,$f)$(if $(filter-out $(lastword $(DB_FILES)),$f),$(comma))))
	$(file >>$@,])
	@echo '  $@'

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile

clean:
	rm -rf build bin demo

.PHONY: all help ci format check-format check-clang objects san-tests check-san check-mpich build-tests check check-peers check-layouts check-faults check-effects check-queue check-emulated check-gpu bench-gpu check-chroot demo deps bench fuzz lint install clean FORCE
