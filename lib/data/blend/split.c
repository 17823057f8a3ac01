/*
 * split.c - compute splits in double precision and in Megatron-LM's order of operations, so that the boundaries are
 * identical.
 */
#include "data/blend/split.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/num.h"

const char *const meg_split_names[MEG_NUM_SPLITS] = { "train", "valid", "test" };

/*
 * Parse n bytes as a plain decimal number, and reject other forms.  Megatron-LM reads every run of digits and dots in
 * --split, so any punctuation, also quotes, may separate the numbers.  Words that it reads as other numbers than those
 * that are written are rejected: 0x10, which it reads as 0 and 10, 1e2, and -1.
 */
static int parse_ratio(double *out, const char *word, size_t n, const char *text, struct meg_err *e)
{
    char *copy = meg_strndup(word, n);
    const bool is_number = strspn(copy, "0123456789.") == n && meg_parse_f64(copy, out);
    int r = 0;

    if (!is_number)
        r = meg_fail(
            e, MEG_EUSAGE,
            "--split: '%.40s' in '%s' is not a decimal number; specify up to three numbers, for example 949,50,1", copy,
            text);
    free(copy);
    return r;
}

int meg_split_parse(struct meg_split_matrix *s, const char *text, struct meg_err *e)
{
    static const char separators[] = " \t\r\n,/'\"()[]{}<>:;|_%&*=";
    double v[MEG_NUM_SPLITS] = { 0 }, sum = 0, at = 0;
    const char *p = text;
    int n = 0, r;

    if (strchr(text, '-'))
        return meg_fail(e, MEG_EUSAGE, "--split: '%s' has a minus sign; ratios must be 0 or more", text);
    while (*(p += strspn(p, separators))) {
        const size_t len = strcspn(p, separators);

        if (n == MEG_NUM_SPLITS)
            return meg_fail(
                e, MEG_EUSAGE,
                "--split: '%s' has more than three numbers; specify one for each of training, validation and test",
                text);
        if ((r = parse_ratio(&v[n++], p, len, text, e)) < 0)
            return r;
        p += len;
    }
    for (int i = 0; i < MEG_NUM_SPLITS; i++)
        sum += v[i];
    if (!isfinite(sum))
        return meg_fail(e, MEG_EUSAGE, "--split: the sum of the numbers in '%s' is too large", text);
    if (!(sum > 0))
        return meg_fail(e, MEG_EUSAGE, "--split: '%s' has no number above 0; specify, for example, 949,50,1", text);
    *s = (struct meg_split_matrix){ 0 };
    for (int i = 0; i < MEG_NUM_SPLITS; i++) {
        s->ratio[i] = v[i] / sum;
        s->begin[i] = at;
        s->end[i] = at += s->ratio[i];
        s->is_present[i] = s->end[i] > s->begin[i];
    }
    return 0;
}

void meg_fraction_range(const double fraction[2], int64_t n, int64_t *begin, int64_t *end)
{
    *begin = (int64_t)nearbyint(fraction[0] * (double)n);
    *end = (int64_t)nearbyint(fraction[1] * (double)n);
    if (*end > n) /* possible if the fraction exceeds 1 by an ulp and n exceeds 2^51 */
        *end = n;
}

static void deepspeed_range(const struct meg_split_matrix *s, int split, int64_t n, int64_t *begin, int64_t *end)
{
    int64_t at[MEG_NUM_SPLITS + 1] = { 0 }, over;

    for (int i = 0; i < MEG_NUM_SPLITS; i++)
        at[i + 1] = at[i] + (int64_t)nearbyint(s->ratio[i] * (double)n);
    over = at[MEG_NUM_SPLITS] - n;
    for (int i = 1; i <= MEG_NUM_SPLITS; i++)
        at[i] = at[i] > over ? at[i] - over : 0;
    *begin = at[split];
    *end = at[split + 1];
}

void meg_split_range(const struct meg_split_matrix *s, int split, int64_t n, int64_t *begin, int64_t *end)
{
    *begin = *end = 0;
    if (!s->is_present[split])
        return;
    if (s->is_deepspeed)
        deepspeed_range(s, split, n, begin, end);
    else
        meg_fraction_range((const double[]){ s->begin[split], s->end[split] }, n, begin, end);
}

void meg_sample_counts(int64_t num_samples[MEG_NUM_SPLITS], int64_t train_samples, int64_t train_iters,
                       int64_t eval_interval, int64_t eval_iters, int64_t global_batch)
{
    num_samples[MEG_SPLIT_TRAIN] = train_samples >= 0 ? train_samples : train_iters * global_batch;
    num_samples[MEG_SPLIT_VALID] = (train_iters / eval_interval + 1) * eval_iters * global_batch;
    num_samples[MEG_SPLIT_TEST] = eval_iters * global_batch;
}
