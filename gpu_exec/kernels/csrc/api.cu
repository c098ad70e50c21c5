// C entry points: each checks its launch and returns a cudaError_t as int.
#include "attention.cuh"
#include "host_copy.h"
#include "pointwise.cuh"
#include "scan.cuh"
#include "transfer.cuh"

using namespace oasis;

namespace {

int launched() { return static_cast<int>(cudaGetLastError()); }

template <class Kernel>
int allow_shared(Kernel kernel, int bytes) {
  return static_cast<int>(cudaFuncSetAttribute(
      reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

// Launch; with `early` the kernel may start while its predecessor in the stream ends.
template <class... Parameters, class... Arguments>
int start(void (*kernel)(Parameters...), dim3 grid, int threads, int bytes, int early,
          cudaStream_t stream, Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = dim3(threads);
  config.dynamicSmemBytes = bytes, config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute, config.numAttrs = early ? 1 : 0;
  return static_cast<int>(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

template <int D, int NT, bool FP8 = false>
int attention_of(const AttentionArgs& a, int pairs, int early, cudaStream_t stream) {
  int ring = kAttnWarps * a.stages * (FP8 ? tile_bytes(D) / 2 : tile_bytes(D));
  int spill = kAttnWarps * NT * 8 * (D + 2) * 4;
  int bytes = ring > spill ? ring : spill;
  auto kernel = paged_attention<D, NT, FP8>;
  if (int e = allow_shared(kernel, bytes)) return e;
  return start(kernel, dim3(pairs, a.splits), kAttnThreads, bytes, early, stream, a);
}

template <int D, int NT, bool FP8 = false>
int scan_of(const ScanArgs& a, const SelectArgs& sel, int pairs, int scratch_bytes, int early,
            cudaStream_t stream) {
  int ring = kScanWarps * a.stages * tile_bytes(D);
  int bytes = a.select && scratch_bytes > ring ? scratch_bytes : ring;
  auto kernel = scan_keys<D, NT, FP8>;
  if (int e = allow_shared(kernel, bytes)) return e;
  return start(kernel, dim3(pairs, a.splits), kScanThreads, bytes, early, stream, a, sel);
}

template <int D>
int append_of(const AppendArgs& a, int early, cudaStream_t stream) {
  int warps = a.rows * (a.query_heads + 2 * a.heads);
  auto kernel = a.rope ? append_kv<D, true> : append_kv<D, false>;
  return start(kernel, dim3((warps + 7) / 8), 256, 0, early, stream, a);
}

}  // namespace

extern "C" {

// Head dimensions other than 128 have 16-bit keys and values; with 256, 16 columns at most.
int oasis_attention(const AttentionArgs* a, int pairs, int fp8, int early, cudaStream_t stream) {
  int columns = a->group * a->rows_per_request;
  if (a->stages > 8 || columns > 32 || (fp8 && (columns > 8 || a->head_dim != kHeadDim)))
    return cudaErrorInvalidValue;
  if (fp8) return attention_of<128, 1, true>(*a, pairs, early, stream);
  switch (a->head_dim) {
    case 64:
      if (columns <= 8) return attention_of<64, 1>(*a, pairs, early, stream);
      if (columns <= 16) return attention_of<64, 2>(*a, pairs, early, stream);
      return attention_of<64, 4>(*a, pairs, early, stream);
    case 128:
      if (columns <= 8) return attention_of<128, 1>(*a, pairs, early, stream);
      if (columns <= 16) return attention_of<128, 2>(*a, pairs, early, stream);
      return attention_of<128, 4>(*a, pairs, early, stream);
    case 256:
      if (columns <= 8) return attention_of<256, 1>(*a, pairs, early, stream);
      if (columns <= 16) return attention_of<256, 2>(*a, pairs, early, stream);
  }
  return cudaErrorInvalidValue;
}

int oasis_scan(const ScanArgs* a, const SelectArgs* sel, int pairs, int fp8, int scratch_bytes,
               int early, cudaStream_t stream) {
  if (a->stages > 8 || a->group > 16 || (fp8 && a->head_dim != kHeadDim))
    return cudaErrorInvalidValue;
  bool few = a->group <= 8;
  if (fp8)
    return few ? scan_of<128, 1, true>(*a, *sel, pairs, scratch_bytes, early, stream)
               : scan_of<128, 2, true>(*a, *sel, pairs, scratch_bytes, early, stream);
  switch (a->head_dim) {
    case 64:
      return few ? scan_of<64, 1>(*a, *sel, pairs, scratch_bytes, early, stream)
                 : scan_of<64, 2>(*a, *sel, pairs, scratch_bytes, early, stream);
    case 128:
      return few ? scan_of<128, 1>(*a, *sel, pairs, scratch_bytes, early, stream)
                 : scan_of<128, 2>(*a, *sel, pairs, scratch_bytes, early, stream);
    case 256:
      return few ? scan_of<256, 1>(*a, *sel, pairs, scratch_bytes, early, stream)
                 : scan_of<256, 2>(*a, *sel, pairs, scratch_bytes, early, stream);
  }
  return cudaErrorInvalidValue;
}

int oasis_select(const SelectArgs* sel, const int* position, const int* step, int pairs,
                 int max_blocks, int scratch_bytes, int threads, long long* clock,
                 cudaStream_t stream) {
  if (threads > kSelectThreads || threads % 32) return cudaErrorInvalidValue;
  if (int e = allow_shared(select_blocks, scratch_bytes)) return e;
  select_blocks<<<pairs, threads, scratch_bytes, stream>>>(*sel, position, step, max_blocks, clock);
  return launched();
}

// `bulk` > 0 is the ring depth of the TMA form. `shared_bytes` of unused shared memory keep other
// CTAs off the SM: the gather then has its load queue for itself.
int oasis_gather(const GatherArgs* a, int ctas, int threads, int bulk, int shared_bytes,
                 cudaStream_t stream) {
  if (a->unit_bytes % (bulk ? kPieceBytes : kSmallPiece)) return cudaErrorInvalidValue;
  if (bulk) {
    if (bulk < 3 || bulk > kMaxRing) return cudaErrorInvalidValue;
    int bytes = bulk * kPieceBytes > shared_bytes ? bulk * kPieceBytes : shared_bytes;
    if (int e = allow_shared(gather_bulk, bytes)) return e;
    gather_bulk<<<ctas, 32, bytes, stream>>>(*a, bulk);
  } else {
    auto kernel = a->unit_bytes % kPieceBytes ? gather_warps<kSmallPiece> : gather_warps<kPieceBytes>;
    if (int e = allow_shared(kernel, shared_bytes)) return e;
    kernel<<<ctas, threads, shared_bytes, stream>>>(*a);
  }
  return launched();
}

int oasis_mirror(const MirrorArgs* a, int ctas, long long* clock, cudaStream_t stream) {
  mirror_blocks<<<ctas, 256, 0, stream>>>(*a, clock);
  return launched();
}

int oasis_fill_stamps(void* out, long long first, long long units, int elements,
                      cudaStream_t stream) {
  fill_stamps<<<1056, 256, 0, stream>>>(static_cast<uint16_t*>(out), first, units, elements);
  return launched();
}

int oasis_check_stamps(const GatherArgs* a, unsigned long long* checked, unsigned long long* wrong,
                       cudaStream_t stream) {
  check_stamps<<<264, 256, 0, stream>>>(*a, checked, wrong);
  return launched();
}

int oasis_begin_step(const BeginArgs* a, cudaStream_t stream) {
  begin_step<<<1, 256, 0, stream>>>(*a);
  return launched();
}

int oasis_read(const void* data, long long bytes, int* sink, int ctas, cudaStream_t stream) {
  read_only<<<ctas, 512, 0, stream>>>(static_cast<const uint4*>(data), bytes / 16, sink);
  return launched();
}

int oasis_set_flag(int* flag, int value, cudaStream_t stream) {
  set_flag<<<1, 1, 0, stream>>>(flag, value);
  return launched();
}

int oasis_clock(long long* times, long long place, cudaStream_t stream) {
  write_clock<<<1, 1, 0, stream>>>(times, place);
  return launched();
}

int oasis_delay(long long nanoseconds, cudaStream_t stream) {
  delay<<<1, 1, 0, stream>>>(nanoseconds);
  return launched();
}

int oasis_rms_norm(const void* x, const void* weight, void* out, int rows, int width, float eps,
                   int early, cudaStream_t stream) {
  if (width % 8 || width > kNormThreads * 8 * kNormParts) return cudaErrorInvalidValue;
  return start(rms_norm, dim3(rows), kNormThreads, 0, early, stream,
               static_cast<const __nv_bfloat16*>(x), static_cast<const __nv_bfloat16*>(weight),
               static_cast<__nv_bfloat16*>(out), width, eps);
}

int oasis_silu_mul(const void* in, void* out, int rows, int width, int early,
                   cudaStream_t stream) {
  int per_cta = 256 * kGateItems, items = rows * (width / 8);
  return start(silu_mul, dim3((items + per_cta - 1) / per_cta), 256, 0, early, stream,
               static_cast<const __nv_bfloat16*>(in), static_cast<__nv_bfloat16*>(out), rows,
               width);
}

int oasis_append(const AppendArgs* a, int early, cudaStream_t stream) {
  switch (a->head_dim) {
    case 64:
      return append_of<64>(*a, early, stream);
    case 128:
      return append_of<128>(*a, early, stream);
    case 256:
      return append_of<256>(*a, early, stream);
  }
  return cudaErrorInvalidValue;
}

// A team of host threads that submits copies; never null.
void* oasis_team_open(int members, int parts_ahead) { return new CopyTeam(members, parts_ahead); }

void oasis_team_close(void* team) { delete static_cast<CopyTeam*>(team); }

// The host names every unit of the layers [layer_begin, layer_end), in batches or one by one.
int oasis_copy_units(void* team, const CopyArgs* a, int batched, cudaStream_t stream) {
  return static_cast<CopyTeam*>(team)->copy(*a, batched != 0, stream);
}

// Load every kernel now, so that none is loaded while a graph is captured.
int oasis_preload() {
  const void* kernels[] = {
      reinterpret_cast<const void*>(paged_attention<64, 1, false>),
      reinterpret_cast<const void*>(paged_attention<64, 2, false>),
      reinterpret_cast<const void*>(paged_attention<64, 4, false>),
      reinterpret_cast<const void*>(paged_attention<128, 1, false>),
      reinterpret_cast<const void*>(paged_attention<128, 2, false>),
      reinterpret_cast<const void*>(paged_attention<128, 4, false>),
      reinterpret_cast<const void*>(paged_attention<256, 1, false>),
      reinterpret_cast<const void*>(paged_attention<256, 2, false>),
      reinterpret_cast<const void*>(paged_attention<128, 1, true>),
      reinterpret_cast<const void*>(scan_keys<64, 1, false>),
      reinterpret_cast<const void*>(scan_keys<64, 2, false>),
      reinterpret_cast<const void*>(scan_keys<128, 1, false>),
      reinterpret_cast<const void*>(scan_keys<128, 2, false>),
      reinterpret_cast<const void*>(scan_keys<256, 1, false>),
      reinterpret_cast<const void*>(scan_keys<256, 2, false>),
      reinterpret_cast<const void*>(scan_keys<128, 1, true>),
      reinterpret_cast<const void*>(scan_keys<128, 2, true>),
      reinterpret_cast<const void*>(select_blocks),
      reinterpret_cast<const void*>(gather_warps<kPieceBytes>),
      reinterpret_cast<const void*>(gather_warps<kSmallPiece>),
      reinterpret_cast<const void*>(gather_bulk),
      reinterpret_cast<const void*>(mirror_blocks),
      reinterpret_cast<const void*>(fill_stamps),
      reinterpret_cast<const void*>(check_stamps),
      reinterpret_cast<const void*>(read_only),
      reinterpret_cast<const void*>(begin_step),
      reinterpret_cast<const void*>(set_flag),
      reinterpret_cast<const void*>(write_clock),
      reinterpret_cast<const void*>(delay),
      reinterpret_cast<const void*>(rms_norm),
      reinterpret_cast<const void*>(silu_mul),
      reinterpret_cast<const void*>(append_kv<64, true>),
      reinterpret_cast<const void*>(append_kv<64, false>),
      reinterpret_cast<const void*>(append_kv<128, true>),
      reinterpret_cast<const void*>(append_kv<128, false>),
      reinterpret_cast<const void*>(append_kv<256, true>),
      reinterpret_cast<const void*>(append_kv<256, false>),
  };
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes;
    if (cudaError_t e = cudaFuncGetAttributes(&attributes, kernel)) return static_cast<int>(e);
  }
  return 0;
}

// Address by which the device reaches pinned host memory.
int oasis_device_alias(void* host, void** alias) {
  return static_cast<int>(cudaHostGetDevicePointer(alias, host, 0));
}

const char* oasis_error_text(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}

}  // extern "C"
