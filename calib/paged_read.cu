// Every kernel of the calibration, in one source without a header: NVRTC needs no toolkit, and g++ builds the same text
// with tests/calib/host_shim.h in front (it defines the CUDA words this file uses; threads become fibres).
//
// R  read_pages       index-K pages through a block table, one warp a page, sixteen 16-byte loads a lane in two batches
//    read_pages_bulk  the same by bulk asynchronous copies into a ring in shared memory (what TMA traffic looks like)
// C  read_straight    the same pages without a table: the machine's own ceiling
// S  score_pages      R, and one fp32 a token written, as a scoring kernel does
// T  scan_rows        one CTA reads an fp32 row twice, as a one-CTA top-k does; scan_rows_cluster: eight CTAs a row
// G  gather_576, _656, _1152   records of the main KV at given positions, as sparse attention reads them
//
// Results make wrong addresses visible: each warp adds up the 32-bit words it read, modulo 2^64, in a slot of its own.
// All address arithmetic is 64 bits wide. Block sizes are fixed: WARPS * 32 threads, SCAN_WARPS * 32 for T.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define WARPS 8
#define SCAN_WARPS 32
#define PAGE_BYTES 8448ULL  // 64 keys of 128 bytes, then 64 fp32 scales
#define KEY_BYTES 8192ULL
#define STAGES 8
#define CLUSTER 8
#define RING_BYTES (STAGES * PAGE_BYTES + STAGES * 8)
#define SCAN_LOADS 4
#define GROUP 4             // records that a warp of G has in flight; 2,048 is a multiple

#ifdef __CUDACC__
// Volatile, so that a batch of loads is issued whole before its first use. Read once: no place in the first-level cache.
__device__ __forceinline__ uint4 load16(const void* from) {
    uint4 got;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(got.x), "=r"(got.y), "=r"(got.z), "=r"(got.w) : "l"(from));
    return got;
}
__device__ __forceinline__ uint4 load16_cached(const void* from) {
    uint4 got;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(got.x), "=r"(got.y), "=r"(got.z), "=r"(got.w) : "l"(from));
    return got;
}
__device__ __forceinline__ u32 shared_address(const void* of) { return (u32)__cvta_generic_to_shared(of); }
__device__ __forceinline__ void barrier_start(u64* barrier) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Announce one page on the barrier and start its copy; the barrier's phase ends when the bytes have arrived.
__device__ __forceinline__ void copy_page(void* to, const void* from, u64* barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"((u32)PAGE_BYTES)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)), "l"(from), "r"((u32)PAGE_BYTES), "r"(shared_address(barrier))
                 : "memory");
}
__device__ __forceinline__ bool arrived(u64* barrier, u32 phase) {
    u32 done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(shared_address(barrier)), "r"(phase) : "memory");
    return done != 0;
}
#endif

__device__ __forceinline__ u64 words(uint4 v) { return (u64)v.x + v.y + v.z + v.w; }

__device__ __forceinline__ u64 over_warp(u64 mine) {
    for (int apart = 16; apart; apart /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, apart);
    return mine;
}

__device__ __forceinline__ u32 mixed(u32 h) {  // the finaliser of MurmurHash3, a bijection
    h = (h ^ (h >> 16)) * 0x85ebca6bu;
    h = (h ^ (h >> 13)) * 0xc2b2ae35u;
    return h ^ (h >> 16);
}

// Where a row's pages or record groups lie among all: units [first_unit[r], first_unit[r + 1]) are row r's.
struct Rows {
    const i64* first_unit;
    const int* first_row;  // per CTA: the row its share starts in
    int rows;
};

