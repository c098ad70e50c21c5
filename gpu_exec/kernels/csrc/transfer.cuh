// What belongs to the transfers of a step: mirror of new blocks, stamps, flags, clocks, opening kernel.
#pragma once
#include "gather.cuh"
#include "select_core.h"

namespace oasis {

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
__global__ void __launch_bounds__(256) mirror_blocks(const MirrorArgs a, long long* clock) {
  clock_in(clock);
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
  clock_out(clock);
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
  __threadfence_system();
  *reinterpret_cast<volatile int*>(flag) = value;
}

// Write the GPU's clock, in ns.
__global__ void write_clock(long long* times, long long place) { times[place] = now_ns(); }

// Hold a stream back for a while (fault injection in tests).
__global__ void delay(long long nanoseconds) {
  long long start = now_ns();
  while (now_ns() - start < nanoseconds) __nanosleep(200);
}

}  // namespace oasis
