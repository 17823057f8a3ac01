#!/bin/sh
# Check that commands have tests and manual pages, headers compile alone, and make accepts paths with spaces.  See also
# modules.t and man.t.
. "${0%/*}/lib.sh"
cd "${0%/*}/.." || exit 1

is 'no file has the markers of a merge conflict' "$(grep -rlE '^(<<<<<<<|>>>>>>>) ' lib cmd tests man recipes ./*.md)" ''
is 'all tests are executable' "$(find tests -name '*.t' ! -perm -u+x)" ''
# make builds only the programs that line 2 names (NEEDS in tests/rules.mk).
for t in tests/*.t tests/cmd/*.t; do
    for program in $(grep -oE '\$B"?/tests/[a-z]+/[a-z_]+' "$t" | sed 's/.*tests.//' | grep -v -e /stub -e /lib | sort -u); do
        sed -n 2p "$t" | grep -qE "^# needs:.* (${program%/*}|$program)( |\$)" || echo "$t: $program"
    done
done >"$T/unnamed"
is 'each test names the programs that it runs in line 2: # needs: PROGRAM...' "$(cat "$T/unnamed")" ''
# make check-MODULE runs the tests that name MODULE (tests_of in tests/rules.mk).
is 'each test names existing modules in line 2 or 3: # modules: MODULE...' \
    "$(sed -sn '2,3s/^# modules: //p' tests/*.t tests/cmd/*.t | tr ' ' '\n' | while read -r m; do [ -d "lib/$m" ] || echo "$m"; done)" ''
for main in cmd/*/main.c; do
    [ -f "$main" ] || continue
    name=$(basename "${main%/main.c}")
    ok "cmd/$name has a manual page" test -f "man/meg-$name.1"
    ok "cmd/$name has a test" test -f "tests/cmd/$name.t"
done

# A path with a space would break the commands that compile an object or install a program.
mkdir "$T/a path"
cp -R Makefile packages.mk lib cmd "$T/a path"
in_a_path() {
    env -u B -u SAN -u DEBUG -u TESTS -u MAKEFLAGS -u MAKELEVEL make -C "$T/a path" DEPS=0 CUDA=0 NCCL=0 MPI=0 "$@"
}
ok 'make works in a path with a space' in_a_path build/lib/base/clock.c.o
ok 'the object is built' test -s "$T/a path/build/lib/base/clock.c.o"
like 'make install works with a path with a space' "$(in_a_path -n install DESTDIR="$T/to here" 2>&1)" "install -d \"$T/to here/usr/local/bin\""

# tests/lsan.supp suppresses leaks of vasprintf, which Open MPI calls, so meg must not call it.
is 'lib and cmd do not call vasprintf' "$(grep -rlw -e asprintf -e vasprintf lib cmd)" ''

# Each header includes the headers that it uses.  Headers with MEG_BEGIN_DECLS also compile as C++; headers of CUDA
# kernels compile only as C++.
has_nccl=$(printf '#include <nccl.h>\n' | ${CC:-cc} -E -x c - >/dev/null 2>&1 && echo 1)
kernel_headers=$(grep -l __device__ lib/cuda/*.h lib/cuda/*/*.h)
for header in lib/*/*.h lib/*/*/*.h; do
    case $has_nccl$header in
    lib/comm/nccl_*)
        skip "$header compiles alone" 'no NCCL'
        continue
        ;;
    lib/cuda/*)
        skip "$header compiles alone" 'no CUDA'
        continue
        ;;
    esac
    printf '#include "%s"\n' "${header#lib/}" >"$T/one.c"
    case $kernel_headers in
    *"$header"*)
        ok "$header compiles alone" c++ -x c++ -std=c++17 -Ilib -Itests/cuda -fsyntax-only -Wall -Wno-unknown-pragmas "$T/one.c"
        continue
        ;;
    esac
    # shellcheck disable=SC2086 # CC may be "ccache gcc"
    ok "$header compiles alone" ${CC:-cc} -std=gnu11 -fopenmp -Ilib -DMEG_ISA=base -fsyntax-only -Wall -Wextra -Werror "$T/one.c"
    ! grep -q '^MEG_BEGIN_DECLS' "$header" || cat "$T/one.c" >>"$T/all.cc"
done
if command -v c++ >/dev/null; then
    ok 'headers with MEG_BEGIN_DECLS compile as C++' c++ -std=c++17 -fopenmp -Ilib -DMEG_ISA=base -fsyntax-only -Wall -Werror "$T/all.cc"
else
    skip 'headers with MEG_BEGIN_DECLS compile as C++' 'no C++ compiler'
fi
done_testing
