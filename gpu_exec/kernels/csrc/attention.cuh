// Decode attention over per-pair lists of KV units (sparse or dense), split over CTAs.
#pragma once
#include "common.cuh"

namespace oasis {

constexpr int kAttnWarps = 4;
constexpr int kAttnThreads = 32 * kAttnWarps;

struct AttentionArgs {
  const __nv_bfloat16* q;    // [rows][q_stride], row = j * batch + request
  __nv_bfloat16* out;        // [rows][out_stride]
  const char* pool;          // units of this layer
  const int* table;          // [pairs][table_stride] unit index in the layer's pool
  const int* counts;         // [pairs] entries used, or null: fixed_count
  const int* position;       // [batch] position of the normal row's token
  float* partial;            // [pairs * splits][columns][head_dim + 2]
  int* tickets;              // [pairs], zero before and after
  long long table_stride;
  int fixed_count;           // < 0: all full blocks of the row
  int q_stride, out_stride;
  int batch, heads, group, rows_per_request;
  int block_tokens, slots_per_pair, local_slot;
  int splits, stages;
  float scale_log2;          // softmax scale times log2(e), times the scale of fp8 keys
  float value_scale;         // of fp8 values; 1 for bf16
  int head_dim;              // 64, 128 or 256
};

struct TileRange {
  int chosen, local0, total, first_block, last_position;
};

__device__ __forceinline__ TileRange tile_range(const AttentionArgs& a, int pair, int position) {
  TileRange r;
  int per_unit = a.block_tokens / kTileTokens;
  r.first_block = position / a.block_tokens;
  r.last_position = position + a.rows_per_request - 1;
  int count = a.counts ? a.counts[pair] : a.fixed_count;
  if (count < 0) count = r.first_block;
  r.chosen = count * per_unit;
  int start = r.first_block * a.block_tokens;
  int end = min(r.last_position, start + a.block_tokens - 1);
  r.local0 = (end - start) / kTileTokens + 1;
  r.total = r.chosen + r.local0 + (r.last_position / a.block_tokens != r.first_block);
  return r;
}

// Byte offset of a tile of `bytes` in the layer's pool.
__device__ __forceinline__ long long tile_offset(const AttentionArgs& a, const TileRange& r,
                                                 int pair, int tile, int bytes) {
  int per_unit = a.block_tokens / kTileTokens;
  long long unit;
  int sub;
  if (tile < r.chosen) {
    unit = a.table[pair * a.table_stride + tile / per_unit];
    sub = tile % per_unit;
  } else {
    int second = tile >= r.chosen + r.local0;
    sub = second ? 0 : tile - r.chosen;
    unit = static_cast<long long>(pair) * a.slots_per_pair + a.local_slot +
           ((r.first_block + second) & 1);
  }
  return (unit * per_unit + sub) * bytes;
}

// Two bf16 values as the operand of the product: as they are, or as halves beside fp8 keys.
template <bool FP8>
__device__ __forceinline__ uint32_t query_pair(const __nv_bfloat16* q) {
  if (!FP8) return *reinterpret_cast<const uint32_t*>(q);
  return pack_f16(__bfloat162float(q[0]), __bfloat162float(q[1]));
}

template <int D, int NT, bool FP8>
__device__ __forceinline__ void load_query(const AttentionArgs& a, int request, int head,
                                           int lane, uint32_t (&b)[NT][D / 8]) {
#pragma unroll
  for (int nt = 0; nt < NT; ++nt) {
    int column = nt * 8 + lane / 4;
    bool valid = column < a.group * a.rows_per_request;
    int row = valid ? column / a.group : 0;
    int g = valid ? column % a.group : 0;
    const __nv_bfloat16* q = a.q + static_cast<long long>(row * a.batch + request) * a.q_stride +
                             (head * a.group + g) * D;
#pragma unroll
    for (int j = 0; j < D / 16; ++j) {
      int k = j * 16 + 2 * (lane & 3);
      b[nt][2 * j] = valid ? query_pair<FP8>(q + k) : 0u;
      b[nt][2 * j + 1] = valid ? query_pair<FP8>(q + k + 8) : 0u;
    }
  }
}

// Running softmax state of one warp: columns are (row, query head), split over lanes as in the
// tensor-core accumulator: lane l holds columns 2(l%4), +1 of each n-tile.
template <int D, int NT>
struct SoftmaxState {
  float m[NT][2], l[NT][2];
  float o[NT][D / 16][4];
};

// Operand tiles i and i + 1 (i even) of a KV tile: keys are 0 to D / 16 - 1, values follow.
template <bool FP8>
__device__ __forceinline__ void load_operands(const uint4* data, int i, int lane, uint4& first,
                                              uint4& second) {
  if (FP8) {
    uint4 raw = data[(i / 2) * 32 + lane];
    first = widen_e4m3(raw.x, raw.y), second = widen_e4m3(raw.z, raw.w);
  } else {
    first = data[i * 32 + lane], second = data[(i + 1) * 32 + lane];
  }
}

template <bool FP8>
__device__ __forceinline__ void mma(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  if (FP8) mma_f16(c, a, b0, b1);
  else mma_bf16(c, a, b0, b1);
}

template <int D, int NT, bool FP8>
__device__ __forceinline__ void attend_tile(const AttentionArgs& a, const TileRange& r, int tile,
                                            const uint4* data, int lane,
                                            const uint32_t (&bq)[NT][D / 8],
                                            SoftmaxState<D, NT>& st) {
  float s[NT][4], s2[NT][4];
#pragma unroll
  for (int nt = 0; nt < NT; ++nt)
#pragma unroll
    for (int i = 0; i < 4; ++i) s[nt][i] = s2[nt][i] = 0.f;
#pragma unroll
  for (int j = 0; j < D / 16; j += 2) {
    uint4 k0, k1;
    load_operands<FP8>(data, j, lane, k0, k1);
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
      mma<FP8>(s[nt], k0, bq[nt][2 * j], bq[nt][2 * j + 1]);
      mma<FP8>(s2[nt], k1, bq[nt][2 * j + 2], bq[nt][2 * j + 3]);
    }
  }
  bool local = tile >= r.chosen;
  int base = 0;
  if (local) {
    bool second = tile >= r.chosen + r.local0;
    base = second ? (r.first_block + 1) * a.block_tokens
                  : r.first_block * a.block_tokens + (tile - r.chosen) * kTileTokens;
  }
  uint32_t p_low[NT], p_high[NT];
#pragma unroll
  for (int nt = 0; nt < NT; ++nt) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[nt][i] += s2[nt][i];
    if (local) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int column = nt * 8 + 2 * (lane & 3) + (i & 1);
        int token = base + lane / 4 + 8 * (i >> 1);
        int limit = r.last_position - a.rows_per_request + 1 + column / a.group;
        if (token > limit) s[nt][i] = -INFINITY;
      }
    }
    float corr[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float mx = fmaxf(s[nt][c], s[nt][c + 2]);
      mx = fmaxf(mx, __shfl_xor_sync(kFull, mx, 4));
      mx = fmaxf(mx, __shfl_xor_sync(kFull, mx, 8));
      mx = fmaxf(mx, __shfl_xor_sync(kFull, mx, 16));
      mx = fmaxf(mx * a.scale_log2, st.m[nt][c]);
      float use = mx == -INFINITY ? 0.f : mx;
      corr[c] = exp2f(st.m[nt][c] - use);
      st.m[nt][c] = mx;
      s[nt][c] = exp2f(s[nt][c] * a.scale_log2 - use);
      s[nt][c + 2] = exp2f(s[nt][c + 2] * a.scale_log2 - use);
      st.l[nt][c] = st.l[nt][c] * corr[c] + s[nt][c] + s[nt][c + 2];
    }
    if (__any_sync(kFull, corr[0] != 1.f || corr[1] != 1.f)) {
#pragma unroll
      for (int i = 0; i < D / 16; ++i)
#pragma unroll
        for (int c = 0; c < 4; ++c) st.o[nt][i][c] *= corr[c & 1];
    }
    p_low[nt] = transpose8(FP8 ? pack_f16(s[nt][0], s[nt][1]) : pack_bf16(s[nt][0], s[nt][1]));
    p_high[nt] = transpose8(FP8 ? pack_f16(s[nt][2], s[nt][3]) : pack_bf16(s[nt][2], s[nt][3]));
  }
