// Gathers from pinned host memory by a device-side list, in the forms that were measured.
#pragma once
#include "common.cuh"

namespace oasis {

constexpr int kPieceBytes = 8192;   // every unit of the captured step is a multiple
constexpr int kSmallPiece = 4096;   // of units that are not: 16 tokens of 64 dimensions
constexpr int kGatherThreads = 512;  // upper bound of a warp-gather CTA
constexpr int kMaxRing = 24;         // TMA gather: most pieces in flight per CTA

struct GatherArgs {
  const char* host;            // device alias of the pinned pool
  char* pool;                  // device pool, layer 0
  const long long* bounds;     // [steps * layers][2] begin, end in the lists
  const long long* source;     // host unit of each move
  const int* target;           // unit in the layer's pool of each move
  const int* phase;            // device: which step of the list is executed (null: 0)
  int* cursor;                 // [layers], zero at the start of a step
  const int* stop;             // leave when *stop >= stop_at (null: run to the end)
  const int* ready;            // wait for *ready > layer before a layer (null: all are ready)
  unsigned long long* moved;   // pieces moved, all steps
  long long layer_bytes;       // bytes between the pools of two layers
  int unit_bytes, layers, layer_begin, layer_end, stop_at;
};

__device__ __forceinline__ int load_flag(const int* p) {
  int v;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ bool stopped(const GatherArgs& a) {
  return a.stop && load_flag(a.stop) >= a.stop_at;
}

// Hold until the list of `layer` may be executed; one lane polls for its warp. A flag that never
// comes ends the kernel with an error instead of hanging.
__device__ __forceinline__ void wait_ready(const GatherArgs& a, int layer) {
  if (!a.ready) return;
  if ((threadIdx.x & 31) == 0) {
    long long start = now_ns();
    while (load_flag(a.ready) <= layer) {
      __nanosleep(400);
      if (now_ns() - start > 4000000000ll) __trap();
    }
  }
  __syncwarp();
}

__device__ __forceinline__ uint4 load_host(const uint4* p) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

struct Piece {
  const char* from;
  char* to;
};

// Lists may have been written since this kernel started: read them past the L1 cache.
template <int kBytes = kPieceBytes>
__device__ __forceinline__ Piece locate(const GatherArgs& a, int layer, long long begin,
                                        long long item) {
  int pieces = a.unit_bytes / kBytes;
  long long move = begin + item / pieces;
  long long inside = (item % pieces) * kBytes;
  return {a.host + __ldcg(a.source + move) * a.unit_bytes + inside,
          a.pool + layer * a.layer_bytes +
              static_cast<long long>(__ldcg(a.target + move)) * a.unit_bytes + inside};
}

template <int kBytes = kPieceBytes>
__device__ __forceinline__ void list_range(const GatherArgs& a, int layer, long long& begin,
                                           long long& items) {
  long long row = static_cast<long long>(a.phase ? *a.phase : 0) * a.layers + layer;
  begin = __ldcg(a.bounds + 2 * row);
  items = (__ldcg(a.bounds + 2 * row + 1) - begin) * (a.unit_bytes / kBytes);
}

constexpr int kNothing = 0x7fffffff;  // what a claim returns once the gather is stopped

// First layer from `layer` on with unclaimed pieces; the lanes look at 32 layers at once.
template <int kBytes = kPieceBytes>
__device__ __forceinline__ int open_layer(const GatherArgs& a, int layer) {
  if (a.ready) return layer;
  for (; layer < a.layer_end; layer += 32) {
    int mine = layer + (threadIdx.x & 31);
    long long begin, items = 0;
    if (mine < a.layer_end) list_range<kBytes>(a, mine, begin, items);
    bool open = mine < a.layer_end && load_flag(&a.cursor[mine]) < items;
    unsigned found = __ballot_sync(kFull, open);
    if (found) return layer + __ffs(found) - 1;
  }
  return a.layer_end;
}

// One warp per piece, pieces claimed from the layer's cursor. The next claim and its
// addresses are fetched while the current piece is on its way.
template <int kBytes>
__global__ void __launch_bounds__(kGatherThreads) gather_warps(const GatherArgs a) {
  const int lane = threadIdx.x & 31;
  unsigned long long moved = 0;
  bool halted = false;
  for (int layer = open_layer<kBytes>(a, a.layer_begin); layer < a.layer_end && !halted;
       layer = open_layer<kBytes>(a, layer + 1)) {
    wait_ready(a, layer);
    long long begin, items;
    list_range<kBytes>(a, layer, begin, items);
    auto claim = [&] {
      int item = kNothing;
      if (lane == 0 && !stopped(a)) item = atomicAdd(&a.cursor[layer], 1);
      return item;
    };
    int item = __shfl_sync(kFull, claim(), 0);
    halted = item == kNothing;
    if (item >= items) continue;
    Piece p = locate<kBytes>(a, layer, begin, item);
    while (true) {
      int next = claim();
      const uint4* from = reinterpret_cast<const uint4*>(p.from) + lane;
      uint4* to = reinterpret_cast<uint4*>(p.to) + lane;
      uint4 v[kBytes / 512];
#pragma unroll
      for (int i = 0; i < kBytes / 512; ++i) v[i] = load_host(from + i * 32);
      next = __shfl_sync(kFull, next, 0);
      if (next < items) p = locate<kBytes>(a, layer, begin, next);
#pragma unroll
      for (int i = 0; i < kBytes / 512; ++i) __stcs(to + i * 32, v[i]);
      ++moved;
      halted = next == kNothing;
      if (next >= items) break;
    }
  }
  if (lane == 0 && moved) atomicAdd(a.moved, moved);
}

// One warp per CTA keeps a ring of bulk copies going: host -> shared -> HBM. All lanes fetch the
// addresses of the claimed pieces at once; lane 0 issues the copies.
__global__ void __launch_bounds__(32) gather_bulk(const GatherArgs a, int stages) {
  extern __shared__ __align__(128) char smem[];
  __shared__ __align__(8) uint64_t bars[kMaxRing];
  __shared__ char* destination[kMaxRing];
  constexpr int kClaim = 8;
  const int lane = threadIdx.x;
  if (lane < stages) barrier_init(shared_address(&bars[lane]), 1);
  barrier_init_done();
  __syncwarp();
  const uint32_t ring = shared_address(smem);
  int loads = 0, stores = 0, load_stage = 0, store_stage = 0, store_parity = 0;
  auto store_oldest = [&] {
    barrier_wait(shared_address(&bars[store_stage]), store_parity);
    bulk_store(destination[store_stage], ring + store_stage * kPieceBytes, kPieceBytes);
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    ++stores;
    if (++store_stage == stages) store_stage = 0, store_parity ^= 1;
  };
  bool halted = false;
  for (int layer = open_layer(a, a.layer_begin); layer < a.layer_end && !halted;
       layer = open_layer(a, layer + 1)) {
    wait_ready(a, layer);
    long long begin, items;
    list_range(a, layer, begin, items);
    auto claim = [&] {
      int first = kNothing;
      if (lane == 0 && !stopped(a)) first = atomicAdd(&a.cursor[layer], kClaim);
      return first;
    };
    int first = __shfl_sync(kFull, claim(), 0);
    while (first < items) {
      int count = min(static_cast<long long>(kClaim), items - first);
      Piece p{};
      if (lane < count) p = locate(a, layer, begin, first + lane);
      int next = claim();
      for (int i = 0; i < count; ++i) {
        const char* from = reinterpret_cast<const char*>(
            __shfl_sync(kFull, reinterpret_cast<unsigned long long>(p.from), i));
        char* to = reinterpret_cast<char*>(
            __shfl_sync(kFull, reinterpret_cast<unsigned long long>(p.to), i));
        if (lane == 0) {
          if (loads - stores == stages - 1) store_oldest();
          // The stage to fill was stored at least two groups ago: its data has been read.
          asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
          uint32_t bar = shared_address(&bars[load_stage]);
          destination[load_stage] = to;
          barrier_expect(bar, kPieceBytes);
          bulk_load(ring + load_stage * kPieceBytes, from, kPieceBytes, bar);
          ++loads;
          if (++load_stage == stages) load_stage = 0;
        }
      }
      first = __shfl_sync(kFull, next, 0);
    }
    halted = first == kNothing;
  }
  if (lane != 0) return;
  while (stores < loads) store_oldest();
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  if (loads) atomicAdd(a.moved, static_cast<unsigned long long>(loads));
}

}  // namespace oasis
