# A test double of NCCL and the CUDA runtime, for machines without a GPU, and the programs that use the double as their
# device.

# $(call double,LIBS): compile a library that replaces another one in tests
double = $(call run,$(CC) -g -O2 -Wall -Wextra -Ilib -fvisibility=hidden -isystem $(CUDA_HOME)/include -shared -fPIC \
    -Wl$(comma)-soname$(comma)$(@F) -o $@ $(filter %.c,$^) $1 -lpthread)
# Programs are linked with the library as the CUDA runtime, and lib/comm loads it by dlopen as NCCL (libnccl.so.2).
NCCL_DOUBLE := $(B)/tests/nccl/libcudart-double.so
$(NCCL_DOUBLE): $(filter-out %/device.c,$(wildcard tests/nccl/*.[ch])) $(B)/flags | $$(@D)/
	$(double)
	@ln -sf $(@F) $(@D)/libnccl.so.2

NCCL_OBJS := $(B)/tests/nccl/device.c.o $(B)/tests/nccl/lib/device/device.c.o $(B)/tests/queue/queue_ops.c.o
NCCL_TESTS := $(if $(filter NCCL,$(USED)),$(B)/tests/nccl/comm $(B)/tests/nccl/bin/meg-train)
$(NCCL_TESTS): LD_FLAGS = $(NCCL_DOUBLE) '-Wl,-rpath,$$ORIGIN:$$ORIGIN/..' \
                   $(call wrap,meg_device_open meg_device_cpu meg_device_current)
# Compile lib/device without CUDA, because lib/cuda would be linked with the real CUDA runtime.
$(B)/tests/nccl/lib/%.c.o: MODULE_FLAGS = -UMEG_HAVE_CUDA
$(B)/tests/nccl/lib/%.c.o: lib/%.c $(B)/flags | $$(@D)/
	$(cc)
$(B)/tests/nccl/device.c.o: MODULE_FLAGS = -Itests/queue -isystem $(CUDA_HOME)/include
$(B)/tests/nccl/comm: $(B)/tests/ranks/comm.c.o $(NCCL_OBJS) $(B)/libmeg.a $(NCCL_DOUBLE)
	$(ld)
$(B)/tests/nccl/bin/meg-%: $(B)/cmd/%/main.c.o $(NCCL_OBJS) $(B)/libmeg.a $(NCCL_DOUBLE) | $$(@D)/
	$(ld)
