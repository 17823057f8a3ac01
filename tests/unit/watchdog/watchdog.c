/* Who is let in at the board of rank 0: what a rank of the run shows, and nobody else. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "watchdog/internal.h"

/* Rank 0's board of a run of three, on loopback. */
static int serve(void **state)
{
    (void)state;
    watchdog.size = 3;
    watchdog.world = &meg_comm_self;
    watchdog.deadline_s = 60;
    watchdog.beat_s = 0.1;
    watchdog.has_come = meg_new(3 * sizeof *watchdog.has_come);
    watchdog.has_come[0] = true;
    watchdog.ncome = 1;
    return watchdog_serve(true, 0) ? 0 : -1;
}

static int leave(void **state)
{
    (void)state;
    meg_watchdog_close();
    return 0;
}

static struct watchdog_conn call(void)
{
    struct watchdog_conn l = { .rank = -1 };

    l.fd = watchdog_connect(&watchdog.invite);
    assert_true(l.fd >= 0);
    return l;
}

static struct watchdog_join_request join_of(int rank)
{
    struct watchdog_join_request j = { .rank = rank, .size = 3, .host = "here" };

    memcpy(j.token, watchdog.invite.token, sizeof j.token);
    return j;
}

/* The kind of what comes next but heartbeats, 0: the line is closed, -1: nothing within five seconds. */
static int heard(struct watchdog_conn *l)
{
    struct pollfd p = { .fd = l->fd, .events = POLLIN };
    enum watchdog_frame_type kind;
    const void *payload;

    for (;;) {
        const int r = watchdog_recv(l, &kind, &payload);

        if (r < 0)
            return 0;
        if (r == 1 && kind != WATCHDOG_HEARTBEAT)
            return (int)kind;
        if (r == 0 && poll(&p, 1, 5000) <= 0)
            return -1;
    }
}

/* Join as a rank of the run; what the board answers is heard next. */
static struct watchdog_conn call_as(int rank)
{
    const struct watchdog_join_request j = join_of(rank);
    struct watchdog_conn l = call();

    watchdog_send(&l, WATCHDOG_JOIN, &j, sizeof j);
    return l;
}

/* The board refuses whoever is at the other end, saying why, and closes the connection. */
static void assert_refused(struct watchdog_conn *l, const char *why)
{
    struct watchdog_exit ends;

    assert_int_equal(heard(l), WATCHDOG_EXIT_ALL);
    memcpy(&ends, l->in + 8, sizeof ends);
    assert_int_equal(ends.status, 2);
    if (!strstr(ends.why, why))
        fail_msg("'%s' lacks '%s'", ends.why, why);
    assert_int_equal(heard(l), 0);
    close(l->fd);
}

static bool has_come(int rank)
{
    bool is_here;

    pthread_mutex_lock(&watchdog.lock);
    is_here = watchdog.has_come[rank];
    pthread_mutex_unlock(&watchdog.lock);
    return is_here;
}

static void refuses_who_has_a_wrong_token(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof watchdog.invite.token; i++) {
        struct watchdog_join_request j = join_of(1);
        struct watchdog_conn l = call();

        j.token[i] ^= 1;
        watchdog_send(&l, WATCHDOG_JOIN, &j, sizeof j);
        assert_refused(&l, "another run uses it");
    }
    assert_false(has_come(1));
}

static void shows_out_who_does_not_say_who_he_is(void **state)
{
    const struct watchdog_exit ends = { .status = 1 };
    const unsigned char noise[64] = "GET / HTTP/1.1\r\n\r\n";
    struct watchdog_conn l = call();

    (void)state;
    watchdog_send(&l, WATCHDOG_EXITING, &ends, sizeof ends);
    assert_int_equal(heard(&l), 0);
    close(l.fd);
    l = call();
    assert_int_equal(write(l.fd, noise, sizeof noise), sizeof noise);
    assert_int_equal(heard(&l), 0);
    close(l.fd);
}

