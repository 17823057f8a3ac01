/* start_log.c - what a run prints at its start: arguments, numbers of parameters, epochs of the datasets. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/log.h"
#include "base/mem.h"
#include "data/gpt_index.h"
#include "train/trainer.h"

/* Print a text on stdout and free it.  meg_close_stdout reports write errors. */
static void print(struct meg_str *s)
{
    fwrite(s->s, 1, s->n, stdout);
    fflush(stdout);
    meg_str_free(s);
}

void meg_train_print_arguments(const struct meg_trainer *t, const char *options)
{
    struct meg_str all = { 0 }, s = { 0 };

    if (!meg_log_is_on(MEG_LOG_INFO))
        return;
    meg_str_printf(&all, "%sworld-size = %d\ndata-parallel-size = %" PRId64 "\n", options, t->mesh.world->size,
                   t->spec.batch.dp_size);
    meg_training_log_arguments(&s, all.s);
    meg_str_free(&all);
    print(&s);
}

void meg_train_print_parameters(const struct meg_trainer *t)
{
    const struct meg_params *p = &t->model->params;
    const int64_t tp = t->mesh.layout.tp, pp = t->mesh.layout.pp;
    double *count = meg_new((size_t)(tp * pp) * sizeof *count); /* [pp][tp] elements, of this rank or 0 */
    struct meg_str s = { 0 };

    for (int i = 0; i < p->n; i++)
        count[t->mesh.coords.pp * tp + t->mesh.coords.tp] += (double)p->row[i].shard_numel;
    meg_host_all_reduce(t->mesh.world, count, (int)(tp * pp), MEG_DTYPE_F64, MEG_REDUCE_MAX);
    for (int64_t i = 0; i < tp * pp; i++)
        meg_str_printf(
            &s, " > number of parameters on (tensor, pipeline) model parallel rank (%" PRId64 ", %" PRId64 "): %.0f\n",
            i % tp, i / tp, count[i]);
    free(count);
    if (meg_train_is_rank0(t) && meg_log_is_on(MEG_LOG_INFO))
        print(&s);
    meg_str_free(&s);
}

/*
 * Print for how many epochs the run reads each dataset.  Warn on training data that are repeated more often than
 * MAX_EPOCHS: up to that number, repeated tokens are almost as good as new ones (Muennighoff et al. 2023).  BERT and T5
 * cut documents into samples when the index is built, so their epochs are not known here.
 */
void meg_train_report_epochs(const struct meg_trainer *t)
{
    enum { MAX_EPOCHS = 4 };
    const char *most = "";
    double max = 0;
    int n, above = 0;
    const struct meg_mid_dataset *p = meg_data_splits_mid_datasets(t->data, &n);

    for (int i = 0; i < n && p[i].epochs > 0 && !t->job->data.mock_data; i++) {
        const double tokens = (double)p[i].num_taken * (double)t->dataset_spec.seq_length;
        const double epochs = p[i].num_taken == MEG_ONE_EPOCH ? 1 : tokens / (double)p[i].tokens;

        meg_info("%s data: %.3g epochs of %s (%" PRId64 " tokens)", meg_split_names[p[i].split], epochs, p[i].name,
                 p[i].tokens);
        if (p[i].split != MEG_SPLIT_TRAIN)
            continue;
        above += epochs > MAX_EPOCHS;
        if (epochs > max) {
            max = epochs;
            most = p[i].name;
        }
    }
    if (above)
        meg_warn("the run reads %d of its training datasets for more than %d epochs, at most %.3g epochs of %s; use "
                 "more text, a smaller weight or fewer samples",
                 above, MAX_EPOCHS, max, most);
}
