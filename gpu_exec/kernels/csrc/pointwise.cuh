// Row-wise kernels around the linear layers: norm, gate, and append with min/max keys.
#pragma once
#include "common.cuh"

namespace oasis {

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(kFull, x, d);
  return x;
}

constexpr int kNormThreads = 512;
constexpr int kNormParts = 2;  // 16-byte parts of a row per thread: rows of up to 8,192

// out = x / rms(x) * weight; one CTA per row, width a multiple of 8.
__global__ void __launch_bounds__(kNormThreads) rms_norm(const __nv_bfloat16* x, const __nv_bfloat16* weight,
                                                __nv_bfloat16* out, int width, float eps) {
  __shared__ float sums[kNormThreads / 32];
  begin_dependent();
  const uint4* in = reinterpret_cast<const uint4*>(x + static_cast<long long>(blockIdx.x) * width);
  const uint4* w = reinterpret_cast<const uint4*>(weight);
  uint4 v[kNormParts], g[kNormParts];
  float sum = 0.f;
#pragma unroll
  for (int part = 0; part < kNormParts; ++part) {
    int i = threadIdx.x + part * kNormThreads;
    bool inside = i < width / 8;
    v[part] = inside ? in[i] : make_uint4(0, 0, 0, 0);
    g[part] = inside ? w[i] : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int part = 0; part < kNormParts; ++part) {
    const __nv_bfloat162* p = reinterpret_cast<const __nv_bfloat162*>(&v[part]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float2 f = __bfloat1622float2(p[j]);
      sum += f.x * f.x + f.y * f.y;
    }
  }
  sum = warp_sum(sum);
  if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = sum;
  __syncthreads();
  float total = 0.f;
#pragma unroll
  for (int i = 0; i < kNormThreads / 32; ++i) total += sums[i];
  float scale = rsqrtf(total / width + eps);
  uint4* to = reinterpret_cast<uint4*>(out + static_cast<long long>(blockIdx.x) * width);
#pragma unroll
  for (int part = 0; part < kNormParts; ++part) {
    int i = threadIdx.x + part * kNormThreads;
    if (i >= width / 8) break;
    const __nv_bfloat162* p = reinterpret_cast<const __nv_bfloat162*>(&v[part]);
    const __nv_bfloat162* q = reinterpret_cast<const __nv_bfloat162*>(&g[part]);
    uint4 r;
    uint32_t* o = reinterpret_cast<uint32_t*>(&r);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float2 f = __bfloat1622float2(p[j]), h = __bfloat1622float2(q[j]);
      o[j] = pack_bf16(f.x * scale * h.x, f.y * scale * h.y);
    }
    to[i] = r;
  }
}

constexpr int kGateItems = 2;  // 16-byte results per thread

// out[r][i] = silu(in[r][i]) * in[r][width + i].
__global__ void __launch_bounds__(256) silu_mul(const __nv_bfloat16* in, __nv_bfloat16* out,
                                                int rows, int width) {
  begin_dependent();
  const int parts = width / 8, n = rows * parts, first = blockIdx.x * 256 * kGateItems + threadIdx.x;
  uint4 gate[kGateItems], up[kGateItems];
#pragma unroll
  for (int k = 0; k < kGateItems; ++k) {
    int i = first + k * 256;
    if (i >= n) break;
    const uint4* base = reinterpret_cast<const uint4*>(in) + static_cast<long long>(i / parts) * 2 * parts;
    gate[k] = base[i % parts], up[k] = base[parts + i % parts];
  }
#pragma unroll
  for (int k = 0; k < kGateItems; ++k) {
    int i = first + k * 256;
    if (i >= n) break;
    const __nv_bfloat162* p = reinterpret_cast<const __nv_bfloat162*>(&gate[k]);
    const __nv_bfloat162* q = reinterpret_cast<const __nv_bfloat162*>(&up[k]);
    uint4 r;
    uint32_t* o = reinterpret_cast<uint32_t*>(&r);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float2 f = __bfloat1622float2(p[j]), h = __bfloat1622float2(q[j]);
      o[j] = pack_bf16(f.x / (1.f + __expf(-f.x)) * h.x, f.y / (1.f + __expf(-f.y)) * h.y);
    }
    reinterpret_cast<uint4*>(out)[i] = r;
  }
}

