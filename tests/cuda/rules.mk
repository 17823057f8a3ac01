# Tests of the CUDA backend, on a GPU and without one.

CHECK_OBJS := $(patsubst %,$(B)/%.o,$(wildcard tests/cuda/check*.c))
CHECK_GPU := $(if $(filter CUDA,$(USED)),$(B)/tests/cuda/check-gpu $(B)/tests/cuda/bench)
$(B)/tests/cuda/%.o: MODULE_FLAGS = -isystem $(CUDA_HOME)/include -DMEG_HAVE_CUDA $(if $(CUDNN_H),-DMEG_HAVE_CUDNN)
$(B)/tests/cuda/check-gpu: $(CHECK_OBJS) $(OPS_OBJS) $(B)/libmeg.a
	$(ld)
$(B)/tests/cuda/bench: $(B)/tests/cuda/bench.c.o $(OPS_OBJS) $(B)/libmeg.a
	$(ld)

# Programs whose kernels are compiled for the CPU (tests/cuda/emulate.h).  They are linked with NCCL_DOUBLE and with
# doubles of cuBLASLt and cuDNN, which lib/cuda then finds when it loads these libraries.  They require the headers of
# CUDA and NCCL, but no nvcc.  The header of cuDNN is optional.
EMULATED_SRCS := lib/device/device.c \
                 $(filter-out $(if $(CUDNN_H),,$(OPTIONAL_CUDNN)),$(filter %.c %.cu,$(OPTIONAL_CUDA)))
EMULATED_OBJS := $(EMULATED_SRCS:%=$(B)/tests/cuda/%.o)
CUDA_DOUBLES := $(B)/tests/cuda/libcublasLt.so.13 $(if $(CUDNN_H),$(B)/tests/cuda/libcudnn.so.9)
# The unit tests that compare models with reference numbers (tests/unit/golden_device.h).
GOLDEN := model/gpt_golden model/bert_golden model/t5_golden train/steps eval/fill_mask
EMULATED := $(if $(NCCL_H),$(if $(call include_of,cublasLt.h),$(B)/tests/cuda/check $(GOLDEN:%=$(B)/tests/cuda/unit/%) \
                $(patsubst %,$(B)/tests/cuda/bin/meg-%,train eval generate)))
CXX_COMPILE = $(CXX) -x c++ -std=c++17 $(MEG_CPPFLAGS) $(CPPFLAGS) $(MODULE_FLAGS) -Itests/cuda -Wall -Wextra \
              -Wno-unknown-pragmas $(CFLAGS) $(SAN_FLAGS)
$(B)/tests/cuda/lib/%.c.o: lib/%.c $(B)/flags | $$(@D)/
	$(cc)
$(B)/tests/cuda/lib/%.cu.o: lib/%.cu $(B)/flags | $$(@D)/
	$(call run,$(CXX_COMPILE) -MMD -MP -c -o $@ $<)
$(B)/tests/cuda/libcublasLt.so.13: tests/cuda/cublaslt_double.c tests/nccl/common.h
$(B)/tests/cuda/libcudnn.so.9: tests/cuda/cudnn_double.c tests/nccl/common.h
$(CUDA_DOUBLES): $(NCCL_DOUBLE) $(B)/flags | $$(@D)/
	$(call double,$(NCCL_DOUBLE) -lm)
$(EMULATED): LD_FLAGS = -Wl,--no-as-needed $(NCCL_DOUBLE) $(CUDA_DOUBLES) $(CMOCKA) -lstdc++ \
    '-Wl,-rpath,$$ORIGIN:$$ORIGIN/..:$$ORIGIN/../..:$$ORIGIN/../nccl:$$ORIGIN/../../nccl:$$ORIGIN/../../../nccl'
$(B)/tests/cuda/check: $(CHECK_OBJS) $(OPS_OBJS) $(EMULATED_OBJS) $(B)/libmeg.a $(NCCL_DOUBLE) $(CUDA_DOUBLES)
	$(ld)
$(B)/tests/cuda/bin/meg-%: $(B)/cmd/%/main.c.o $(EMULATED_OBJS) $(B)/libmeg.a $(NCCL_DOUBLE) $(CUDA_DOUBLES) | $$(@D)/
	$(ld)
$(B)/tests/cuda/unit/%: CMOCKA := -lcmocka
$(B)/tests/cuda/unit/%: $(B)/tests/unit/%.c.o $(EMULATED_OBJS) $(B)/libmeg.a $(NCCL_DOUBLE) $(CUDA_DOUBLES) | $$(@D)/
	$(ld)

# The program loads the real cuDNN.  Without a GPU, cuDNN uses the stub of the driver in tests/cuda/stub.
CUDNN_ACCEPT := $(if $(NCCL_H),$(if $(CUDNN_H),$(B)/tests/cuda/cudnn_accept))
$(B)/tests/cuda/cudnn_accept: LD_FLAGS = $(NCCL_DOUBLE) '-Wl,-rpath,$$ORIGIN/../nccl:$(CUDA_HOME)/lib64'
$(B)/tests/cuda/cudnn_accept: $(B)/tests/cuda/cudnn_accept.c.o $(B)/libmeg.a $(NCCL_DOUBLE) \
                              $(patsubst %,$(B)/tests/cuda/%.o,$(filter %.c,$(OPTIONAL_CUDNN)))
	$(ld)
	@mkdir -p $(@D)/stub
	@ln -sf $(CUDA_HOME)/lib64/stubs/libcuda.so $(@D)/stub/libcuda.so.1

objects: $(CUDNN_ACCEPT:%=%.c.o) $(if $(EMULATED),$(EMULATED_OBJS) $(CHECK_OBJS))
