/* Samplers (single and cyclic): the samples that each data-parallel rank reads. */
#include "data_util.h"

#include "data/sampler.h"

static void single_assigns_samples_to_ranks_in_order(void **state)
{
    const struct meg_data_sampler_conf c = { MEG_DATA_SAMPLER_SINGLE, 17, 4, 2, 1, 3 };
    struct meg_data_sampler *s;
    struct meg_err e;
    int64_t index[2], sample_id[2];

    (void)state;
    assert_int_equal(meg_data_sampler_open(&s, &c, &e), 0);
    for (int64_t step = 0; step < 2; step++) {
        assert_true(meg_data_sampler_next(s, index, sample_id));
        assert_true(index[0] == 4 + 6 * step + 2 && index[1] == index[0] + 1);
        assert_true(sample_id[0] == index[0] && sample_id[1] == index[1]);
    }
    assert_false(meg_data_sampler_next(s, index, sample_id)); /* 1 of 17 samples remains, a step needs 6 */
    assert_false(meg_data_sampler_next(s, index, sample_id));
    meg_data_sampler_close(s);
}

/* Ten steps of 16 samples: each step consumes the same 16 samples for any number of ranks and micro-batch size. */
static void every_layout_consumes_the_same_samples(void **state)
{
    enum { STEPS = 10, GLOBAL = 16 };

    (void)state;
    for (int64_t ranks = 1; ranks <= 8; ranks *= 2)
        for (int64_t b = 1; b * ranks <= GLOBAL; b *= 2) {
            int step_of[STEPS * GLOBAL];

            memset(step_of, -1, sizeof step_of);
            for (int64_t rank = 0; rank < ranks; rank++) {
                const struct meg_data_sampler_conf c = { MEG_DATA_SAMPLER_SINGLE, STEPS * GLOBAL, 0, b, rank, ranks };
                struct meg_data_sampler *s;
                struct meg_err e;
                int64_t index[GLOBAL], sample_id[GLOBAL];

                assert_int_equal(meg_data_sampler_open(&s, &c, &e), 0);
                for (int micro = 0; micro < STEPS * GLOBAL / (b * ranks); micro++) {
                    assert_true(meg_data_sampler_next(s, index, sample_id));
                    for (int64_t i = 0; i < b; i++) {
                        assert_int_equal(step_of[index[i]], -1);
                        assert_int_equal(sample_id[i], index[i]);
                        step_of[index[i]] = (int)(micro / (GLOBAL / (b * ranks)));
                    }
                }
                meg_data_sampler_close(s);
            }
            for (int i = 0; i < STEPS * GLOBAL; i++)
                assert_int_equal(step_of[i], i / GLOBAL);
        }
}

/* In two epochs, the ranks together read each sample twice, and the order in the second epoch differs. */
static void cyclic_covers_each_epoch(void **state)
{
    for (int type = MEG_DATA_SAMPLER_CYCLIC; type <= MEG_DATA_SAMPLER_CYCLIC_UNSHARDED; type++) {
        int times[24] = { 0 }, same = 0;
        for (int64_t rank = 0; rank < 3; rank++) {
            const struct meg_data_sampler_conf c = { type, 24, 0, 2, rank, 3 };
            struct meg_data_sampler *s;
            struct meg_err e;
            int64_t index[2], sample_id[2], first[8];
            assert_int_equal(meg_data_sampler_open(&s, &c, &e), 0);
            for (int step = 0; step < 8; step++) {
                assert_true(meg_data_sampler_next(s, index, sample_id));
                for (int i = 0; i < 2; i++) {
                    times[index[i]]++;
                    assert_int_equal(sample_id[i], 6 * step + 2 * rank + i);
                    if (step < 4)
                        first[2 * step + i] = index[i];
                    else
                        same += first[2 * (step - 4) + i] == index[i];
                }
            }
            meg_data_sampler_close(s);
        }
        for (int i = 0; i < 24; i++)
            assert_int_equal(times[i], 2);
        assert_true(same < 12);
    }
    (void)state;
}

static void too_few_samples_and_partial_steps_are_refused(void **state)
{
    struct meg_data_sampler_conf c = { MEG_DATA_SAMPLER_CYCLIC, 5, 0, 2, 0, 3 };
    struct meg_data_sampler *s;
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_data_sampler_open(&s, &c, &e), MEG_EUSAGE);
    assert_string_equal(e.msg, "--dataloader-type cyclic: the dataset has 5 samples, but one micro-batch of 2 "
                               "samples on each of 3 data-parallel ranks needs 6; use a larger dataset or a smaller "
                               "--micro-batch-size");
    c.total = 50;
    c.consumed = 9;
    assert_int_equal(meg_data_sampler_open(&s, &c, &e), MEG_EUSAGE);
    assert_string_equal(e.msg,
                        "--dataloader-type cyclic: the checkpoint has consumed 9 samples, which is not a multiple of "
                        "the 6 samples of one micro-batch on each data-parallel rank; use the micro-batch and "
                        "data-parallel sizes of the checkpoint");
}

static void check(struct meg_data_sampler *s, const json_t *batches, int64_t micro_batch)
{
    const json_t *want;
    size_t k;

    json_array_foreach(batches, k, want)
    {
        int64_t index[16], sample_id[16];
        assert_true(meg_data_sampler_next(s, index, sample_id));
        assert_int_equal(json_array_size(want), micro_batch);
        for (size_t i = 0; i < json_array_size(want); i++)
            assert_int_equal(index[i], int_at(want, i));
    }
}

static void golden_orders(void **state)
{
    json_t *all = golden_data("samplers/samplers.json"), *c;
    size_t i;

    (void)state;
    assert_true(json_array_size(all) > 12);
    json_array_foreach(all, i, c)
    {
        const char *type = get_str(c, "dataloader");
        json_t *ranks = json_object_get(c, "microbatches_per_rank"), *batches, *pass;
        const bool is_single = strcmp(type, "single") == 0;
        size_t rank, k;

        assert_int_equal(json_array_size(ranks), get_int(c, "data_parallel_size"));
        json_array_foreach(ranks, rank, batches)
        {
            const struct meg_data_sampler_conf conf = { is_single ? MEG_DATA_SAMPLER_SINGLE
                                                        : strcmp(type, "cyclic") == 0
                                                            ? MEG_DATA_SAMPLER_CYCLIC
                                                            : MEG_DATA_SAMPLER_CYCLIC_UNSHARDED,
                                                        get_int(c, "total_samples"),
                                                        get_int(c, "consumed_samples"),
                                                        get_int(c, "micro_batch_size"),
                                                        (int64_t)rank,
                                                        get_int(c, "data_parallel_size") };
            struct meg_data_sampler *s;
            struct meg_err e;
            int64_t index[16], sample_id[16];
            assert_int_equal(meg_data_sampler_open(&s, &conf, &e), 0);
            if (is_single) {
                check(s, batches, conf.micro_batch);
                assert_false(meg_data_sampler_next(s, index, sample_id));
            } else {
                assert_true(json_array_size(batches) > 0);
                json_array_foreach(batches, k, pass) check(s, pass, conf.micro_batch);
            }
            meg_data_sampler_close(s);
        }
    }
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_assigns_samples_to_ranks_in_order),
        cmocka_unit_test(every_layout_consumes_the_same_samples),
        cmocka_unit_test(cyclic_covers_each_epoch),
        cmocka_unit_test(too_few_samples_and_partial_steps_are_refused),
        cmocka_unit_test(golden_orders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
