#!/bin/sh
# Check what make builds and runs for a goal, by the commands that make -n prints.
. "${0%/*}/lib.sh"
cd "${0%/*}/.." || exit 1

# make -n also writes the flags to the build directory, so run it in another directory.
mkdir "$T/tree"
cp Makefile packages.mk "$T/tree"
ln -s "$PWD/lib" "$PWD/cmd" "$PWD/tests" "$T/tree"
# commands ARGUMENT...: print the outputs of the commands of make, and the tests that it runs
commands() {
    env -u B -u SAN -u DEBUG -u TESTS -u CFLAGS -u MAKEFLAGS -u MAKELEVEL make -C "$T/tree" -n DEPS=0 CUDA=0 NCCL=0 MPI=0 "$@" 2>&1 |
        grep -oE -e '-o [^ ]+' -e 'prove.sh .*' -e 'there are no tests.*' -e '[*]{3} .*'
}

like 'check-san builds the tests that it runs' "$(commands check-san)" '-o build/san/tests/unit/base/err$'
commands check TESTS=tests/toy.t >"$T/toy"
like 'make builds the programs that a shell test names in line 2' "$(cat "$T/toy")" '-o build/tests/toy/meg-train$'
unlike 'make builds no other test programs' "$(cat "$T/toy")" '-o build/tests/(unit|queue|cuda|effects)/'

like 'TESTS has short names' "$(commands check TESTS='file/lock toy.t')" 'prove.sh build/tests/unit/file/lock tests/toy.t'
commands quick TESTS=file/lock >"$T/quick"
like 'quick builds and runs a unit test in build/quick' "$(cat "$T/quick")" 'prove.sh build/quick/tests/unit/file/lock$'
unlike 'quick builds no commands, and for one instruction set' "$(cat "$T/quick")" '-o [^ ]*(bin/meg|[.]v[34][.]o)'
like 'quick without TESTS builds the commands' "$(commands quick)" '-o build/quick/bin/meg-train$'
commands quick check-file >"$T/module"
like 'check-MODULE runs the unit tests of the module' "$(cat "$T/module")" 'prove.sh .*build/quick/tests/unit/file/lock '
like 'check-MODULE runs the shell tests that name the module' "$(cat "$T/module")" 'prove.sh .* tests/writers.t( |$)'
unlike 'check-MODULE runs no tests of other modules' "$(cat "$T/module")" 'prove.sh .*tests/(unit/model|toy)'
mkdir -p "$T/tree/build"
printf 'build/tests/unit/file/lock\ntests/toy.t\n' >"$T/tree/build/failed"
like 'TESTS=failed runs the tests that failed' "$(commands check TESTS=failed)" 'prove.sh build/tests/unit/file/lock tests/toy.t$'
: >"$T/tree/build/failed"
like 'TESTS=failed runs nothing if no test failed' "$(commands check TESTS=failed)" 'there are no tests to run'
done_testing
