/* Rank 0 accepts a connection only from a rank of its run; collectives of the store; names that peers send. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/clock.h"
#include "child.h"
#include "watchdog/internal.h"

static struct meg_watchdog *w;

static void no_barrier(void *ctx)
{
    (void)ctx;
}

/* Start the watchdog of rank 0 of three, on loopback. */
static int set_up(void **state)
{
    const struct meg_watchdog_bootstrap b = { .size = 3, .timeout_s = 60, .barrier = no_barrier };

    (void)state;
    w = watchdog_new(&b);
    return watchdog_serve(w, true, 0) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    meg_watchdog_close(w);
    return 0;
}

static struct watchdog_conn connect_new(void)
{
    struct watchdog_conn c = { .rank = -1 };

    c.fd = watchdog_connect(&w->endpoint);
    assert_true(c.fd >= 0);
    return c;
}

static struct watchdog_join_request join_of(int rank)
{
    struct watchdog_join_request j = { .rank = rank, .size = 3, .host = "here" };

    memcpy(j.token, w->endpoint.token, sizeof j.token);
    return j;
}

/*
 * Return the type of the next frame that is not a heartbeat; 0: the connection is closed; -1: no frame in five seconds.
 */
static int next_frame(struct watchdog_conn *c)
{
    struct pollfd p = { .fd = c->fd, .events = POLLIN };
    enum watchdog_frame_type type;
    const void *payload;
    size_t n;

    for (;;) {
        const int r = watchdog_recv(c, &type, &payload, &n);

        if (r < 0)
            return 0;
        if (r == 1 && type != WATCHDOG_HEARTBEAT)
            return (int)type;
        if (r == 0 && poll(&p, 1, 5000) <= 0)
            return -1;
    }
}

/* Connect and send the join request of a rank of the run. */
static struct watchdog_conn connect_as(int rank)
{
    const struct watchdog_join_request j = join_of(rank);
    struct watchdog_conn c = connect_new();

    watchdog_send(&c, WATCHDOG_JOIN, &j, sizeof j);
    return c;
}

/* Assert that the watchdog sends a refusal with this reason and closes the connection. */
static void assert_refused(struct watchdog_conn *c, const char *reason)
{
    struct watchdog_exit message;

    assert_int_equal(next_frame(c), WATCHDOG_EXIT_ALL);
    memcpy(&message, c->buf + 8, sizeof message);
    assert_int_equal(message.status, 2);
    if (!strstr(message.reason, reason))
        fail_msg("'%s' lacks '%s'", message.reason, reason);
    assert_int_equal(next_frame(c), 0);
    watchdog_close_conn(c);
}

static bool has_joined(int rank)
{
    bool is_joined;

    pthread_mutex_lock(&w->lock);
    is_joined = w->has_joined[rank];
    pthread_mutex_unlock(&w->lock);
    return is_joined;
}

static void refuses_a_connection_with_a_wrong_token(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof w->endpoint.token; i++) {
        struct watchdog_join_request j = join_of(1);
        struct watchdog_conn c = connect_new();

        j.token[i] ^= 1;
        watchdog_send(&c, WATCHDOG_JOIN, &j, sizeof j);
        assert_refused(&c, "another run uses this port");
    }
    assert_false(has_joined(1));
}

static void closes_a_connection_whose_first_frame_is_no_join_request(void **state)
{
    const struct watchdog_exit message = { .status = 1 };
    const unsigned char noise[64] = "GET / HTTP/1.1\r\n\r\n";
    struct watchdog_conn c = connect_new();

    (void)state;
    watchdog_send(&c, WATCHDOG_EXITING, &message, sizeof message);
    assert_int_equal(next_frame(&c), 0);
    watchdog_close_conn(&c);
    c = connect_new();
    assert_int_equal(write(c.fd, noise, sizeof noise), sizeof noise);
    assert_int_equal(next_frame(&c), 0);
    watchdog_close_conn(&c);
}

