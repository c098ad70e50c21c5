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
  const __nv_bfloat16* q_norm;   // [head_dim] or null
  const __nv_bfloat16* k_norm;   // [head_dim] or null
  const float2* rope;            // [positions][head_dim / 2] cos, sin, or null: rotated already
  char* pool;                    // this layer's units
  char* keys;                    // this layer's min/max tiles, or null
  const int* position;           // [batch]
  int batch, rows, query_heads, heads, width;
  int block_tokens, slots_per_pair, local_slot, tiles_per_pair, fp8;
  float eps;
  int head_dim;                  // 64, 128 or 256
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
  char* at[4];     // max of dimensions d, d + D / 2, then min of the same
  uint32_t old[4];
};

// Fetch a block's bounds of dimensions d, d + 1 and of their partners D / 2 on, all loads in
// flight at once.
template <int D>
__device__ __forceinline__ Bounds load_bounds(char* tile, int r, int d, int fp8) {
  Bounds b;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    b.at[i] = tile + bound_offset(r, d + D / 2 * i, fp8);
    b.old[i] = fp8 ? *reinterpret_cast<const uint16_t*>(b.at[i])
                   : *reinterpret_cast<const uint32_t*>(b.at[i]);
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
      *reinterpret_cast<uint16_t*>(b.at[i]) =
          static_cast<uint16_t>(round_e4m3(v.x, up) | round_e4m3(v.y, up) << 8);
    else
      *reinterpret_cast<uint32_t*>(b.at[i]) = pack_bf16(v.x, v.y);
  }
}

// One warp per (row, head): norm, rotation, write K and V into the active block, min/max. A lane
// has pairs of neighbours in the lower half of the dimensions and their partners in the upper.
template <int D, bool ROTATE>
__global__ void __launch_bounds__(256) append_kv(const AppendArgs a) {
  constexpr int kParts = D > 128 ? D / 128 : 1;
  begin_dependent();
  const int lane = threadIdx.x & 31;
  const int parts = a.query_heads + 2 * a.heads;
  const int item = blockIdx.x * 8 + (threadIdx.x >> 5);
  if (item >= a.rows * parts) return;
  const int row = item / parts, part = item % parts;
  const int j = row / a.batch, request = row % a.batch;
  const bool idle = D < 128 && lane >= D / 4;
  __nv_bfloat16* data = a.qkv + static_cast<long long>(row) * a.width + part * D;
  __nv_bfloat162* low_p = reinterpret_cast<__nv_bfloat162*>(data) + (idle ? 0 : lane);
  __nv_bfloat162* high_p = low_p + D / 4;
  __nv_bfloat162 low_in[kParts], high_in[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) low_in[i] = low_p[32 * i], high_in[i] = high_p[32 * i];
  const int position = a.position[request] + j;
  const bool is_query = part < a.query_heads, is_key = !is_query && part < a.query_heads + a.heads;
  const int head = is_key ? part - a.query_heads : part - a.query_heads - a.heads;
  const int pair = request * a.heads + head;
  const int block = position / a.block_tokens, token = position % a.block_tokens;
  const bool bounded = is_key && a.keys != nullptr && j == 0 && !idle;
  Bounds bounds[kParts]{};
  if (bounded) {
    char* tile = a.keys + (static_cast<long long>(pair) * a.tiles_per_pair + block / 16) *
                              (a.fp8 ? tile_bytes(D) / 2 : tile_bytes(D));
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      bounds[i] = load_bounds<D>(tile, block & 15, 2 * lane + 64 * i, a.fp8);
  }
  float2 low[kParts], high[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i)
    low[i] = __bfloat1622float2(low_in[i]), high[i] = __bfloat1622float2(high_in[i]);
  if (ROTATE && (is_query || is_key)) {
    const float4* rope = reinterpret_cast<const float4*>(a.rope) +
                         static_cast<long long>(position) * (D / 4) + (idle ? 0 : lane);
    float4 turn[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i) turn[i] = rope[32 * i];
    const __nv_bfloat16* norm = is_query ? a.q_norm : a.k_norm;
    if (norm) {
      const __nv_bfloat162* weight =
          reinterpret_cast<const __nv_bfloat162*>(norm) + (idle ? 0 : lane);
      float2 wl[kParts], wh[kParts];
      float square = 0.f;
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        wl[i] = __bfloat1622float2(weight[32 * i]);
        wh[i] = __bfloat1622float2(weight[D / 4 + 32 * i]);
        square += low[i].x * low[i].x + low[i].y * low[i].y + high[i].x * high[i].x +
                  high[i].y * high[i].y;
      }
      float scale = rsqrtf(warp_sum(idle ? 0.f : square) / D + a.eps);
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        low[i].x *= scale * wl[i].x, low[i].y *= scale * wl[i].y;
        high[i].x *= scale * wh[i].x, high[i].y *= scale * wh[i].y;
      }
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      float2 l = low[i], h = high[i];
      low[i] = make_float2(l.x * turn[i].x - h.x * turn[i].y, l.y * turn[i].z - h.y * turn[i].w);
      high[i] = make_float2(h.x * turn[i].x + l.x * turn[i].y, h.y * turn[i].z + l.y * turn[i].w);
    }
  }
  if (idle) return;
  long long unit = static_cast<long long>(pair) * a.slots_per_pair + a.local_slot + (block & 1);
  __nv_bfloat16* out = reinterpret_cast<__nv_bfloat16*>(
      a.pool + unit * a.block_tokens * (tile_bytes(D) / kTileTokens) +
      (token / kTileTokens) * tile_bytes(D));
  const int t = token % kTileTokens;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const __nv_bfloat162 low_b = __floats2bfloat162_rn(low[i].x, low[i].y);
    const __nv_bfloat162 high_b = __floats2bfloat162_rn(high[i].x, high[i].y);
    const int d = 2 * lane + 64 * i;
    if (is_query) {
      low_p[32 * i] = low_b, high_p[32 * i] = high_b;
    } else if (!is_key) {
      __nv_bfloat16* values = out + tile_bytes(D) / 4;
      values[value_index(t, d)] = low_b.x, values[value_index(t, d + 1)] = low_b.y;
      values[value_index(t, d + D / 2)] = high_b.x;
      values[value_index(t, d + D / 2 + 1)] = high_b.y;
    } else {
      *reinterpret_cast<__nv_bfloat162*>(out + key_index(t, d)) = low_b;
      *reinterpret_cast<__nv_bfloat162*>(out + key_index(t, d + D / 2)) = high_b;
      if (bounded)
        merge_bounds(bounds[i], __bfloat1622float2(low_b), __bfloat1622float2(high_b), token == 0,
                     a.fp8);
    }
  }
}

}  // namespace oasis
