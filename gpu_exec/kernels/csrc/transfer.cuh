// Moves over the host link: gathers by a device-side list, mirror of new blocks, stamps.
#pragma once
#include "common.cuh"
#include "select_core.h"

namespace oasis {

constexpr int kPieceBytes = 8192;
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

__device__ __forceinline__ long long now_ns() {
  long long t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
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
__device__ __forceinline__ Piece locate(const GatherArgs& a, int layer, long long begin,
                                        long long item) {
  int pieces = a.unit_bytes / kPieceBytes;
  long long move = begin + item / pieces;
  long long inside = (item % pieces) * kPieceBytes;
  return {a.host + __ldcg(a.source + move) * a.unit_bytes + inside,
          a.pool + layer * a.layer_bytes +
              static_cast<long long>(__ldcg(a.target + move)) * a.unit_bytes + inside};
}

__device__ __forceinline__ void list_range(const GatherArgs& a, int layer, long long& begin,
                                           long long& items) {
  long long row = static_cast<long long>(a.phase ? *a.phase : 0) * a.layers + layer;
  begin = __ldcg(a.bounds + 2 * row);
  items = (__ldcg(a.bounds + 2 * row + 1) - begin) * (a.unit_bytes / kPieceBytes);
}

constexpr int kNothing = 0x7fffffff;  // what a claim returns once the gather is stopped

// First layer from `layer` on with unclaimed pieces; the lanes look at 32 layers at once.
__device__ __forceinline__ int open_layer(const GatherArgs& a, int layer) {
  if (a.ready) return layer;
  for (; layer < a.layer_end; layer += 32) {
    int mine = layer + (threadIdx.x & 31);
    long long begin, items = 0;
    if (mine < a.layer_end) list_range(a, mine, begin, items);
    bool open = mine < a.layer_end && load_flag(&a.cursor[mine]) < items;
    unsigned found = __ballot_sync(kFull, open);
    if (found) return layer + __ffs(found) - 1;
  }
  return a.layer_end;
}

// One warp per 8 KB piece, pieces claimed from the layer's cursor. The next claim and its
// addresses are fetched while the current piece is on its way.
__global__ void __launch_bounds__(kGatherThreads) gather_warps(const GatherArgs a) {
  const int lane = threadIdx.x & 31;
  unsigned long long moved = 0;
  bool halted = false;
  for (int layer = open_layer(a, a.layer_begin); layer < a.layer_end && !halted;
       layer = open_layer(a, layer + 1)) {
    wait_ready(a, layer);
    long long begin, items;
    list_range(a, layer, begin, items);
    auto claim = [&] {
      int item = kNothing;
      if (lane == 0 && !stopped(a)) item = atomicAdd(&a.cursor[layer], 1);
      return item;
    };
    int item = __shfl_sync(kFull, claim(), 0);
    halted = item == kNothing;
    if (item >= items) continue;
    Piece p = locate(a, layer, begin, item);
    while (true) {
      int next = claim();
      const uint4* from = reinterpret_cast<const uint4*>(p.from) + lane;
      uint4* to = reinterpret_cast<uint4*>(p.to) + lane;
      uint4 v[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) v[i] = load_host(from + i * 32);
      next = __shfl_sync(kFull, next, 0);
      if (next < items) p = locate(a, layer, begin, next);
#pragma unroll
      for (int i = 0; i < 16; ++i) __stcs(to + i * 32, v[i]);
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

// Staged transport: units that the host packed in list order, now in a device buffer.
__global__ void __launch_bounds__(256) scatter_units(const GatherArgs a, const char* staged) {
  const int lane = threadIdx.x & 31;
  const int warps = gridDim.x * (blockDim.x >> 5);
  long long begin, items;
  list_range(a, a.layer_begin, begin, items);
  unsigned long long moved = 0;
  for (long long item = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5); item < items;
       item += warps) {
    Piece p = locate(a, a.layer_begin, begin, item);
    const uint4* from = reinterpret_cast<const uint4*>(staged + item * kPieceBytes) + lane;
    uint4* to = reinterpret_cast<uint4*>(p.to) + lane;
#pragma unroll
    for (int i = 0; i < 16; ++i) to[i * 32] = from[i * 32];
    ++moved;
  }
  if (lane == 0 && moved) atomicAdd(a.moved, moved);
}

struct MirrorArgs {
  const char* pool;           // this layer's units
  char* host;                 // device alias of the pinned pool or of the mirror ring
  const int* position;        // [batch]
  unsigned long long* mirrored;
  long long logical_base, request_stride, pair_stride, host_units;
  int ring_units;             // > 0: write to a ring (shared host units must keep their stamps)
  int pairs, heads, unit_bytes, block_tokens, slots_per_pair, local_slot, aliased;
};

__device__ __forceinline__ void mirror_unit(const MirrorArgs& a, int pair, int position, int lane) {
  int request = pair / a.heads, head = pair % a.heads, block = position / a.block_tokens;
  long long unit = static_cast<long long>(pair) * a.slots_per_pair + a.local_slot + (block & 1);
  long long home = a.logical_base + request * a.request_stride + head * a.pair_stride + block;
  long long at = a.ring_units ? home % a.ring_units : place_unit(home, a.host_units, a.aliased);
  const uint4* from = reinterpret_cast<const uint4*>(a.pool + unit * a.unit_bytes) + lane;
  uint4* to = reinterpret_cast<uint4*>(a.host + at * a.unit_bytes) + lane;
  for (int piece = 0; piece < a.unit_bytes / kPieceBytes; ++piece, from += 512, to += 512) {
    uint4 v[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = from[i * 32];
#pragma unroll
    for (int i = 0; i < 16; ++i) to[i * 32] = v[i];
  }
}

// Copy blocks that this step completed to the host: every warp looks at 32 pairs at a time and
// copies one unit after another; neighbouring pairs go to different warps.
__global__ void __launch_bounds__(256) mirror_blocks(const MirrorArgs a) {
  const int lane = threadIdx.x & 31;
  const int warps = gridDim.x * (blockDim.x >> 5);
  const int warp = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
  unsigned long long count = 0;
  for (int base = 0; base < a.pairs; base += 32 * warps) {
    int pair = base + lane * warps + warp;
    int position = pair < a.pairs ? a.position[pair / a.heads] : 0;
    bool complete = pair < a.pairs && position % a.block_tokens == a.block_tokens - 1;
    unsigned todo = __ballot_sync(kFull, complete);
    count += __popc(todo);
    for (; todo; todo &= todo - 1) {
      int owner = __ffs(todo) - 1;
      mirror_unit(a, __shfl_sync(kFull, pair, owner), __shfl_sync(kFull, position, owner), lane);
    }
  }
  if (lane == 0 && count) atomicAdd(a.mirrored, count);
}

// Read a buffer once and keep nothing: the yardstick of every bandwidth.
__global__ void __launch_bounds__(512) read_only(const uint4* data, long long count, int* sink) {
  uint32_t x = 0;
  long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  for (; i + 7 * stride < count; i += 8 * stride) {
    uint4 v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = __ldcs(data + i + j * stride);
#pragma unroll
    for (int j = 0; j < 8; ++j) x ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  for (; i < count; i += stride) x ^= data[i].x;
  if (x == 0x9E3779B9u) *sink = 1;
}

__device__ __forceinline__ uint32_t mix32(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

// Content of element e of unit u (twin: gpu_exec/stamps.py).
__device__ __forceinline__ uint16_t stamp_element(unsigned long long unit, int e) {
  uint32_t seed = mix32(static_cast<uint32_t>(unit) ^ static_cast<uint32_t>(unit >> 32));
  uint32_t bits = e < 8 ? static_cast<uint32_t>(unit >> (8 * e)) & 255u
                        : mix32(seed + static_cast<uint32_t>(e) * 0x9E3779B9u) & 255u;
  return static_cast<uint16_t>(((bits >> 7) << 15) | 0x3F00u | (bits & 0x7Fu));
}

__global__ void fill_stamps(uint16_t* out, long long first_unit, long long units, int elements) {
  long long n = units * elements;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<long long>(gridDim.x) * blockDim.x)
    out[i] = stamp_element(first_unit + i / elements, static_cast<int>(i % elements));
}

// Check every byte of the units that the list put into the pool; one warp per move.
__global__ void check_stamps(const GatherArgs a, unsigned long long* checked,
                             unsigned long long* wrong) {
  const int lane = threadIdx.x & 31;
  const int warps = gridDim.x * (blockDim.x >> 5);
  long long begin, items;
  list_range(a, a.layer_begin, begin, items);
  long long count = items / (a.unit_bytes / kPieceBytes);
  for (long long i = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5); i < count; i += warps) {
    long long unit = a.source[begin + i];
    const uint16_t* data = reinterpret_cast<const uint16_t*>(
        a.pool + a.layer_begin * a.layer_bytes +
        static_cast<long long>(a.target[begin + i]) * a.unit_bytes);
    bool bad = false;
    for (int e = lane; e < a.unit_bytes / 2; e += 32) bad |= data[e] != stamp_element(unit, e);
    bad = __any_sync(kFull, bad);
    if (lane == 0) {
      atomicAdd(checked, 1ull);
      if (bad) atomicAdd(wrong, 1ull);
    }
  }
}

struct BeginArgs {
  int* step;                 // counts executed steps
  int* phase;                // step modulo the length of the list
  int* position;             // [batch] of this step
  const int* positions;      // [steps][batch]
  int* cursor;               // [layers]
  int* stop;
  int* ready;
  long long* select_bounds;  // [layers][2], ends reset to the begins
  int steps, batch, layers;
};

// Open a step: choose positions, reset cursors and published lists.
__global__ void begin_step(const BeginArgs a) {
  __shared__ int phase;
  if (threadIdx.x == 0) {
    int step = *a.step + 1;
    *a.step = step;
    phase = step % a.steps;
    *a.phase = phase;
    *a.stop = -1;
    *a.ready = 0;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < a.batch; i += blockDim.x)
    a.position[i] = a.positions[static_cast<long long>(phase) * a.batch + i];
  for (int i = threadIdx.x; i < a.layers; i += blockDim.x) {
    a.cursor[i] = 0;
    if (a.select_bounds) a.select_bounds[2 * i + 1] = a.select_bounds[2 * i];
  }
}

__global__ void set_flag(int* flag, int value) {
  __threadfence();
  *reinterpret_cast<volatile int*>(flag) = value;
}

// Hold a stream back for a while (fault injection in tests).
__global__ void delay(long long nanoseconds) {
  long long start = now_ns();
  while (now_ns() - start < nanoseconds) __nanosleep(200);
}

}  // namespace oasis