/* Let a rank start collectives with more bytes than the socket buffers hold before it reads the first result. */
static void read_results_late(struct watchdog_conn *c)
{
    enum { N = 400 };
    static char value[MEG_STORE_MAX_NBYTES], got[2 * MEG_STORE_MAX_NBYTES];
    struct meg_store_collective own = { .group = 8, .op = MEG_STORE_GATHER, .size = 2, .nbytes = sizeof value };
    struct meg_store_collective peer = own;

    peer.rank = 1;
    for (int i = 0; i < N; i++) {
        own.number = peer.number = i;
        memset(value, i % 100, sizeof value);
        meg_store_start(w, &own, value);
        watchdog_send_two(c, WATCHDOG_STORE_VALUE, &peer, sizeof peer, value, sizeof value);
    }
    for (int i = 0; i < N; i++) {
        own.number = i;
        memset(value, i % 100, sizeof value);
        watchdog_send_queued(c);
        assert_int_equal(next_frame(c), WATCHDOG_STORE_RESULT);
        assert_memory_equal(c->buf + 8 + sizeof peer, value, sizeof value);
        assert_true(meg_store_take(w, &own, got));
        assert_memory_equal(got + sizeof value, value, sizeof value);
    }
}

/* Ranks 0 and 2 are the ranks 0 and 1 of a group. */
static void collectives_of_the_store_return_the_values_of_all_ranks(void **state)
{
    struct meg_store_collective own = { .group = 7, .number = 1, .op = MEG_STORE_GATHER, .size = 2, .nbytes = 4 };
    struct meg_store_collective peer = own;
    struct watchdog_conn c = connect_as(2);
    char got[8];

    (void)state;
    peer.rank = 1;
    assert_int_equal(next_frame(&c), WATCHDOG_WELCOME);
    assert_true(has_joined(2));
    c.rank = 0;
    watchdog_send_two(&c, WATCHDOG_STORE_VALUE, &peer, sizeof peer, "wxyz", 4);
    assert_false(meg_store_take(w, &own, got));
    meg_store_start(w, &own, "abcd");
    assert_int_equal(next_frame(&c), WATCHDOG_STORE_RESULT);
    assert_memory_equal(c.buf + 8 + sizeof peer, "abcdwxyz", 8); /* after the two words of the header */
    assert_true(meg_store_take(w, &own, got));
    assert_memory_equal(got, "abcdwxyz", 8);
    assert_false(meg_store_take(w, &own, got));

    own.op = peer.op = MEG_STORE_BROADCAST;
    own.number = peer.number = 2;
    own.root = peer.root = 1;
    meg_store_start(w, &own, NULL);
    watchdog_send_two(&c, WATCHDOG_STORE_VALUE, &peer, sizeof peer, "root", 4);
    assert_int_equal(next_frame(&c), WATCHDOG_STORE_RESULT);
    assert_true(meg_store_take(w, &own, got));
    assert_memory_equal(got, "root", 4);
    read_results_late(&c);
    watchdog_send(&c, WATCHDOG_BYE, NULL, 0);
    watchdog_close_conn(&c);
}

/* Open more idle connections than the watchdog has entries, then some that send noise: a rank still joins. */
static void unauthenticated_connections_cannot_keep_a_rank_out(void **state)
{
    enum { IDLE = 300 };
    const unsigned char noise[400] = { 1, 2, 3 };
    struct watchdog_conn idle[IDLE], c;

    (void)state;
    for (int i = 0; i < IDLE; i++)
        idle[i] = connect_new();
    for (int i = 0; i < 5; i++) {
        c = connect_new();
        assert_true(write(c.fd, noise, sizeof noise) > 0);
        watchdog_close_conn(&c);
    }
    c = connect_as(1);
    assert_int_equal(next_frame(&c), WATCHDOG_WELCOME);
    assert_true(has_joined(1));
    for (int i = 0; i < IDLE; i++)
        close(idle[i].fd);
    watchdog_send(&c, WATCHDOG_BYE, NULL, 0);
    watchdog_close_conn(&c);
}

/* Try to join the complete run, with a host name of control characters that has no zero byte; expect a refusal. */
static void refused_as(int rank, int size)
{
    struct watchdog_join_request j = join_of(rank);
    struct watchdog_conn c = connect_new();

    j.size = size;
    memcpy(j.host, "x\033[2J\nmeg", 9);
    memset(j.host + 9, '\007', sizeof j.host - 9);
    watchdog_send(&c, WATCHDOG_JOIN, &j, sizeof j);
    assert_refused(&c, "all 3 ranks of another run have already joined at this address");
}

/* The watchdog refuses every further process and prints a message only for the first. */
static void a_complete_run_refuses_further_processes(void **state)
{
    const int before = dup(STDERR_FILENO);
    FILE *f = tmpfile();
    char text[4096];

    (void)state;
    assert_true(has_joined(1) && has_joined(2));
    dup2(fileno(f), STDERR_FILENO);
    for (int rank = -1; rank < 5; rank++)
        refused_as(rank, 3);
    refused_as(1, 2);
    refused_as(7, 64);
    dup2(before, STDERR_FILENO);
    close(before);
    rewind(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    assert_non_null(strstr(text, "refused a process on x?[2J?meg????????????"));
    assert_null(strpbrk(text, "\033\007"));
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1); /* the message is one line */
}

