/* The environment of torchrun: rank and rendezvous, the port of its agent, and a token that differs between runs. */
#include "comm/torchrun.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static int set_up(void **state)
{
    (void)state;
    setenv("WORLD_SIZE", "4", 1);
    setenv("RANK", "3", 1);
    setenv("MASTER_ADDR", "node7", 1);
    setenv("MASTER_PORT", "29500", 1);
    setenv("TORCHELASTIC_RUN_ID", "one", 1);
    setenv("TORCHELASTIC_RESTART_COUNT", "0", 1);
    unsetenv("LOCAL_WORLD_SIZE");
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    unsetenv("OMPI_MCA_orte_precondition_transports");
    return 0;
}

static struct meg_torchrun read_ok(void)
{
    struct meg_torchrun t;
    struct meg_err e;

    if (meg_torchrun_read(&t, &e) < 0)
        fail_msg("%s", e.msg);
    return t;
}

static void the_environment_sets_rank_and_rendezvous(void **state)
{
    struct meg_torchrun t = read_ok();

    (void)state;
    assert_int_equal(t.size, 4);
    assert_int_equal(t.rank, 3);
    assert_string_equal(t.rendezvous.host, "node7");
    assert_int_equal(t.rendezvous.port, 29500);
    assert_false(t.rendezvous.is_local);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    assert_false(read_ok().rendezvous.is_local);
    setenv("LOCAL_WORLD_SIZE", "4", 1);
    assert_true(read_ok().rendezvous.is_local);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    assert_int_equal(read_ok().rendezvous.port, 29501);
}

static void each_variable_of_the_run_changes_the_token(void **state)
{
    static const char *const name[] = { "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                                        "OMPI_MCA_orte_precondition_transports" };
    const struct meg_torchrun first = read_ok();

    (void)state;
    setenv("RANK", "0", 1);
    assert_memory_equal(read_ok().rendezvous.token, first.rendezvous.token, 16);
    for (int i = 0; i < 3; i++) {
        set_up(NULL);
        setenv(name[i], "other", 1);
        assert_memory_not_equal(read_ok().rendezvous.token, first.rendezvous.token, 16);
    }
    assert_memory_not_equal(first.rendezvous.token, first.rendezvous.token + 8, 8);
}

static void invalid_variables_are_refused(void **state)
{
    static const struct {
        const char *name, *value, *words;
    } bad[] = {
        { "RANK", "4", "RANK is '4'; it must be a number from 0 to 3" },
        { "MASTER_PORT", "65536", "MASTER_PORT is '65536'; it must be a number from 1 to 65535" },
        { "LOCAL_WORLD_SIZE", "5", "LOCAL_WORLD_SIZE is '5'; it must be a number from 1 to 4" },
        { "RANK", NULL, "but RANK is not set" },
        { "MASTER_ADDR", NULL, "but MASTER_ADDR is not set" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct meg_torchrun t;
        struct meg_err e;

        set_up(NULL);
        if (bad[i].value)
            setenv(bad[i].name, bad[i].value, 1);
        else
            unsetenv(bad[i].name);
        assert_int_equal(meg_torchrun_read(&t, &e), MEG_EUSAGE);
        if (!strstr(e.msg, bad[i].words))
            fail_msg("'%s' does not say '%s'", e.msg, bad[i].words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_environment_sets_rank_and_rendezvous, set_up),
        cmocka_unit_test_setup(each_variable_of_the_run_changes_the_token, set_up),
        cmocka_unit_test(invalid_variables_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
