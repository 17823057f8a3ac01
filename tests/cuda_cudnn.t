#!/bin/sh
# needs: cuda/cudnn_accept
# modules: cuda
# cuDNN accepts the graphs of lib/cuda for two models of GPU.  The library is the real one, and no GPU is needed.
. "${0%/*}/lib.sh"
accept=$B/tests/cuda/cudnn_accept
[ -x "$accept" ] || skip_all 'this build has no headers of cuDNN and NCCL'
[ -e "$B/tests/cuda/stub/libcuda.so.1" ] || skip_all 'the CUDA toolkit has no stub of libcuda.so.1'

# The program prints TAP, or the reason why it cannot use the library.  LeakSanitizer is off, because it would report
# thread data that the library does not free.
export LD_LIBRARY_PATH="$B/tests/cuda/stub:$LD_LIBRARY_PATH" ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0"
"$accept" 2>"$T/err"
status=$?
sed 's/^/# /' "$T/err"
exit "$status"
