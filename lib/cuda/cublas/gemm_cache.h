/*
 * gemm_cache.h - a file that stores the fastest algorithm of cuBLASLt for each matrix product that was timed.
 *
 * Two algorithms may sum in a different order, and timings are noisy.  With the file, later runs compute with the same
 * algorithms, so that their results are equal.  The file is $MEG_CACHE_DIR/cublaslt-VERSION-GPU.txt; the directory is
 * $XDG_CACHE_HOME/meg or ~/.cache/meg if MEG_CACHE_DIR is not set.  A line consists of four fields, separated by tabs:
 *   key        the shape, types and epilogue of a product
 *   epilogue   the number of the epilogue that cuBLASLt computes (cublasLtEpilogue_t)
 *   algorithm  the eight 64-bit words of cublasLtMatmulAlgo_t in hexadecimal, 16 digits each
 *   checksum   XXH3-64 of the first three fields and the two tabs between them, in hexadecimal
 * Several processes may append lines at the same time (O_APPEND).  The first line with a key is used, and empty lines
 * are ignored.
 */
#pragma once
#include <cublasLt.h>
#include <stdbool.h>
#include "base/decls.h"

MEG_BEGIN_DECLS

struct meg_gemm_choice {
    cublasLtEpilogue_t epilogue;
    cublasLtMatmulAlgo_t algo;
};

/*
 * Return whether the file contains the choice for a key, which contains no tab or newline, and set *out to the choice.
 * Invalid lines are ignored; the first one that a process finds is reported by a warning.
 */
bool meg_gemm_cache_find(struct meg_gemm_choice *out, const char *key);
/*
 * Append a choice to the file; do nothing if the environment defines no directory.  The first failure of a process is
 * reported by an info message, and further ones are ignored.
 */
void meg_gemm_cache_add(const char *key, const struct meg_gemm_choice *choice);

MEG_END_DECLS
