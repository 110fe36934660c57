// Runs the calibration's kernels on a CPU, for tests: the CUDA words of paged_read.cu, with every thread of a block a
// fibre (so barriers, shuffles and the copy ring really take turns), one block after the other.
// A launch returns 0, or what went wrong: 1 threads wait for each other for ever, 2 a load off its alignment,
// 3 a copy into a stage that still waits for one, 4 a barrier used before it was started.
#include "host_cuda.h"

#include SOURCE

alignas(128) char ring[RING_BYTES];

template <class Kernel>
static int launch(unsigned grid, unsigned threads, Kernel kernel) {
    fibres::fault = 0;
    fibres::body = kernel;
    gridDim.x = grid;
    for (blockIdx.x = 0; blockIdx.x < grid && !fibres::fault; blockIdx.x++) {
        copies.clear();
        memset(ring, 0, sizeof ring);
        fibres::run_block(threads, blockIdx.x % 2);
    }
    return fibres::fault;
}

#define PAGED(name)                                                                                                  \
    extern "C" int run_##name(unsigned grid, const char* pool, const int* table, i64 stride, const i64* first_unit,  \
                              const int* first_row, int rows, u64* slots) {                                          \
        return launch(grid, WARPS * 32, [=] { name(pool, table, stride, first_unit, first_row, rows, slots); });     \
    }
PAGED(read_pages)
PAGED(read_pages_bulk)
extern "C" int run_score_pages(unsigned grid, const char* pool, const int* table, i64 stride, const i64* first_unit,
                               const int* first_row, int rows, u64* slots, float* scores, i64 scores_stride) {
    return launch(grid, WARPS * 32, [=] {
        score_pages(pool, table, stride, first_unit, first_row, rows, slots, scores, scores_stride);
    });
}

#ifndef ONLY_PAGED
PAGED(gather_576)
PAGED(gather_656)
PAGED(gather_1152)

extern "C" int run_read_straight(unsigned grid, const char* from, const i64* first_unit, const int* first_row, int rows,
                                 u64* slots) {
    return launch(grid, WARPS * 32, [=] { read_straight(from, first_unit, first_row, rows, slots); });
}
extern "C" int run_scan_rows(unsigned grid, const u32* logits, i64 stride, i64 tokens, u64* slots) {
    return launch(grid, SCAN_WARPS * 32, [=] { scan_rows(logits, stride, tokens, slots); });
}
extern "C" int run_scan_rows_cluster(unsigned grid, const u32* logits, i64 stride, i64 tokens, u64* slots) {
    return launch(grid, SCAN_WARPS * 32, [=] { scan_rows_cluster(logits, stride, tokens, slots); });
}
extern "C" int run_fill(unsigned grid, u32* pool, i64 words_in_pool, u32 seed) {
    return launch(grid, WARPS * 32, [=] { fill(pool, words_in_pool, seed); });
}
extern "C" int run_sum_pages(unsigned grid, const u32* pool, i64 pages, u64* sums) {
    return launch(grid, WARPS * 32, [=] { sum_pages(pool, pages, sums); });
}
#endif
