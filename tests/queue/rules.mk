# Programs that run on the queue device (tests/queue/queue.h): the linker redirects calls that open a device to it.

QUEUE_OBJS := $(patsubst %,$(B)/%.o,$(filter-out tests/queue/test.c,$(wildcard tests/queue/*.c)))
QUEUE := $(patsubst %,$(B)/tests/queue/bin/meg-%,train eval generate) $(B)/tests/queue/test
QUEUE += $(if $(RANKS),$(B)/tests/queue/layouts)
$(B)/tests/queue/%.c.o: MODULE_FLAGS := -Itests/queue
$(QUEUE): LD_FLAGS = $(call wrap,meg_device_open meg_device_cpu meg_device_current meg_cpu_ops meg_comm_open \
                         meg_comm_open_tensors)
$(B)/tests/queue/bin/meg-%: $(B)/cmd/%/main.c.o $(QUEUE_OBJS) $(B)/libmeg.a | $$(@D)/
	$(ld)
$(B)/tests/queue/layouts: $(B)/tests/ranks/layouts.c.o $(QUEUE_OBJS) $(B)/libmeg.a
	$(ld)
$(B)/tests/queue/test: LD_FLAGS += -lcmocka
$(B)/tests/queue/test: $(B)/tests/queue/test.c.o $(QUEUE_OBJS) $(B)/libmeg.a
	$(ld)