#pragma unroll
  for (int i = 0; i < D / 16; i += 2) {
    uint4 v0, v1;
    load_operands<FP8>(data, D / 16 + i, lane, v0, v1);
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
      mma<FP8>(st.o[nt][i], v0, p_low[nt], p_high[nt]);
      mma<FP8>(st.o[nt][i + 1], v1, p_low[nt], p_high[nt]);
    }
  }
}

// Merge `parts` partial results of one column at dimension d; stride in floats between parts.
template <int D>
__device__ __forceinline__ float merge_parts(const float* part, long long stride, int parts, int d,
                                             float& m_all, float& l_all) {
  m_all = -INFINITY;
  for (int i = 0; i < parts; ++i) m_all = fmaxf(m_all, part[i * stride + D]);
  float acc = 0.f;
  l_all = 0.f;
  float use = m_all == -INFINITY ? 0.f : m_all;
  for (int i = 0; i < parts; ++i) {
    float w = exp2f(part[i * stride + D] - use);
    l_all += w * part[i * stride + D + 1];
    acc += w * part[i * stride + d];
  }
  return acc;
}

template <int D, int NT>
__device__ __forceinline__ void spill_warp(float* part, int lane, SoftmaxState<D, NT>& st) {
#pragma unroll
  for (int nt = 0; nt < NT; ++nt) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float l = st.l[nt][c];
      l += __shfl_xor_sync(kFull, l, 4);
      l += __shfl_xor_sync(kFull, l, 8);
      l += __shfl_xor_sync(kFull, l, 16);
      float* row = part + (nt * 8 + 2 * (lane & 3) + c) * (D + 2);
      if (lane < 4) {
        row[D] = st.m[nt][c];
        row[D + 1] = l;
      }
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        row[i * 16 + lane / 4] = st.o[nt][i][c];
        row[i * 16 + lane / 4 + 8] = st.o[nt][i][c + 2];
      }
    }
  }
}

