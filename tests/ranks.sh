# Sourced after lib.sh by tests that start several ranks.  Open MPI refuses root and more ranks than
# cores unless told otherwise; its help texts are not part of what is tested.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_orte_base_help_aggregate=1 OMP_NUM_THREADS=1

# ranks N COMMAND...: run it on N ranks of this machine
ranks() {
    ranks_n=$1
    shift
    mpirun -n "$ranks_n" "$@"
}
