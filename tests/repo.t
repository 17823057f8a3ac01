#!/bin/sh
# What the shape of the tree promises: see also modules.t and man.t.
. "${0%/*}/lib.sh"
cd "${0%/*}/.." || exit 1

is 'every test can be run' "$(find tests -name '*.t' ! -perm -u+x)" ''
for main in cmd/*/main.c; do
    [ -f "$main" ] || continue
    name=$(basename "${main%/main.c}")
    ok "cmd/$name has its page" test -f "man/meg-$name.1"
    ok "cmd/$name has its test" test -f "tests/cmd/$name.t"
done

# What a path with a space breaks shows in the command of any object, and in those of a program and of an installation.
mkdir "$T/a path"
cp -R Makefile lib cmd "$T/a path"
in_a_path() {
    env -u B -u SAN -u DEBUG -u TESTS -u MAKEFLAGS -u MAKELEVEL make -C "$T/a path" DEPS=0 CUDA=0 NCCL=0 MPI=0 "$@"
}
ok 'a path with a space builds' in_a_path build/lib/base/clock.c.o
ok 'there is the object' test -s "$T/a path/build/lib/base/clock.c.o"
like 'it installs to one' "$(in_a_path -n install DESTDIR="$T/to here" 2>&1)" "install -d \"$T/to here/usr/local/bin\""

# Leaks through it are suppressed, as Open MPI's: tests/lsan.supp.
is 'nothing of ours calls vasprintf' "$(grep -lw -e asprintf -e vasprintf lib/*/*.[ch] cmd/*/*.c)" ''

# A header includes what it needs; one with MEG_BEGIN_DECLS may be included from C++.
for header in lib/*/*.h; do
    printf '#include "%s"\n' "${header#lib/}" >"$T/one.c"
    # shellcheck disable=SC2086 # CC may be "ccache gcc"
    ok "$header compiles alone" ${CC:-cc} -std=gnu11 -fopenmp -Ilib -DMEG_ISA=base -fsyntax-only -Wall -Wextra -Werror "$T/one.c"
    ! grep -q '^MEG_BEGIN_DECLS' "$header" || cat "$T/one.c" >>"$T/all.cc"
done
if command -v c++ >/dev/null; then
    ok 'headers with MEG_BEGIN_DECLS compile as C++' c++ -std=c++17 -Ilib -fsyntax-only -Wall -Werror "$T/all.cc"
else
    skip 'headers with MEG_BEGIN_DECLS compile as C++' 'no C++ compiler'
fi
done_testing
