# The Debian packages that each goal requires.  If some are missing, check, demo, ci and deps install them, and other
# goals end with a message that names them.  With DEPS=0 or -n, make only warns.

DEPS_BUILD := $(if $(shell command -v $(firstword $(CC))),,gcc) libc6-dev make pkg-config libdnnl-dev libjansson-dev \
              libxxhash-dev libzstd-dev zlib1g-dev liblzma-dev libutf8proc-dev libpcre2-dev \
              $(if $(filter-out 0,$(CUDA)),$(if $(wildcard $(NVCC)),g++))
DEPS_MPI   := $(if $(filter 0,$(MPI)),,$(if $(filter mpich,$(MPI)),libmpich-dev mpich,libopenmpi-dev openmpi-bin))
DEPS_demo  := gnuplot-nox jq zstd $(DEPS_MPI)
DEPS_check := g++ libcmocka-dev perl mandoc xz-utils gzip $(DEPS_demo)
DEPS_deps  := $(DEPS_check)
DEPS_lint  := mandoc cppcheck shellcheck
DEPS_fuzz  := clang
DEPS_check-format := clang-format
DEPS_check-clang  := $(DEPS_check) clang libomp-dev
DEPS_check-mpich  := $(DEPS_check) libmpich-dev mpich
DEPS_check-chroot := debootstrap
DEPS_ci    := $(DEPS_lint) $(DEPS_check-format) $(DEPS_check-clang) $(DEPS_check-mpich)
DEPS_DEBIAN := $(sort $(DEPS_BUILD) $(foreach g,$(GOALS),$(or $(DEPS_$g),$(if $(filter check-%,$g),$(DEPS_check)))))

ifneq ($(shell command -v dpkg-query),)
MISSING := $(filter-out $(shell dpkg-query -W -f '$${db:Status-Status} $${Package}\n' $(DEPS_DEBIAN) \
               2>/dev/null | sed -n 's/^installed //p'),$(DEPS_DEBIAN))
endif
IF_MISSING := $(if $(filter 0,$(DEPS))$(findstring n,$(firstword -$(MAKEFLAGS))),warning,$(if \
                  $(filter check demo ci deps,$(GOALS)),install,error))
INSTALLS := $(and $(MISSING),$(filter install,$(IF_MISSING)))
export DEBIAN_FRONTEND := noninteractive
APT_GET := $(if $(filter-out 0,$(shell id -u)),sudo )apt-get
APT_INSTALL := $(APT_GET) install -y --no-install-recommends $(MISSING)

ifneq ($(and $(MISSING),$(filter-out clean help format check-format,$(GOALS))),)
ifndef INSTALLS
$(call $(IF_MISSING),missing packages: $(MISSING); to install them: $(if $(filter-out $(DEPS_BUILD) \
    $(DEPS_deps),$(MISSING)),,make deps or )$(APT_INSTALL); to build without them: make DEPS=0)
else ifdef MAKE_RESTARTS
$(error still missing after installing: $(MISSING))
else
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
