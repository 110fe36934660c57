// The CUDA words of paged_read.cu on a CPU: every thread of a block is a fibre, so that barriers, shuffles and the copy
// ring really take turns. A header of its own: it is compiled once for all the kernels that are wrong on purpose.
#ifndef HOST_CUDA_H
#define HOST_CUDA_H
#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __cluster_dims__(...)

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct Index {
    unsigned x;
};
static Index threadIdx, blockIdx, gridDim;

namespace fibres {
struct Lanes {  // a warp, exchanging values: two buffers, because a lane may be one exchange ahead of another
    uint64_t values[2][32];
    unsigned waiting = 0, round = 0;
};
static std::vector<ucontext_t> contexts;
static std::vector<std::unique_ptr<char[]>> stacks;
static std::vector<char> finished;
static std::vector<Lanes> warps;
static ucontext_t scheduler;
static unsigned block_waiting, block_round;
static bool progress;
static int fault;
static std::function<void()> body;

static void give_way() { swapcontext(&contexts[threadIdx.x], &scheduler); }

static void start() {
    body();
    finished[threadIdx.x] = 1;
    progress = true;
    give_way();
}

static void meet(unsigned& waiting, unsigned& round, unsigned all) {
    const unsigned mine = round;
    progress = true;
    if (++waiting == all) {
        waiting = 0;
        round++;
    }
    while (round == mine) give_way();
}

static void run_block(unsigned threads, bool last_first) {
    const size_t stack_bytes = 64 << 10;
    contexts.resize(threads);
    while (stacks.size() < threads) stacks.emplace_back(new char[stack_bytes]);
    finished.assign(threads, 0);
    warps.assign(threads / 32, Lanes());
    block_waiting = block_round = 0;
    for (unsigned i = 0; i < threads; i++) {
        getcontext(&contexts[i]);
        contexts[i].uc_stack.ss_sp = stacks[i].get();
        contexts[i].uc_stack.ss_size = stack_bytes;
        contexts[i].uc_link = &scheduler;
        makecontext(&contexts[i], start, 0);
    }
    for (unsigned left = threads; left && !fault;) {
        progress = false;
        left = 0;
        for (unsigned turn = 0; turn < threads; turn++) {
            const unsigned i = last_first ? threads - 1 - turn : turn;
            if (finished[i]) continue;
            threadIdx.x = i;
            swapcontext(&scheduler, &contexts[i]);
            left += !finished[i];
        }
        if (left && !progress) fault = 1;
    }
}
}  // namespace fibres

template <class T>
static T __shfl_xor_sync(unsigned, T mine, int apart) {
    fibres::Lanes& warp = fibres::warps[threadIdx.x / 32];
    const unsigned lane = threadIdx.x % 32, buffer = warp.round & 1;
    warp.values[buffer][lane] = mine;
    fibres::meet(warp.waiting, warp.round, 32);
    return (T)warp.values[buffer][lane ^ apart];
}

static void __syncthreads() { fibres::meet(fibres::block_waiting, fibres::block_round, fibres::contexts.size()); }

static uint4 load16(const void* from) {
    uint4 got;
    if ((uintptr_t)from % 16) fibres::fault = 2;
    memcpy(&got, from, 16);
    return got;
}
static uint4 load16_cached(const void* from) { return load16(from); }

// A barrier's word counts the phases that ended. A copy lands as late as it can: when somebody waits for it.
struct Copy {
    char* to;
    const void* from;
    uint64_t* barrier;
};
static std::deque<Copy> copies;
static const uint64_t STARTED = 1ull << 63;

static void barrier_start(unsigned long long* barrier) { *barrier = STARTED; }

static void copy_page(char* to, const void* from, unsigned long long* barrier) {
    if (!(*barrier & STARTED)) fibres::fault = 4;
    for (const Copy& other : copies)
        if (other.to == to) fibres::fault = 3;
    memset(to, 0xee, 8448);  // whoever still reads the stage reads nonsense
    copies.push_back({to, from, (uint64_t*)barrier});
    fibres::progress = true;
}

static bool arrived(unsigned long long* barrier, unsigned parity) {
    if (!(*barrier & STARTED)) fibres::fault = 4;
    if ((*barrier & 1) != parity) return true;
    if (!copies.empty()) {
        memcpy(copies.front().to, copies.front().from, 8448);
        ++*copies.front().barrier;
        copies.pop_front();
        fibres::progress = true;
    }
    fibres::give_way();
    return false;
}

#endif
