# Programs of several ranks over MPI, over the store and over MPICH.

RANKS := $(if $(filter MPI,$(USED)),$(patsubst %.c,$(B)/%,$(wildcard tests/ranks/*.c)))
$(RANKS): %: %.c.o $(B)/libmeg.a
	$(ld)

# The ranks of this program communicate only over the store (lib/comm/store_transport.c), so it is built even without MPI.
STORE := $(B)/tests/store/comm
$(STORE): $(B)/tests/ranks/comm.c.o $(B)/libmeg.a | $$(@D)/
	$(ld)

# MPICH precedes the other MPI library and libmeg.a, so that nothing in them that is of the other MPI is linked.  What
# does not depend on the MPI library is that of the other programs.
MPICH_OBJS := $(patsubst %,$(B)/mpich/%.o,$(wildcard lib/comm/mpi*.c))
MPICH := $(if $(RANKS),$(patsubst %,$(B)/mpich/%,bin/meg-train $(patsubst %,tests/ranks/%,comm cp pipe) tests/fault.so))
$(MPICH_OBJS): MODULE_FLAGS = $(call PKG_CONFIG,--cflags mpich)
$(B)/mpich/%: LD_FLAGS = -Wl,--as-needed $(call PKG_CONFIG,--libs mpich)
$(B)/mpich/lib/%.c.o: lib/%.c $(B)/flags | $$(@D)/
	$(cc)
$(B)/mpich/bin/meg-%: $(B)/cmd/%/main.c.o $(MPICH_OBJS) $(B)/libmeg.a | $$(@D)/
	$(ld)
$(B)/mpich/tests/ranks/%: $(B)/tests/ranks/%.c.o $(MPICH_OBJS) $(B)/libmeg.a | $$(@D)/
	$(ld)
$(B)/mpich/tests/fault.so: $(B)/tests/fault.so | $$(@D)/
	@ln -sf ../../tests/fault.so $@