static void lets_in_a_rank_and_gives_it_notes(void **state)
{
    struct meg_kv_store_entry note = { .group = 7, .from = 1, .to = 2, .readers = 2, .bytes = "an id" };
    const struct meg_kv_store_entry name = { .group = 7, .from = 1, .to = 2 };
    struct watchdog_conn l = call_as(2);
    struct meg_kv_store_entry got;

    (void)state;
    assert_int_equal(heard(&l), WATCHDOG_WELCOME);
    assert_true(has_come(2));
    watchdog_send(&l, WATCHDOG_KV_GET, &name, sizeof name);
    meg_kv_store_put(&note);
    assert_int_equal(heard(&l), WATCHDOG_KV_ENTRY);
    memcpy(&got, l.in + 8, sizeof got); /* behind the two words of the head */
    assert_string_equal(got.bytes, "an id");
    memset(note.bytes, 0, sizeof note.bytes);
    assert_true(meg_kv_store_get(&note));
    assert_string_equal(note.bytes, "an id");
    assert_false(meg_kv_store_get(&note)); /* both readers have it */
    watchdog_send(&l, WATCHDOG_BYE, NULL, 0);
    close(l.fd);
}

/* More idle connections than there are links, and then noise: a rank still joins. */
static void strangers_keep_no_rank_out(void **state)
{
    enum { IDLE = 300 };
    const unsigned char noise[400] = { 1, 2, 3 };
    struct watchdog_conn idle[IDLE], l;

    (void)state;
    for (int i = 0; i < IDLE; i++)
        idle[i] = call();
    for (int i = 0; i < 5; i++) {
        l = call();
        assert_true(write(l.fd, noise, sizeof noise) > 0);
        close(l.fd);
    }
    l = call_as(1);
    assert_int_equal(heard(&l), WATCHDOG_WELCOME);
    assert_true(has_come(1));
    for (int i = 0; i < IDLE; i++)
        close(idle[i].fd);
    watchdog_send(&l, WATCHDOG_BYE, NULL, 0);
    close(l.fd);
}

/* A process joins a complete run with a name that is no name. */
static void refused_as(int rank, int size)
{
    struct watchdog_join_request j = join_of(rank);
    struct watchdog_conn l = call();

    j.size = size;
    memcpy(j.host, "x\033[2J\nmeg", 9);
    memset(j.host + 9, '\007', sizeof j.host - 9);
    watchdog_send(&l, WATCHDOG_JOIN, &j, sizeof j);
    assert_refused(&l, "has all of its 3 ranks");
}

/* All three have joined: the board outlives every newcomer, and prints the name of the first alone. */
static void a_complete_run_refuses_newcomers(void **state)
{
    const int before = dup(STDERR_FILENO);
    FILE *f = tmpfile();
    char text[4096];

    (void)state;
    assert_true(has_come(1) && has_come(2));
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
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1); /* one line */
}

static void a_name_has_an_end_and_no_control_characters(void **state)
{
    const char sent[8] = { 'a', '\033', '\n', '\t', 0x7f, (char)0xc3, (char)0xa4, 'z' };
    char name[8];

    (void)state;
    watchdog_copy_name(name, sent, sizeof name);
    assert_string_equal(name, "a????\xc3\xa4");
    watchdog_copy_name(name, "b\0c", sizeof name);
    assert_string_equal(name, "b");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_who_has_a_wrong_token),
        cmocka_unit_test(shows_out_who_does_not_say_who_he_is),
        cmocka_unit_test(lets_in_a_rank_and_gives_it_notes),
        cmocka_unit_test(strangers_keep_no_rank_out),
        cmocka_unit_test(a_complete_run_refuses_newcomers),
        cmocka_unit_test(a_name_has_an_end_and_no_control_characters),
    };

    return cmocka_run_group_tests(tests, serve, leave);
}
