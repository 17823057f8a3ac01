/* threads.c - bind OpenMP's threads to processors (see meg_cpu_ops in cpu.h). */
#define _GNU_SOURCE
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include "cpu/internal.h"

/* Return the n-th processor of a mask, counted from 0. */
static int nth_cpu(const cpu_set_t *mask, int n)
{
    int cpu = -1;
    while (n >= 0)
        n -= CPU_ISSET(++cpu, mask) != 0;
    return cpu;
}

void meg_cpu_bind_threads(void)
{
    cpu_set_t mask;
    if (getenv("OMP_PROC_BIND") || getenv("GOMP_CPU_AFFINITY") || omp_get_max_threads() < 2 ||
        sched_getaffinity(0, sizeof mask, &mask) < 0 || CPU_COUNT(&mask) != omp_get_max_threads())
        return;
#pragma omp parallel
    if (omp_get_thread_num() > 0) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(nth_cpu(&mask, omp_get_thread_num()), &one);
        pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    }
}