// Walk this CTA's share of all units, a unit a warp, row by row. Each (CTA, row) pair met has slots of its own, at
// (CTA + row) * WARPS: the sum grows with every step from one pair to the next, so no two pairs share a slot.
template <class Sum>
__device__ __forceinline__ void walk(Rows of, u64* slots, Sum sum) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i64 all = of.first_unit[of.rows];
    const i64 begin = all * blockIdx.x / gridDim.x, end = all * (blockIdx.x + 1) / gridDim.x;
    int row = of.first_row[blockIdx.x];
    for (i64 start = begin; start < end; row++) {
        const i64 row_begin = of.first_unit[row], row_end = of.first_unit[row + 1];
        const i64 stop = end < row_end ? end : row_end;
        u64 got = 0;
        if (start < stop) got = sum(row, start - row_begin, stop - row_begin, warp, lane);
        got = over_warp(got);
        if (lane == 0) slots[(blockIdx.x + (u64)row) * WARPS + warp] = got;
        start = stop;
    }
}

// Sum one page: 528 vectors of 16 bytes. Two batches of eight loads, each whole in flight, then the scales.
__device__ __forceinline__ u64 page_sum(const char* page, int lane) {
    u64 sum = 0;
    const char* from = page + 16 * lane;
    uint4 tail = lane < 16 ? load16(from + KEY_BYTES) : uint4{0, 0, 0, 0};
#pragma unroll
    for (int batch = 0; batch < 2; batch++) {
        uint4 got[8];
#pragma unroll
        for (int i = 0; i < 8; i++) got[i] = load16(from + (batch * 8 + i) * 512);
#pragma unroll
        for (int i = 0; i < 8; i++) sum += words(got[i]);
    }
    return sum + words(tail);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 3)
    read_pages(const char* pool, const int* table, i64 table_stride, const i64* first_unit, const int* first_row,
               int rows, u64* slots) {
    walk({first_unit, first_row, rows}, slots, [=](int row, i64 begin, i64 end, int warp, int lane) {
        const int* pages = table + row * table_stride;
        u64 sum = 0;
        i64 at = begin + warp;
        int next = at < end ? pages[at] : 0;  // one page ahead, so that the entry's latency is hidden
        for (; at < end; at += WARPS) {
            const char* page = pool + (u64)next * PAGE_BYTES;
            if (at + WARPS < end) next = pages[at + WARPS];
            sum += page_sum(page, lane);
        }
        return sum;
    });
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 3)
    read_straight(const char* from, const i64* first_unit, const int* first_row, int rows, u64* slots) {
    walk({first_unit, first_row, rows}, slots, [=](int row, i64 begin, i64 end, int warp, int lane) {
        u64 sum = 0;
        const char* page = from + (u64)(first_unit[row] + begin + warp) * PAGE_BYTES;
        for (i64 at = begin + warp; at < end; at += WARPS, page += WARPS * PAGE_BYTES) sum += page_sum(page, lane);
        return sum;
    });
}

// One token's score-like value: exact in fp32 (below 2^24), so that a reference can be compared bit by bit.
__device__ __forceinline__ float score(u32 halves, u32 scale) { return (float)(halves * ((scale & 7u) + 1u)); }

// Sum over the eight lanes that hold one key, and over both halves of each word.
__device__ __forceinline__ u32 key_sum(uint4 v) {
    u32 sum = (v.x & 0xffffu) + (v.y & 0xffffu) + (v.z & 0xffffu) + (v.w & 0xffffu);
    for (int apart = 4; apart; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
    return sum;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 2)
    score_pages(const char* pool, const int* table, i64 table_stride, const i64* first_unit, const int* first_row,
                int rows, u64* slots, float* scores, i64 scores_stride) {
    walk({first_unit, first_row, rows}, slots, [=](int row, i64 begin, i64 end, int warp, int lane) {
        const int* pages = table + row * table_stride;
        u64 sum = 0;
        for (i64 at = begin + warp; at < end; at += WARPS) {
            const char* page = pool + (u64)pages[at] * PAGE_BYTES;
            float* out = scores + row * scores_stride + at * 64;
            const u32* scales = (const u32*)(page + KEY_BYTES);
#pragma unroll
            for (int batch = 0; batch < 2; batch++) {
                // Vector i * 32 + lane is a part of key i * 4 + lane / 8; each lane ends up with one key of the batch.
                const int key = batch * 32 + (lane % 8) * 4 + lane / 8;
                uint4 got[8];
#pragma unroll
                for (int i = 0; i < 8; i++) got[i] = load16(page + 16 * lane + (batch * 8 + i) * 512);
                const u32 scale = scales[key];
                u32 mine = 0;
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const u32 of_key = key_sum(got[i]);
                    if (lane % 8 == i) mine = of_key;
                    sum += words(got[i]);
                }
                sum += scale;
                out[key] = score(mine, scale);
            }
        }
        return sum;
    });
}