template <int D>
__device__ __forceinline__ void write_output(const AttentionArgs& a, int request, int head,
                                             const float* part, long long stride, int parts,
                                             int d) {
  for (int column = 0; column < a.group * a.rows_per_request; ++column) {
    float m, l;
    float acc = merge_parts<D>(part + column * (D + 2), stride, parts, d, m, l);
    int row = column / a.group, g = column % a.group;
    a.out[static_cast<long long>(row * a.batch + request) * a.out_stride +
          (head * a.group + g) * D + d] = __float2bfloat16(acc / l * a.value_scale);
  }
}

// Merge the warps' results of every column, for the last CTA of the pair.
template <int D>
__device__ __forceinline__ void write_partial(const AttentionArgs& a, const float* part,
                                              long long stride, float* out, int d) {
  for (int column = 0; column < a.group * a.rows_per_request; ++column) {
    float m, l;
    float acc = merge_parts<D>(part + column * (D + 2), stride, kAttnWarps, d, m, l);
    float* row = out + column * (D + 2);
    row[d] = acc;
    if (d == 0) row[D] = m, row[D + 1] = l;
  }
}

// Let each thread do its dimensions: one, of 256 two.
template <int D, class Do>
__device__ __forceinline__ void each_dimension(Do act) {
  static_assert(D <= 2 * kAttnThreads);
  if (D >= kAttnThreads || threadIdx.x < D) act(threadIdx.x);
  if (D > kAttnThreads) act(threadIdx.x + kAttnThreads);
}