static void a_copied_name_is_terminated_and_has_no_control_characters(void **state)
{
    const char sent[8] = { 'a', '\033', '\n', '\t', 0x7f, (char)0xc3, (char)0xa4, 'z' };
    char name[8];

    (void)state;
    watchdog_copy_name(name, sent, sizeof name);
    assert_string_equal(name, "a????\xc3\xa4");
    watchdog_copy_name(name, "b\0c", sizeof name);
    assert_string_equal(name, "b");
}

static double heartbeat_of(int size, double timeout_s)
{
    const struct meg_watchdog_bootstrap b = { .size = size, .timeout_s = timeout_s };
    struct meg_watchdog *v = watchdog_new(&b);
    const double heartbeat_s = v->heartbeat_s;

    meg_watchdog_close(v);
    return heartbeat_s;
}

static void heartbeats_are_rare_with_many_ranks_and_frequent_with_a_short_timeout(void **state)
{
    (void)state;
    assert_true(heartbeat_of(3, 60) == 0.1);
    assert_true(heartbeat_of(999, 60) == 0.1);
    assert_true(heartbeat_of(1000, 60) == 0.2);
    assert_true(heartbeat_of(2999, 60) > 0.299 && heartbeat_of(2999, 60) < 0.301);
    assert_true(heartbeat_of(3, 0.4) == 0.05);
}

static void at_most_twenty_ranges_of_ranks_are_listed(void **state)
{
    enum { N = 50 };
    struct meg_str got = { 0 }, even = { 0 }, odd = { 0 }, want = { 0 };
    bool has_joined[N];

    (void)state;
    for (int i = 0; i < N; i++) {
        has_joined[i] = i % 2;
        if (i < 40)
            meg_str_printf(i % 2 ? &odd : &even, "%d, ", i);
    }
    meg_str_printf(&want, "ranks %s... of 50; ranks %s... joined", even.s, odd.s);
    watchdog_report_missing(&got, has_joined, N);
    assert_string_equal(got.s, want.s);
    got.n = 0;
    for (int i = 0; i < N; i++)
        has_joined[i] = i != 1 && (i < 3 || i > 4);
    watchdog_report_missing(&got, has_joined, N);
    assert_string_equal(got.s, "ranks 1, 3-4 of 50; ranks 0, 2, 5-49 joined");
    meg_str_free(&got);
    meg_str_free(&even);
    meg_str_free(&odd);
    meg_str_free(&want);
}

static void wait_for_two_others(void *unused)
{
    const struct meg_rendezvous r = { .is_local = true };
    const struct meg_watchdog_bootstrap b = { .size = 3, .timeout_s = 1, .rendezvous = &r, .barrier = no_barrier };
    struct meg_watchdog *alone;

    (void)unused;
    meg_watchdog_open(&alone, &b);
}

static void rank_0_waits_for_missing_ranks_until_the_timeout(void **state)
{
    const double start_s = meg_now_s();
    struct child c;
    double waited_s;

    (void)state;
    child_run(&c, wait_for_two_others, NULL);
    waited_s = meg_now_s() - start_s;
    assert_int_equal(c.status, meg_exit_status(MEG_EPEER));
    assert_non_null(
        strstr(c.err, " waited 1.0 s on port 0 for ranks 1-2 of 3; rank 0 joined; start the missing ranks"));
    assert_true(waited_s >= 1 && waited_s < 3.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_a_connection_with_a_wrong_token),
        cmocka_unit_test(closes_a_connection_whose_first_frame_is_no_join_request),
        cmocka_unit_test(collectives_of_the_store_return_the_values_of_all_ranks),
        cmocka_unit_test(unauthenticated_connections_cannot_keep_a_rank_out),
        cmocka_unit_test(a_complete_run_refuses_further_processes),
        cmocka_unit_test(a_copied_name_is_terminated_and_has_no_control_characters),
        cmocka_unit_test(heartbeats_are_rare_with_many_ranks_and_frequent_with_a_short_timeout),
        cmocka_unit_test(at_most_twenty_ranges_of_ranks_are_listed),
        cmocka_unit_test(rank_0_waits_for_missing_ranks_until_the_timeout),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