// The ring: page i of a walk uses stage i % STAGES, for the (i / STAGES)-th time, and that parity ends its wait.
// Shared memory: STAGES pages, then STAGES barriers (RING_BYTES, which a launch must ask for).
extern "C" __global__ void __launch_bounds__(WARPS * 32, 3)
    read_pages_bulk(const char* pool, const int* table, i64 table_stride, const i64* first_unit, const int* first_row,
                    int rows, u64* slots) {
    extern __shared__ __align__(128) char ring[];
    u64* full = (u64*)(ring + STAGES * PAGE_BYTES);
    const int thread = threadIdx.x;
    if (thread < STAGES) barrier_start(&full[thread]);
    __syncthreads();
    const i64 all = first_unit[rows];
    const i64 begin = all * blockIdx.x / gridDim.x, end = all * (blockIdx.x + 1) / gridDim.x;
    int row = first_row[blockIdx.x];
    int ahead_row = row;  // of the next page to copy; only thread 0 moves it
    auto copy = [&](i64 at) {
        while (at >= first_unit[ahead_row + 1]) ahead_row++;
        const int page = table[ahead_row * table_stride + (at - first_unit[ahead_row])];
        const int stage = (int)((at - begin) % STAGES);
        copy_page(ring + stage * PAGE_BYTES, pool + (u64)page * PAGE_BYTES, &full[stage]);
    };
    if (thread == 0)
        for (i64 at = begin; at < end && at < begin + STAGES; at++) copy(at);
    u64 sum = 0;
    for (i64 at = begin; at < end; at++) {
        while (at >= first_unit[row + 1]) row++;  // past rows without a page
        const int stage = (int)((at - begin) % STAGES);
        const u32 parity = (u32)((at - begin) / STAGES) & 1u;
        while (!arrived(&full[stage], parity)) {
        }
        const uint4* page = (const uint4*)(ring + stage * PAGE_BYTES);
        sum += words(page[thread]) + words(page[thread + WARPS * 32]);
        if (thread < 16) sum += words(page[thread + 2 * WARPS * 32]);
        __syncthreads();  // all have read the stage: it may be filled again
        if (thread == 0 && at + STAGES < end) copy(at + STAGES);
        if (at + 1 == end || at + 1 == first_unit[row + 1]) {
            const u64 whole = over_warp(sum);
            if (thread % 32 == 0) slots[(blockIdx.x + (u64)row) * WARPS + thread / 32] = whole;
            sum = 0;
        }
    }
}

// A top-k reads its row to find a threshold and again to pick what is above it. Here: the top byte of a thread's
// largest key, then how many of its keys have that byte. The second pass needs the first, so neither can be left out.
struct Scan {
    u32 top;
    u64 sum;
    __device__ __forceinline__ void take(uint4 v, int pass) {
        const u32 part[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (pass == 0) {
                top = part[k] > top ? part[k] : top;
                sum += part[k];
            } else {
                sum += part[k] >> 24 == top >> 24;
            }
        }
    }
};

