/*
 * train/stop.c: a signal during a matrix multiplication.  oneDNN may use the heap as the stack while it multiplies
 * (cpu/gemm.c).
 */
#include "train/stop.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include "cpu/internal.h"

enum { M = 32, N = 32, K = 128, THREADS = 2, ROUNDS = 20000 };

static pthread_t threads[THREADS];
static atomic_bool is_over;

static void *send_signals(void *arg)
{
    int i = 0;

    (void)arg;
    do
        pthread_kill(threads[i++ % THREADS], SIGHUP);
    while (!is_over);
    return NULL;
}

/* Any number of SIGHUPs only stop the run (train/stop.h).  malloc ends the process if it finds the heap overwritten. */
static void signals_during_matrix_multiplications_leave_the_heap_intact(void **state)
{
    static float a[M * K], b[K * N];
    struct sigaction action;
    pthread_t sender;
    float sum = 0.0f;
    int without_stack = 0;

    (void)state;
    for (int i = 0; i < M * K; i++)
        a[i] = b[i] = 1.0f;
    signal(SIGHUP, SIG_DFL); /* nohup(1) ignores it */
    meg_stop_catch();
    meg_cpu_gemm_load();
#pragma omp parallel num_threads(THREADS)
    threads[omp_get_thread_num()] = pthread_self();
    assert_int_equal(pthread_create(&sender, NULL, send_signals, NULL), 0);
#pragma omp parallel num_threads(THREADS) reduction(+ : sum, without_stack)
    {
        stack_t s;

        for (int i = 0; i < ROUNDS; i++) {
            float *c = malloc(M * N * sizeof *c);

            meg_cpu_gemm(&(struct gemm){ .ta = 'N',
                                         .tb = 'N',
                                         .m = M,
                                         .n = N,
                                         .k = K,
                                         .a = f32_operand(a, K),
                                         .b = f32_operand(b, N),
                                         .c = c,
                                         .ldc = N });
            sum += c[i % (M * N)];
            free(c);
        }
        sigaltstack(NULL, &s);
        without_stack += (s.ss_flags & SS_DISABLE) != 0;
    }
    is_over = true;
    pthread_join(sender, NULL);
    assert_int_equal(meg_stop_signal(), SIGHUP);
    assert_true(sum == (float)THREADS * ROUNDS * K);
    assert_int_equal(without_stack, 0);
    sigaction(SIGHUP, NULL, &action);
    assert_true(action.sa_flags & SA_ONSTACK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signals_during_matrix_multiplications_leave_the_heap_intact),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
