#!/bin/sh
# Check how make handles missing packages, with a fake package manager.
. "${0%/*}/lib.sh"
cd "${0%/*}/.." || exit 1
command -v dpkg-query >/dev/null || skip_all 'not a Debian system'

mkdir "$T/bin" "$T/b"
cat >"$T/bin/dpkg-query" <<'end'
#!/bin/sh
shift 3
for p; do
    [ "$p" = "${lacks:-jq}" ] && [ ! -e "$T/installed" ] || echo "installed $p"
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

like 'DEPS=0 prints the missing packages' "$(fake_make deps DEPS=0)" 'missing packages: jq'
ok 'DEPS=0 installs nothing' test ! -e "$T/log"
like 'make -n prints the command' "$(fake_make -n deps)" "to install them: make deps or $installs"
ok 'make -n installs nothing' test ! -e "$T/log"

like 'make deps prints the command' "$(fake_make deps)" "$installs"
is 'make deps runs the command' "$(cat "$T/log")" "$installs"
unlike 'a second make deps installs nothing' "$(fake_make deps)" 'apt-get'

rm "$T/installed" "$T/log"
for goal in all install check-layouts; do
    export lacks=libjansson-dev
    status "make $goal fails without a package that it requires" 2 fake_make "$goal"
    like 'the message names the package and make deps' "$(cat "$T/out")" \
        'missing packages: libjansson-dev; to install them: make deps or apt-get install .* libjansson-dev; to build without them: make DEPS=0'
    unset lacks
    ok 'nothing is installed' test ! -e "$T/log"
done
touch "$T/broken"
like 'a package that cannot be installed is an error' "$(fake_make deps)" 'still missing after installing: jq'

# A requested MPI that is missing is an error; if none is requested, make builds without MPI.
cat >"$T/bin/pkg-config" <<'end'
#!/bin/sh
[ "$1" != --exists ]
end
chmod +x "$T/bin/pkg-config"
rm "$T/broken"
for mpi in 1 openmpi mpich; do
    for goal in all check; do
        status "make $goal fails with a missing MPI=$mpi" 2 fake_make -n DEPS=0 MPI=$mpi $goal
        like 'the message names the packages to install' "$(cat "$T/out")" "MPI=$mpi, but pkg-config finds no .*: install lib(openmpi|mpich)-dev"
    done
done
status 'MPI=0 needs no MPI' 0 fake_make -n DEPS=0 MPI=0 all
cat >"$T/bin/pkg-config" <<'end'
#!/bin/sh
exit 0
end
status 'make check fails without mpirun' 2 fake_make -n DEPS=0 MPI=1 MPIRUN="$T/no-mpirun" check
like 'the message names the packages to install' "$(cat "$T/out")" "there is no $T/no-mpirun to start ranks with: install libopenmpi-dev openmpi-bin"

# wants MPI PACKAGES: make check with MPI=... requires these MPI packages
wants() {
    is "MPI=$1 requires the packages: $2" "$(env -u MAKEFLAGS make B="$T/b" -pn DEPS=0 MPI="$1" check 2>/dev/null | sed -n 's/^DEPS_MPI := //p')" "$2"
}
wants auto 'libopenmpi-dev openmpi-bin'
wants openmpi 'libopenmpi-dev openmpi-bin'
wants mpich 'libmpich-dev mpich'
wants 0 ''
done_testing
