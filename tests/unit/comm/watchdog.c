/* Who is let in at the board of rank 0: what a rank of the run shows, and nobody else. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "comm/board_internal.h"

/* Rank 0's board of a run of three, on loopback. */
static int serve(void **state)
{
    (void)state;
    board.size = 3;
    board.world = &meg_comm_self;
    board.deadline_s = 60;
    board.beat_s = 0.1;
    board.has_come = meg_new(3 * sizeof *board.has_come);
    board.has_come[0] = true;
    board.ncome = 1;
    return board_serve(true, 0) ? 0 : -1;
}

static int leave(void **state)
{
    (void)state;
    meg_board_close();
    return 0;
}

static struct board_link call(void)
{
    struct board_link l = { .rank = -1 };

    l.fd = board_connect(&board.invite);
    assert_true(l.fd >= 0);
    return l;
}

static struct board_join join_of(int rank)
{
    struct board_join j = { .rank = rank, .size = 3, .host = "here" };

    memcpy(j.token, board.invite.token, sizeof j.token);
    return j;
}

/* The kind of what comes next but heartbeats, 0: the line is closed, -1: nothing within five seconds. */
static int heard(struct board_link *l)
{
    struct pollfd p = { .fd = l->fd, .events = POLLIN };
    enum board_kind kind;
    const void *payload;

    for (;;) {
        const int r = board_recv(l, &kind, &payload);

        if (r < 0)
            return 0;
        if (r == 1 && kind != BOARD_PLACE)
            return (int)kind;
        if (r == 0 && poll(&p, 1, 5000) <= 0)
            return -1;
    }
}

/* Join as a rank of the run; what the board answers is heard next. */
static struct board_link call_as(int rank)
{
    const struct board_join j = join_of(rank);
    struct board_link l = call();

    board_send(&l, BOARD_JOIN, &j, sizeof j);
    return l;
}

/* The board refuses whoever is at the other end, saying why, and closes the connection. */
static void assert_refused(struct board_link *l, const char *why)
{
    struct board_ends ends;

    assert_int_equal(heard(l), BOARD_END);
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

    pthread_mutex_lock(&board.lock);
    is_here = board.has_come[rank];
    pthread_mutex_unlock(&board.lock);
    return is_here;
}

static void refuses_who_has_a_wrong_token(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof board.invite.token; i++) {
        struct board_join j = join_of(1);
        struct board_link l = call();

        j.token[i] ^= 1;
        board_send(&l, BOARD_JOIN, &j, sizeof j);
        assert_refused(&l, "another run uses it");
    }
    assert_false(has_come(1));
}

static void shows_out_who_does_not_say_who_he_is(void **state)
{
    const struct board_ends ends = { .status = 1 };
    const unsigned char noise[64] = "GET / HTTP/1.1\r\n\r\n";
    struct board_link l = call();

    (void)state;
    board_send(&l, BOARD_ENDS, &ends, sizeof ends);
    assert_int_equal(heard(&l), 0);
    close(l.fd);
    l = call();
    assert_int_equal(write(l.fd, noise, sizeof noise), sizeof noise);
    assert_int_equal(heard(&l), 0);
    close(l.fd);
}

static void lets_in_a_rank_and_gives_it_notes(void **state)
{
    struct meg_board_note note = { .group = 7, .from = 1, .to = 2, .readers = 2, .bytes = "an id" };
    const struct meg_board_note name = { .group = 7, .from = 1, .to = 2 };
    struct board_link l = call_as(2);
    struct meg_board_note got;

    (void)state;
    assert_int_equal(heard(&l), BOARD_WELCOME);
    assert_true(has_come(2));
    board_send(&l, BOARD_WANT, &name, sizeof name);
    meg_board_put(&note);
    assert_int_equal(heard(&l), BOARD_NOTE);
    memcpy(&got, l.in + 8, sizeof got);              /* behind the two words of the head */
    assert_string_equal(got.bytes, "an id");
    memset(note.bytes, 0, sizeof note.bytes);
    assert_true(meg_board_get(&note));
    assert_string_equal(note.bytes, "an id");
    assert_false(meg_board_get(&note));              /* both readers have it */
    board_send(&l, BOARD_BYE, NULL, 0);
    close(l.fd);
}

/* More idle connections than there are links, and then noise: a rank still joins. */
static void strangers_keep_no_rank_out(void **state)
{
    enum { IDLE = 300 };
    const unsigned char noise[400] = { 1, 2, 3 };
    struct board_link idle[IDLE], l;

    (void)state;
    for (int i = 0; i < IDLE; i++)
        idle[i] = call();
    for (int i = 0; i < 5; i++) {
        l = call();
        assert_true(write(l.fd, noise, sizeof noise) > 0);
        close(l.fd);
    }
    l = call_as(1);
    assert_int_equal(heard(&l), BOARD_WELCOME);
    assert_true(has_come(1));
    for (int i = 0; i < IDLE; i++)
        close(idle[i].fd);
    board_send(&l, BOARD_BYE, NULL, 0);
    close(l.fd);
}

/* A process joins a complete run with a name that is no name. */
static void refused_as(int rank, int size)
{
    struct board_join j = join_of(rank);
    struct board_link l = call();

    j.size = size;
    memcpy(j.host, "x\033[2J\nmeg", 9);
    memset(j.host + 9, '\007', sizeof j.host - 9);
    board_send(&l, BOARD_JOIN, &j, sizeof j);
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
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);   /* one line */
}

static void a_name_has_an_end_and_no_control_characters(void **state)
{
    const char sent[8] = { 'a', '\033', '\n', '\t', 0x7f, (char)0xc3, (char)0xa4, 'z' };
    char name[8];

    (void)state;
    board_copy_name(name, sent, sizeof name);
    assert_string_equal(name, "a????\xc3\xa4");
    board_copy_name(name, "b\0c", sizeof name);
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
