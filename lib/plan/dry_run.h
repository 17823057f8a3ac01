/*
 * dry_run.h - the report of --dry-run: a run's model, layout, memory, communication, time, data and checkpoints.
 */
#pragma once
#include <stdio.h>
#include "data/gpt_data.h"
#include "run/run_spec.h"

/* Print the report of a complete specification.  `data` contains the samples planned for each data split. */
void meg_plan_print_dry_run(const struct meg_run_spec *s, const struct meg_data_splits *data, FILE *f);
