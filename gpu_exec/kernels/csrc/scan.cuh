// Scan of min/max keys by the draft query, optionally followed by selection in the same launch.
#pragma once
#include "common.cuh"
#include "select_core.h"

namespace oasis {

constexpr int kScanWarps = 4;
constexpr int kScanThreads = 32 * kScanWarps;
constexpr int kKeyTile = 16;  // blocks per tile

struct ScanArgs {
  const __nv_bfloat16* q;  // draft row of request 0
  const char* keys;        // [pairs][tiles_per_pair] tiles of this layer
  float* scores;           // [pairs][score_stride]
  const int* position;     // [batch]
  const int* step;         // device step counter
  int* tickets;            // [pairs], zero before and after (splits > 1)
  long long score_stride;
  int q_stride, heads, group, tiles_per_pair;
  int block_tokens, recent_blocks;
  int splits, stages;
  int select;              // run selection on the pair's scores
  int max_blocks;
  int head_dim;            // 64, 128 or 256
};

// q+ against max (k < D), q- against min; column n of the tile is query head n % group.
template <int D, int NT, bool FP8>
__device__ __forceinline__ void load_scan_query(const __nv_bfloat16* q, int group, int lane,
                                                uint32_t (&b)[NT][D / 4]) {
#pragma unroll
  for (int nt = 0; nt < NT; ++nt) {
    const __nv_bfloat16* row = q + ((nt * 8 + lane / 4) % group) * D;
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int k = (j * 16 + 2 * (lane & 3) + 8 * half) & (D - 1);
        float x = __bfloat162float(row[k]), y = __bfloat162float(row[k + 1]);
        x = j < D / 16 ? fmaxf(x, 0.f) : fminf(x, 0.f);
        y = j < D / 16 ? fmaxf(y, 0.f) : fminf(y, 0.f);
        if (FP8) {
          b[nt][2 * j + half] = pack_f16(x, y);
        } else {
          b[nt][2 * j + half] = pack_bf16(x, y);
        }
      }
  }
}

template <int D, int NT, bool FP8>
__device__ __forceinline__ void score_tile(const uint4* data, int lane,
                                           const uint32_t (&bq)[NT][D / 4], float& low,
                                           float& high) {
  float c[NT][2][4];
#pragma unroll
  for (int nt = 0; nt < NT; ++nt)
#pragma unroll
    for (int i = 0; i < 4; ++i) c[nt][0][i] = c[nt][1][i] = 0.f;
#pragma unroll
  for (int j = 0; j < D / 8; j += 2) {
    uint4 k0, k1;
    if (FP8) {
      uint4 raw = data[(j / 2) * 32 + lane];
      k0 = widen_e4m3(raw.x, raw.y), k1 = widen_e4m3(raw.z, raw.w);
    } else {
      k0 = data[j * 32 + lane], k1 = data[(j + 1) * 32 + lane];
    }
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
      if (FP8) {
        mma_f16(c[nt][0], k0, bq[nt][2 * j], bq[nt][2 * j + 1]);
        mma_f16(c[nt][1], k1, bq[nt][2 * j + 2], bq[nt][2 * j + 3]);
      } else {
        mma_bf16(c[nt][0], k0, bq[nt][2 * j], bq[nt][2 * j + 1]);
        mma_bf16(c[nt][1], k1, bq[nt][2 * j + 2], bq[nt][2 * j + 3]);
      }
    }
  }
  low = high = -INFINITY;
#pragma unroll
  for (int nt = 0; nt < NT; ++nt) {
    low = fmaxf(low, fmaxf(c[nt][0][0] + c[nt][1][0], c[nt][0][1] + c[nt][1][1]));
    high = fmaxf(high, fmaxf(c[nt][0][2] + c[nt][1][2], c[nt][0][3] + c[nt][1][3]));
  }
#pragma unroll
  for (int d = 1; d < 4; d <<= 1) {
    low = fmaxf(low, __shfl_xor_sync(kFull, low, d));
    high = fmaxf(high, __shfl_xor_sync(kFull, high, d));
  }
}

