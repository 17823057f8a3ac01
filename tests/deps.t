#!/bin/sh
# What make does about missing packages, with a package manager that only pretends.
. "${0%/*}/lib.sh"
cd "${0%/*}/.." || exit 1
command -v dpkg-query >/dev/null || skip_all 'not a Debian system'

mkdir "$T/bin" "$T/b"
cat >"$T/bin/dpkg-query" <<'end'
#!/bin/sh
shift 3
for p; do
    [ "$p" = jq ] && [ ! -e "$T/installed" ] || echo "installed $p"
done
end
cat >"$T/bin/apt-get" <<'end'
#!/bin/sh
echo "apt-get $*" >>"$T/log"
[ "$1" != install ] || [ -e "$T/broken" ] || touch "$T/installed"
end
printf '#!/bin/sh\nexit 0\n' >"$T/bin/apt-cache"
printf '#!/bin/sh\n[ "$1" != -u ] || echo 0\n' >"$T/bin/id"
chmod +x "$T"/bin/*
export T
fake_make() {
    env -u DEPS -u MAKEFLAGS -u MAKELEVEL PATH="$T/bin:$PATH" make B="$T/b" "$@" 2>&1
}
installs='apt-get install -y --no-install-recommends jq'

like 'DEPS=0 names what is missing' "$(fake_make deps DEPS=0)" 'missing packages: jq'
ok 'and installs nothing' test ! -e "$T/log"
like 'make -n installs nothing either' "$(fake_make -n deps)" "to install them: $installs"
ok 'and did not' test ! -e "$T/log"

like 'the command is printed first' "$(fake_make deps)" "$installs"
is 'and run' "$(cat "$T/log")" "$installs"
unlike 'a second time there is nothing to do' "$(fake_make deps)" 'apt-get'

rm "$T/installed"
touch "$T/broken"
like 'what stays missing ends make' "$(fake_make deps)" 'still missing after installing: jq'

# An MPI that was asked for and is missing ends make; where it was not asked for, make builds without.
cat >"$T/bin/pkg-config" <<'end'
#!/bin/sh
[ "$1" != --exists ]
end
chmod +x "$T/bin/pkg-config"
rm "$T/broken"
for mpi in 1 openmpi mpich; do
    for goal in all check; do
        status "MPI=$mpi that is missing: make $goal" 2 fake_make -n DEPS=0 MPI=$mpi $goal
        like 'says what to install' "$(cat "$T/out")" "MPI=$mpi, but pkg-config finds no .*: install lib(openmpi|mpich)-dev"
    done
done
status 'MPI=0 asks for none' 0 fake_make -n DEPS=0 MPI=0 all
cat >"$T/bin/pkg-config" <<'end'
#!/bin/sh
exit 0
end
status 'ranks that nothing can start: make check' 2 fake_make -n DEPS=0 MPI=1 MPIRUN="$T/no-mpirun" check
like 'says what to install' "$(cat "$T/out")" "there is no $T/no-mpirun to start ranks with: install libopenmpi-dev openmpi-bin"

# wants MPI PACKAGES: what the suite needs of MPI's packages
wants() {
    is "MPI=$1: packages" "$(env -u MAKEFLAGS make -pn DEPS=0 MPI="$1" check 2>/dev/null | sed -n 's/^DEPS_MPI := //p')" "$2"
}
wants auto 'libopenmpi-dev openmpi-bin'
wants openmpi 'libopenmpi-dev openmpi-bin'
wants mpich 'libmpich-dev mpich'
wants 0 ''
done_testing