template <int D, int NT, bool FP8>
__global__ void __launch_bounds__(kAttnThreads, D > 128 ? 1 : 2)
    paged_attention(const AttentionArgs a) {
  constexpr int kBytes = FP8 ? tile_bytes(D) / 2 : tile_bytes(D);
  extern __shared__ __align__(128) char smem[];
  __shared__ __align__(8) uint64_t bars[kAttnWarps * 8];
  __shared__ int last_cta;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  begin_dependent();
  const int pair = blockIdx.x, split = blockIdx.y;
  const int request = pair / a.heads, head = pair % a.heads;
  const TileRange r = tile_range(a, pair, a.position[request]);
  const int begin = static_cast<long long>(r.total) * split / a.splits;
  const int end = static_cast<long long>(r.total) * (split + 1) / a.splits;
  const int mine = end - begin > warp ? (end - begin - warp + kAttnWarps - 1) / kAttnWarps : 0;
  char* ring = smem + static_cast<size_t>(warp) * a.stages * kBytes;
  const uint32_t ring_s = shared_address(ring), bar_s = shared_address(&bars[warp * 8]);
  if (lane < a.stages) barrier_init(bar_s + 8 * lane, 1);
  barrier_init_done();
  __syncwarp();

  auto tile_of = [&](int i) { return begin + warp + i * kAttnWarps; };
  long long offsets = 0;  // lane i holds the offset of this warp's tile 32 * n + i
  auto issue = [&](int i) {
    if ((i & 31) == 0) {
      offsets = i + lane < mine ? tile_offset(a, r, pair, tile_of(i + lane), kBytes) : 0;
    }
    long long offset = __shfl_sync(kFull, offsets, i & 31);
    if (lane == 0) {
      int stage = i % a.stages;
      barrier_expect(bar_s + 8 * stage, kBytes);
      bulk_load(ring_s + stage * kBytes, a.pool + offset, kBytes, bar_s + 8 * stage);
    }
  };
  for (int i = 0; i < min(a.stages, mine); ++i) issue(i);

  uint32_t bq[NT][D / 8];
  load_query<D, NT, FP8>(a, request, head, lane, bq);
  SoftmaxState<D, NT> st;
#pragma unroll
  for (int nt = 0; nt < NT; ++nt) {
    st.m[nt][0] = st.m[nt][1] = -INFINITY;
    st.l[nt][0] = st.l[nt][1] = 0.f;
#pragma unroll
    for (int i = 0; i < D / 16; ++i)
#pragma unroll
      for (int c = 0; c < 4; ++c) st.o[nt][i][c] = 0.f;
  }
  int stage = 0, parity = 0;
  for (int i = 0; i < mine; ++i) {
    barrier_wait(bar_s + 8 * stage, parity);
    attend_tile<D, NT, FP8>(a, r, tile_of(i),
                            reinterpret_cast<const uint4*>(ring + stage * kBytes), lane, bq, st);
    __syncwarp();
    if (i + a.stages < mine) issue(i + a.stages);
    if (++stage == a.stages) stage = 0, parity ^= 1;
  }

  constexpr int kPart = NT * 8 * (D + 2);
  float* parts = reinterpret_cast<float*>(smem);
  __syncthreads();
  spill_warp<D, NT>(parts + warp * kPart, lane, st);
  __syncthreads();
  if (a.splits == 1) {
    each_dimension<D>(
        [&](int d) { write_output<D>(a, request, head, parts, kPart, kAttnWarps, d); });
    return;
  }
  float* mine_out = a.partial + (static_cast<long long>(pair) * a.splits + split) * kPart;
  each_dimension<D>([&](int d) { write_partial<D>(a, parts, kPart, mine_out, d); });
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last_cta = atomicAdd(&a.tickets[pair], 1) == a.splits - 1;
  __syncthreads();
  if (!last_cta) return;
  __threadfence();
  if (threadIdx.x == 0) a.tickets[pair] = 0;
  const float* all = a.partial + static_cast<long long>(pair) * a.splits * kPart;
  each_dimension<D>([&](int d) { write_output<D>(a, request, head, all, kPart, a.splits, d); });
}

}  // namespace oasis
