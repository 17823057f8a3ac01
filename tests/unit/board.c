/* Who is let in at the board of rank 0: what a rank of the run shows, and nobody else. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
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

static bool has_come(int rank)
{
    bool is_here;

    pthread_mutex_lock(&board.lock);
    is_here = board.has_come[rank];
    pthread_mutex_unlock(&board.lock);
    return is_here;
}

static void shows_out_who_has_a_wrong_token(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof board.invite.token; i++) {
        struct board_join j = join_of(1);
        struct board_link l = call();

        j.token[i] ^= 1;
        board_send(&l, BOARD_JOIN, &j, sizeof j);
        assert_int_equal(heard(&l), 0);
        close(l.fd);
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
    const struct board_join j = join_of(2);
    struct meg_board_note note = { .group = 7, .from = 1, .to = 2, .readers = 2, .bytes = "an id" };
    const struct meg_board_note name = { .group = 7, .from = 1, .to = 2 };
    struct board_link l = call();
    struct meg_board_note got;

    (void)state;
    board_send(&l, BOARD_JOIN, &j, sizeof j);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shows_out_who_has_a_wrong_token),
        cmocka_unit_test(shows_out_who_does_not_say_who_he_is),
        cmocka_unit_test(lets_in_a_rank_and_gives_it_notes),
    };

    return cmocka_run_group_tests(tests, serve, leave);
}