template <int D, int NT, bool FP8>
__global__ void __launch_bounds__(kScanThreads, D > 128 ? 1 : NT == 1 ? 3 : 2)
    scan_keys(const ScanArgs a, const SelectArgs sel) {
  extern __shared__ __align__(128) char smem[];
  __shared__ __align__(8) uint64_t bars[kScanWarps * 8];
  __shared__ int last_cta;
  constexpr int kStage = tile_bytes(D);           // of one bulk copy
  constexpr int kBytes = FP8 ? kStage / 2 : kStage;  // of one tile
  constexpr int kChunk = kStage / kBytes;
  begin_dependent();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int pair = blockIdx.x, split = blockIdx.y;
  const int request = pair / a.heads, head = pair % a.heads;
  const int position = a.position[request];
  const int blocks = max(0, (position + 1) / a.block_tokens - a.recent_blocks + 1);
  const int tiles = (blocks + kKeyTile - 1) / kKeyTile;
  const int chunks = (tiles + kChunk - 1) / kChunk;
  const int begin = chunks * split / a.splits, end = chunks * (split + 1) / a.splits;
  const int mine = end - begin > warp ? (end - begin - warp + kScanWarps - 1) / kScanWarps : 0;
  char* ring = smem + static_cast<size_t>(warp) * a.stages * kStage;
  const uint32_t ring_s = shared_address(ring), bar_s = shared_address(&bars[warp * 8]);
  if (lane < a.stages) barrier_init(bar_s + 8 * lane, 1);
  barrier_init_done();
  __syncwarp();
  const char* keys = a.keys + static_cast<long long>(pair) * a.tiles_per_pair * kBytes;
  auto issue = [&](int i) {
    if (lane == 0) {
      int stage = i % a.stages, chunk = begin + warp + i * kScanWarps;
      int bytes = min(kChunk, tiles - chunk * kChunk) * kBytes;
      barrier_expect(bar_s + 8 * stage, bytes);
      bulk_load(ring_s + stage * kStage, keys + static_cast<long long>(chunk) * kStage, bytes,
                bar_s + 8 * stage);
    }
  };
  for (int i = 0; i < min(a.stages, mine); ++i) issue(i);
  uint32_t bq[NT][D / 4];
  load_scan_query<D, NT, FP8>(
      a.q + static_cast<long long>(request) * a.q_stride + head * a.group * D, a.group, lane, bq);
  float* scores = a.scores + pair * a.score_stride;
  int stage = 0, parity = 0;
  for (int i = 0; i < mine; ++i) {
    barrier_wait(bar_s + 8 * stage, parity);
    float low[kChunk], high[kChunk];
#pragma unroll
    for (int t = 0; t < kChunk; ++t)
      score_tile<D, NT, FP8>(reinterpret_cast<const uint4*>(ring + stage * kStage + t * kBytes),
                             lane, bq, low[t], high[t]);
    __syncwarp();
    if (i + a.stages < mine) issue(i + a.stages);
    if (++stage == a.stages) stage = 0, parity ^= 1;
#pragma unroll
    for (int t = 0; t < kChunk; ++t) {
      int block = ((begin + warp + i * kScanWarps) * kChunk + t) * kKeyTile + lane / 4;
      if ((lane & 3) == 0) {
        if (block < blocks) scores[block] = low[t];
        if (block + 8 < blocks) scores[block + 8] = high[t];
      }
    }
  }
  if (!a.select) return;
  __syncthreads();
  if (a.splits > 1) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last_cta = atomicAdd(&a.tickets[pair], 1) == a.splits - 1;
    __syncthreads();
    if (!last_cta) return;
    __threadfence();
    if (threadIdx.x == 0) a.tickets[pair] = 0;
  }
  SelectScratch s;
  carve_scratch(&s, smem, a.max_blocks, sel.pool, sel.chosen);
  select_pair(sel, s, pair, a.position + request, a.step);
}

// Selection alone, from scores that another launch left.
constexpr int kSelectThreads = 256;
__global__ void __launch_bounds__(kSelectThreads) select_blocks(const SelectArgs sel, const int* position,
                                                     const int* step, int max_blocks,
                                                     long long* clock) {
  clock_in(clock);
  extern __shared__ __align__(128) char smem[];
  SelectScratch s;
  carve_scratch(&s, smem, max_blocks, sel.pool, sel.chosen);
  select_pair(sel, s, blockIdx.x, position + blockIdx.x / sel.heads, step);
  clock_out(clock);
}

}  // namespace oasis