struct AppendArgs {
  __nv_bfloat16* qkv;            // [rows][width], row = j * batch + request; q rotated in place
  const __nv_bfloat16* q_norm;   // [128] or null
  const __nv_bfloat16* k_norm;   // [128] or null
  const float2* rope;            // [positions][64] cos, sin
  char* pool;                    // this layer's units
  char* keys;                    // this layer's min/max tiles, or null
  const int* position;           // [batch]
  int batch, rows, query_heads, heads, width;
  int block_tokens, slots_per_pair, local_slot, tiles_per_pair, fp8;
  float eps;
};

// Largest e4m3 value <= x (up false) or smallest >= x (up true), saturating.
__device__ __forceinline__ uint32_t round_e4m3(float x, bool up) {
  uint16_t pair;
  asm volatile("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.f), "f"(x));
  uint32_t byte = pair & 0xffu;
  __half2 back;
  *reinterpret_cast<uint32_t*>(&back) = e4m3x2_to_f16x2(byte);
  float value = __low2float(back);
  bool wrong = up ? value < x : value > x;
  if (!wrong) return byte;
  uint32_t sign = byte & 0x80u, magnitude = byte & 0x7fu;
  bool toward_zero = (sign != 0) == up;
  if (toward_zero) return sign | (magnitude - 1);
  return magnitude >= 0x7eu ? byte : sign | (magnitude + 1);
}

struct Bounds {
  char* at;        // max of dimension d; that of d + 64, then min of the same follow in steps
  uint32_t old[4];
};

// Bytes between the bounds of dimensions d and d + 64.
__device__ __forceinline__ int bound_step(int fp8) { return fp8 ? 1024 : 2048; }

// Fetch a block's bounds of dimensions d, d + 1, d + 64, d + 65, all loads in flight at once.
__device__ __forceinline__ Bounds load_bounds(char* tile, int r, int d, int fp8) {
  Bounds b;
  b.at = tile + bound_offset(r, d, fp8);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const char* at = b.at + i * bound_step(fp8);
    b.old[i] = fp8 ? *reinterpret_cast<const uint16_t*>(at)
                   : *reinterpret_cast<const uint32_t*>(at);
  }
  return b;
}

__device__ __forceinline__ void merge_bounds(const Bounds& b, float2 low, float2 high, bool fresh,
                                             int fp8) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    bool up = i < 2;
    float2 v = i & 1 ? high : low, old;
    if (fp8) {
      uint32_t raw = e4m3x2_to_f16x2(b.old[i]);
      old = __half22float2(*reinterpret_cast<const __half2*>(&raw));
    } else {
      old = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&b.old[i]));
    }
    if (!fresh) {
      v.x = up ? fmaxf(v.x, old.x) : fminf(v.x, old.x);
      v.y = up ? fmaxf(v.y, old.y) : fminf(v.y, old.y);
    }
    if (fp8)
      *reinterpret_cast<uint16_t*>(b.at + i * bound_step(fp8)) =
          static_cast<uint16_t>(round_e4m3(v.x, up) | round_e4m3(v.y, up) << 8);
    else
      *reinterpret_cast<uint32_t*>(b.at + i * bound_step(fp8)) = pack_bf16(v.x, v.y);
  }
}

constexpr int kAppendParts = 2;  // heads per warp; all their loads go out before the first use

struct HeadPart {
  bool inside, is_query, is_key, bounded;
  int pair;
  __nv_bfloat162 low, high;  // dimensions 2 lane, +1 and 64 + 2 lane, +1
  Bounds bounds;
};

// Fetch one head of a row: its vector and, for a normal row's key, the block's bounds.
__device__ __forceinline__ HeadPart load_part(const AppendArgs& a, int row, int part, int position,
                                              int lane) {
  HeadPart h{};
  h.inside = part < a.query_heads + 2 * a.heads;
  if (!h.inside) return h;
  h.is_query = part < a.query_heads;
  h.is_key = !h.is_query && part < a.query_heads + a.heads;
  const int head = h.is_key ? part - a.query_heads : part - a.query_heads - a.heads;
  h.pair = row % a.batch * a.heads + head;
  const __nv_bfloat162* data = reinterpret_cast<const __nv_bfloat162*>(
      a.qkv + static_cast<long long>(row) * a.width + part * kHeadDim);
  h.low = data[lane], h.high = data[lane + 32];
  h.bounded = h.is_key && a.keys != nullptr && row < a.batch;
  if (h.bounded) {
    const int block = position / a.block_tokens;
    char* tile = a.keys + (static_cast<long long>(h.pair) * a.tiles_per_pair + block / 16) *
                              (a.fp8 ? 4096 : 8192);
    h.bounds = load_bounds(tile, block & 15, 2 * lane, a.fp8);
  }
  return h;
}

