/*
 * ops_threads.c - binding of threads: if there are as many threads as processors, each is bound to its own processor,
 * except the calling thread, which is not bound.
 */
#define _GNU_SOURCE
#include <sched.h>
#include "ops.h"

static int count_of(cpu_set_t *mask)
{
    assert_int_equal(sched_getaffinity(0, sizeof *mask, mask), 0);
    return CPU_COUNT(mask);
}

static void workers_are_bound_if_there_is_one_per_processor(void **state)
{
    cpu_set_t before, after;
    int n = count_of(&before), threads = 0, bound = 0, workers_cpu = 0;
    (void)state;
    omp_set_num_threads(n);
    meg_cpu_ops();
    assert_int_equal(count_of(&after), n);
    assert_true(CPU_EQUAL(&before, &after));
#pragma omp parallel reduction(+ : threads, bound, workers_cpu)
    {
        cpu_set_t mine;
        sched_getaffinity(0, sizeof mine, &mine);
        threads++;
        bound += CPU_COUNT(&mine) == 1;
        for (int c = 0; CPU_COUNT(&mine) == 1 && c < CPU_SETSIZE; c++)
            workers_cpu += CPU_ISSET(c, &mine) ? c : 0;
    }
    assert_int_equal(threads, n);
    if (n == 1 || getenv("OMP_PROC_BIND")) {
        print_message("# one thread, or threads that the environment binds\n");
        skip();
    }
    assert_int_equal(bound, n - 1);
    for (int c = 0, seen = 0; c < CPU_SETSIZE; c++) /* each processor of the mask except the first occurs once */
        if (CPU_ISSET(c, &before) && seen++ > 0)
            workers_cpu -= c;
    assert_int_equal(workers_cpu, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_are_bound_if_there_is_one_per_processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
