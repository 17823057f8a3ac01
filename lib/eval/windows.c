#include "eval/windows.h"

int64_t meg_window_count(int64_t tokens, int64_t stride)
{
    int64_t targets = tokens - 1, rest = targets > stride ? targets - stride : 0;

    return (rest + stride - 1) / stride + 1;
}

struct meg_window meg_window_at(int64_t tokens, int64_t seq_length, int64_t stride, int64_t i)
{
    struct meg_window w = { i * stride, tokens - i * stride, 0, 0 };

    if (w.ntok > seq_length + 1)
        w.ntok = seq_length + 1;
    w.first = i == 0 ? 0 : seq_length - stride;
    w.scored = w.ntok - 1 > w.first ? w.ntok - 1 - w.first : 0;
    return w;
}