// RMS norm (where there is a weight) and rotary embedding of one head, halves paired.
__device__ __forceinline__ void norm_rotate(const AppendArgs& a, HeadPart& h, float4 rope,
                                            int lane) {
  float2 low = __bfloat1622float2(h.low), high = __bfloat1622float2(h.high);
  const __nv_bfloat16* norm = h.is_query ? a.q_norm : a.k_norm;
  if (norm) {
    float2 wl = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(norm)[lane]);
    float2 wh = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(norm)[lane + 32]);
    float sum = warp_sum(low.x * low.x + low.y * low.y + high.x * high.x + high.y * high.y);
    float scale = rsqrtf(sum / kHeadDim + a.eps);
    low.x *= scale * wl.x, low.y *= scale * wl.y;
    high.x *= scale * wh.x, high.y *= scale * wh.y;
  }
  h.low = __floats2bfloat162_rn(low.x * rope.x - high.x * rope.y, low.y * rope.z - high.y * rope.w);
  h.high =
      __floats2bfloat162_rn(high.x * rope.x + low.x * rope.y, high.y * rope.z + low.y * rope.w);
}

// Write K or V of one token into the active block, and K's bounds.
__device__ __forceinline__ void write_token(const AppendArgs& a, const HeadPart& h, int position,
                                            int lane) {
  const int block = position / a.block_tokens, token = position % a.block_tokens;
  long long unit = static_cast<long long>(h.pair) * a.slots_per_pair + a.local_slot + (block & 1);
  __nv_bfloat16* out = reinterpret_cast<__nv_bfloat16*>(
      a.pool + unit * a.block_tokens * (kTileBytes / kTileTokens) +
      (token / kTileTokens) * kTileBytes);
  const int t = token % kTileTokens, d = 2 * lane;
  if (!h.is_key) {
    out += kTileBytes / 4;
    out[value_index(t, d)] = h.low.x, out[value_index(t, d + 1)] = h.low.y;
    out[value_index(t, d + 64)] = h.high.x, out[value_index(t, d + 65)] = h.high.y;
    return;
  }
  *reinterpret_cast<__nv_bfloat162*>(out + key_index(t, d)) = h.low;
  *reinterpret_cast<__nv_bfloat162*>(out + key_index(t, d + 64)) = h.high;
  if (h.bounded)
    merge_bounds(h.bounds, __bfloat1622float2(h.low), __bfloat1622float2(h.high), token == 0,
                 a.fp8);
}

// One warp per row and kAppendParts heads: norm, rotation, K and V into the active block, min/max.
__global__ void __launch_bounds__(256, 6) append_kv(const AppendArgs a) {
  begin_dependent();
  const int lane = threadIdx.x & 31;
  const int groups = (a.query_heads + 2 * a.heads + kAppendParts - 1) / kAppendParts;
  const int item = blockIdx.x * 8 + (threadIdx.x >> 5);
  if (item >= a.rows * groups) return;
  const int row = item / groups, first = item % groups * kAppendParts;
  const int position = a.position[row % a.batch] + row / a.batch;
  const float4 rope =
      reinterpret_cast<const float4*>(a.rope)[static_cast<long long>(position) * 32 + lane];
  HeadPart parts[kAppendParts];
#pragma unroll
  for (int i = 0; i < kAppendParts; ++i) parts[i] = load_part(a, row, first + i, position, lane);
#pragma unroll
  for (int i = 0; i < kAppendParts; ++i) {
    HeadPart& h = parts[i];
    if (!h.inside) break;
    if (h.is_query || h.is_key) norm_rotate(a, h, rope, lane);
    if (h.is_query) {
      __nv_bfloat162* data = reinterpret_cast<__nv_bfloat162*>(
          a.qkv + static_cast<long long>(row) * a.width + (first + i) * kHeadDim);
      data[lane] = h.low, data[lane + 32] = h.high;
    } else {
      write_token(a, h, position, lane);
    }
  }
}

}  // namespace oasis
