// Shared device helpers: bulk copies, barriers, tensor-core operands, unit layout.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "layout.h"

namespace oasis {

constexpr int kHeadDim = 128;  // of the captured step; attention, scan and append know 64, 128, 256
constexpr int kTileTokens = 16;

// Bytes of a tile of 16 tokens, K then V, or of the extreme keys of 16 blocks, in 16 bits.
__host__ __device__ constexpr int tile_bytes(int head_dim) { return 64 * head_dim; }

constexpr unsigned kFull = 0xffffffffu;

// Programmatic dependent launch: a kernel may start while its predecessor ends. It waits here
// before it reads anything, and lets its own successor do the same. Both are empty in a launch
// without the attribute.
__device__ __forceinline__ void begin_dependent() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ long long now_ns() {
  long long t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

// When the first block of a kernel starts and the last one ends, in ns; nothing without `clock`.
__device__ __forceinline__ void clock_in(long long* clock) {
  if (clock && threadIdx.x == 0) atomicMin(clock, now_ns());
}

__device__ __forceinline__ void clock_out(long long* clock) {
  if (!clock) return;
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(clock + 1, now_ns());
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void barrier_init(uint32_t bar, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ bool barrier_try(uint32_t bar, uint32_t parity) {
  uint32_t ok;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(ok)
      : "r"(bar), "r"(parity)
      : "memory");
  return ok != 0;
}

__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity) {
  while (!barrier_try(bar, parity)) {
  }
}

// One bulk copy global -> shared; completion is counted on `bar`.
__device__ __forceinline__ void bulk_load(uint32_t dst, const void* src, uint32_t bytes,
                                          uint32_t bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(dst),
      "l"(src), "r"(bytes), "r"(bar)
      : "memory");
}

__device__ __forceinline__ void bulk_store(void* dst, uint32_t src, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src),
               "r"(bytes)
               : "memory");
}

// C[16 x 8] += A[16 x 16] B[16 x 8], bf16 operands, fp32 accumulators.
__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_f16(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// Transpose an 8 x 8 matrix of 16-bit elements spread over the warp.
__device__ __forceinline__ uint32_t transpose8(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<uint32_t*>(&v);
}

__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  __half2 v = __floats2half2_rn(low, high);
  return *reinterpret_cast<uint32_t*>(&v);
}

// Two e4m3 bytes -> two halves (exact).
__device__ __forceinline__ uint32_t e4m3x2_to_f16x2(uint32_t packed) {
  uint32_t out;
  uint16_t in = static_cast<uint16_t>(packed);
  asm volatile("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out) : "h"(in));
  return out;
}

// Eight e4m3 bytes -> the four registers of an operand tile in halves.
__device__ __forceinline__ uint4 widen_e4m3(uint32_t low, uint32_t high) {
  return make_uint4(e4m3x2_to_f16x2(low), e4m3x2_to_f16x2(low >> 16), e4m3x2_to_f16x2(high),
                    e4m3x2_to_f16x2(high >> 16));
}

}  // namespace oasis