template <int CTAS>
__device__ __forceinline__ void scan(const u32* logits, i64 stride, i64 tokens, u64* slots) {
    const i64 row = blockIdx.x / CTAS, threads = (i64)CTAS * SCAN_WARPS * 32;
    const i64 thread = (blockIdx.x % CTAS) * (i64)(SCAN_WARPS * 32) + threadIdx.x;
    const u32* keys = logits + row * stride;
    const i64 vectors = tokens / 4;
    Scan mine = {0, 0};
    for (int pass = 0; pass < 2; pass++) {
        i64 at = thread;
        for (; at + (SCAN_LOADS - 1) * threads < vectors; at += SCAN_LOADS * threads) {
            uint4 got[SCAN_LOADS];
#pragma unroll
            for (int i = 0; i < SCAN_LOADS; i++) got[i] = load16_cached(keys + 4 * (at + i * threads));
#pragma unroll
            for (int i = 0; i < SCAN_LOADS; i++) mine.take(got[i], pass);
        }
        for (; at < vectors; at += threads) mine.take(load16_cached(keys + 4 * at), pass);
    }
    const u64 sum = over_warp(mine.sum);
    if (threadIdx.x % 32 == 0) slots[(u64)blockIdx.x * SCAN_WARPS + threadIdx.x / 32] = sum;
}

// `tokens` is a multiple of 4: a row is as wide as its block table. Grid: rows, or rows * CLUSTER.
extern "C" __global__ void __launch_bounds__(SCAN_WARPS * 32, 1)
    scan_rows(const u32* logits, i64 stride, i64 tokens, u64* slots) {
    scan<1>(logits, stride, tokens, slots);
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(SCAN_WARPS * 32, 1)
    scan_rows_cluster(const u32* logits, i64 stride, i64 tokens, u64* slots) {
    scan<CLUSTER>(logits, stride, tokens, slots);
}

// A unit is GROUP records; `picks` holds record numbers, `picks_stride` a row. Records begin on 16 bytes.
template <int BYTES>
__device__ __forceinline__ void gather(const char* pool, const int* picks, i64 picks_stride, Rows of, u64* slots) {
    constexpr int VECTORS = BYTES / 16, LOADS = (VECTORS + 31) / 32;
    walk(of, slots, [=](int row, i64 begin, i64 end, int warp, int lane) {
        u64 sum = 0;
        for (i64 at = begin + warp; at < end; at += WARPS) {
            const int* pick = picks + row * picks_stride + at * GROUP;
            uint4 got[GROUP][LOADS];
#pragma unroll
            for (int record = 0; record < GROUP; record++) {
                const char* from = pool + (u64)pick[record] * BYTES;
#pragma unroll
                for (int i = 0; i < LOADS; i++) {
                    const bool inside = i * 32 + lane < VECTORS;
                    got[record][i] = inside ? load16(from + (i * 32 + lane) * 16) : uint4{0, 0, 0, 0};
                }
            }
#pragma unroll
            for (int record = 0; record < GROUP; record++)
#pragma unroll
                for (int i = 0; i < LOADS; i++) sum += words(got[record][i]);
        }
        return sum;
    });
}

#define GATHER(bytes)                                                                                              \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 3)                                                    \
        gather_##bytes(const char* pool, const int* picks, i64 picks_stride, const i64* first_unit,                \
                       const int* first_row, int rows, u64* slots) {                                               \
        gather<bytes>(pool, picks, picks_stride, {first_unit, first_row, rows}, slots);                            \
    }
GATHER(576)
GATHER(656)
GATHER(1152)

// Data that is never all zeros: word i of the pool is a hash of i, which a reference can compute on its own.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    fill(u32* pool, i64 words_in_pool, u32 seed) {
    const i64 threads = (i64)gridDim.x * (WARPS * 32);
    for (i64 i = (i64)blockIdx.x * (WARPS * 32) + threadIdx.x; i < words_in_pool; i += threads)
        pool[i] = mixed((u32)i ^ mixed((u32)(i >> 32) + seed));
}

// Each page's sum of words, one thread a page, by plain loads: what the other kernels' sums are compared with.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    sum_pages(const u32* pool, i64 pages, u64* sums) {
    const i64 threads = (i64)gridDim.x * (WARPS * 32);
    for (i64 page = (i64)blockIdx.x * (WARPS * 32) + threadIdx.x; page < pages; page += threads) {
        u64 sum = 0;
        for (i64 i = 0; i < (i64)PAGE_BYTES / 4; i++) sum += pool[page * (i64)(PAGE_BYTES / 4) + i];
        sums[page] = sum;
    }
}
