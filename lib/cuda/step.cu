/* step.cu - compute the scalars at the end of a training step, such as the gradient norm (meg_step_finish). */
#include "cuda/kernel.h"

/* Call meg_step_finish for *record.  The grid is one warp, whose lanes read conf.grad_sum in parallel. */
static __global__ void step_finish(struct meg_step_record *record, struct meg_step_conf conf)
{
    SHARED(struct meg_step_conf, scalars); /* shared, because an indexed local array would not be in registers */
    int64_t last = 0;                      /* 1 + index of the last sum that is not finite; 0: none */

#pragma unroll 4
    for (int64_t i = threadIdx.x; i < conf.num_params; i += WARP)
        if (!isfinite(conf.grad_sum[i]))
            last = i + 1;
#pragma unroll
    for (int i = WARP / 2; i > 0; i /= 2) {
        const int64_t other = __shfl_xor_sync(ALL_LANES, last, i);

        last = other > last ? other : last;
    }
    if (threadIdx.x == 0) {
        *scalars = conf;
        scalars->num_params = 0;
        meg_step_finish(record, scalars);
        record->nonfinite_param = last;
    }
}

void meg_cuda_step_finish(struct meg_stream *st, const struct meg_step_finish_args *a)
{
    launch(st, step_finish, 1, WARP, sizeof *a->conf, a->record, *a->conf);
}
